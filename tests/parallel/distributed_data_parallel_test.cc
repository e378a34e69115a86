// What the wrapper adds. proofs_test.cc proves that the ranks compute the same as one process.
#include "weft/parallel/distributed_data_parallel.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::same_bits;

RANKS_TEST(DistributedDataParallelTest, ParametersAndBuffersBecomeRankZeros, 3) {
  const auto make = [] {
    return nn::Sequential{nn::Linear(3, 2), nn::BatchNorm2d(2), nn::Linear(2, 2)};
  };
  nn::Sequential model = testing::seeded(group.rank(), make);
  raw::fill_(model[1].as<nn::BatchNorm2d>()->running_mean, group.rank() + 5);
  model[0].requires_grad(false);  // also with frozen parameters
  const DistributedDataParallel ddp(model, group);
  nn::Sequential roots = testing::seeded(0, make);
  raw::fill_(roots[1].as<nn::BatchNorm2d>()->running_mean, 5);
  const auto expected = roots.state_dict(), got = model.state_dict();
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(same_bits(got[i].second, expected[i].second)) << got[i].first;
  }
}

RANKS_TEST(DistributedDataParallelTest, NamesAndStateAreTheModules, 2) {
  nn::Sequential model = testing::mlp();
  DistributedDataParallel ddp(model, group);
  EXPECT_EQ(ddp.module().state_dict()[0].first, "0.weight");
  EXPECT_TRUE(ddp.module().parameters()[0].same(model.parameters()[0]));
  EXPECT_EQ(ddp.module().to_string(), testing::mlp().to_string());
}

struct TwoHeads : nn::Module<TwoHeads> {
  nn::Linear left = child("left", nn::Linear(2, 1));
  nn::Linear right = child("right", nn::Linear(2, 1));
  struct Result {
    Tensor l;
    std::map<std::string, Tensor> r;
    auto tensors() { return std::tie(l, r); }
  };
  Result forward(const Tensor& x, bool both) {
    return {left(x), both ? std::map<std::string, Tensor>{{"right", right(x)}}
                          : std::map<std::string, Tensor>()};
  }
};

RANKS_TEST(DistributedDataParallelTest, ForwardTakesAndReturnsAnything, 2) {
  DistributedDataParallel ddp(TwoHeads(), group, {.find_unused_parameters = true});
  const auto y = ddp(ones({1, 2}), true);
  sum(y.l + y.r.at("right")).backward();
  EXPECT_EQ(ddp.module().right.weight.grad().to_vector<float>(), (std::vector<float>{1, 1}));
  sum(ddp(ones({1, 2}), false).l).backward();
  EXPECT_EQ(ddp.module().left.weight.grad().to_vector<float>(), (std::vector<float>{2, 2}));
  EXPECT_EQ(ddp.module().right.weight.grad().to_vector<float>(), (std::vector<float>{1, 1}));
}

struct Hidden {
  virtual ~Hidden() = default;
  Tensor y;
};
struct HidesItsResult : nn::Module<HidesItsResult> {
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Hidden forward(const Tensor& x) {
    Hidden h;
    h.y = fc(x);
    return h;
  }
};

RANKS_TEST(DistributedDataParallelTest, AResultThatCannotBeWalkedIsAnErrorOnlyWhereItMustBe, 2) {
  DistributedDataParallel walks(HidesItsResult(), group, {.find_unused_parameters = true});
  EXPECT_WEFT_ERROR(walks(ones({1, 2})), InvalidArgument, "Hidden");
  DistributedDataParallel plain(HidesItsResult(), group);
  sum(plain(ones({1, 2})).y).backward();
  EXPECT_EQ(plain.module().fc.bias.grad().item<float>(), 1);
}

struct ReturnsNothing : nn::Module<ReturnsNothing> {
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Tensor last;
  void forward(const Tensor& x) { last = fc(x); }
};

RANKS_TEST(DistributedDataParallelTest, ForwardMayReturnNothing, 2) {
  ReturnsNothing net;
  DistributedDataParallel ddp(net, group);
  ddp(full({1, 2}, group.rank()));
  sum(ddp.module().last).backward();
  EXPECT_EQ(net.fc.weight.grad().to_vector<float>(), (std::vector<float>{0.5, 0.5}));
}

TEST(DistributedDataParallelTest, SharesTheGroupItIsGiven) {
  auto group = std::make_shared<comm::ProcessGroup>(nullptr, nullptr, 0, 1);
  DistributedDataParallel ddp(testing::mlp(), group);
  const std::weak_ptr<comm::ProcessGroup> watched = group;
  group.reset();
  EXPECT_FALSE(watched.expired());
  DistributedDataParallel moved = std::move(ddp);
  sum(moved(ones({1, 6}))).backward();
  EXPECT_EQ(moved.stats().reductions, 1);
  EXPECT_WEFT_ERROR(DistributedDataParallel(testing::mlp(), std::shared_ptr<comm::ProcessGroup>()),
                    InvalidArgument, "there is no process group");
}

}  // namespace
}  // namespace weft::parallel
