#include "weft/parallel/coalesced.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/ranks.h"

namespace weft::parallel {
namespace {

template <class Send>
std::int64_t messages_of(comm::ProcessGroup& group, const Send& send) {
  const std::int64_t before = group.traffic().messages_sent;
  send();
  return group.traffic().messages_sent - before;
}

// Tensors of every dtype, whose elements depend on the rank.
std::vector<Tensor> values(int rank) {
  std::vector<Tensor> tensors;
  for (const DType dtype :
       {DType::u8, DType::f64, DType::bf16, DType::i64, DType::f32, DType::i32, DType::boolean}) {
    const double base = dtype == DType::boolean ? 0 : 10 * rank;
    tensors.push_back(raw::to(raw::add(arange(0, 3), base + (rank == 0 ? 1 : 0)), dtype));
  }
  tensors.push_back(empty({0}));
  tensors.push_back(scalar(rank));
  const auto numbers = [&](const Shape& shape) {
    return raw::reshape(raw::add(arange(0, numel(shape)), 100 * rank), shape);
  };
  tensors.push_back(raw::contiguous(numbers({2, 3, 2, 2}), MemoryFormat::nhwc));
  tensors.push_back(raw::transpose(numbers({2, 3}), 0, 1));
  tensors.push_back(raw::slice(numbers({6}), 0, 0, 6, 2));  // not dense
  return tensors;
}

void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].to_vector<double>(), expected[i].to_vector<double>()) << i;
  }
}

RANKS_TEST(CoalescedTest, OneMessageBringsRootsTensorsOfAllDtypesAndLayouts, 3) {
  for (const int root : {0, 2}) {
    const std::vector<Tensor> mine = values(group.rank());
    Coalesced together(mine);
    const Tensor one = zeros({4});
    EXPECT_EQ(messages_of(group, [&] { together.broadcast(group, root); }),
              messages_of(group, [&] { group.broadcast(one, root).wait(); }));
    expect_equal(mine, values(root));
  }
}

RANKS_TEST(CoalescedTest, LaterBroadcastsSendWhatTheTensorsHoldThen, 2) {
  const Tensor x = full({3}, group.rank());
  Coalesced together({x});
  for (int round = 5; round < 8; ++round) {
    if (group.rank() == 0) raw::fill_(x, round);
    together.broadcast(group, 0);
    EXPECT_EQ(x.to_vector<int>(), std::vector<int>(3, round));
  }
}

RANKS_TEST(CoalescedTest, TensorsAreSentInPiecesOfTheLimit, 2) {
  for (const std::int64_t limit : {std::int64_t{1}, std::int64_t{16}, std::int64_t{1} << 20}) {
    const std::vector<Tensor> mine = values(group.rank());
    broadcast_coalesced(group, mine, 0, limit);
    expect_equal(mine, values(0));
  }
}

RANKS_TEST(CoalescedTest, AMessageHoldsAsManyTensorsAsTheLimitAllows, 2) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back(zeros({16}));  // 64 bytes each
  const auto messages = [&](std::int64_t limit) {
    return messages_of(group, [&] { broadcast_coalesced(group, tensors, 0, limit); });
  };
  const std::int64_t one = messages(6 * 64);
  EXPECT_EQ(messages(3 * 64), 2 * one);
  EXPECT_EQ(messages(2 * 64 + 63), 3 * one);
}

RANKS_TEST(CoalescedTest, NothingIsNoMessage, 2) {
  broadcast_coalesced(group, {}, 0, 100);
  Coalesced({}).broadcast(group, 0);
  EXPECT_EQ(group.traffic().messages_sent, 0);
}

// Caches that belong to a tensor depend on its version.
RANKS_TEST(CoalescedTest, ReceivingCountsAsAWrite, 2) {
  for (const std::int64_t limit : {1, 1000}) {
    const Tensor x = zeros({4});
    const std::uint32_t before = x.storage()->version();
    broadcast_coalesced(group, std::vector<Tensor>{x}, 0, limit);
    EXPECT_EQ(x.storage()->version() != before, group.rank() == 1);
  }
}

}  // namespace
}  // namespace weft::parallel
