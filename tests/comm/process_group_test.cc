// The effects of ProcessGroup's operations on tensors, and what they refuse.
#include "weft/comm/group/process_group.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/connect.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/hooked_store.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using testing::in_groups;

constexpr ProcessGroupOptions kOptions{.timeout = milliseconds(30'000)};

class Devices : public ::testing::Environment {
  void SetUp() override {
    static weft::testing::FakeRuntime cuda(DeviceType::cuda);
    register_runtime(DeviceType::cuda, &cuda);
    set_host_devices(2);
  }
};
const auto* const environment = ::testing::AddGlobalTestEnvironment(new Devices);

using Numbers = testing::Doubles;

Numbers numbers_of(const Tensor& x) { return x.to_vector<double>(); }

// values_of() without the first value, which is 0 for every rank.
Numbers numbers(int rank, std::int64_t count) { return testing::values_of(rank, count, 1); }

Tensor as_tensor(const Numbers& values, const Shape& shape, DType dtype) {
  return raw::to(from_vector(values, shape), dtype);
}

Shape stacked(const Shape& shape, int size) {
  Shape result = shape;
  result.insert(0, size);
  return result;
}

// --- Every operation -----------------------------------------------------------------------------

class EveryOperation : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  // Calls f(group, dtype, shape) for each combination.
  template <class F>
  void for_each(F&& f) {
    const auto& [backend, n] = GetParam();
    in_groups(backend, n, [&](ProcessGroup& group) {
      for (const DType dtype : {DType::f32, DType::i64}) {
        for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 5}, Shape{0}, Shape{2, 0, 3}}) {
          SCOPED_TRACE(detail::concat("rank ", group.rank(), ", ", dtype, ' ', shape));
          f(group, dtype, shape);
        }
      }
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, EveryOperation,
                         ::testing::Combine(::testing::Values("threads", "ring"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST_P(EveryOperation, BroadcastGivesTheRootsNumbers) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    for (int root = 0; root < group.size(); ++root) {
      const Tensor x = as_tensor(numbers(group.rank(), numel(shape)), shape, dtype);
      group.broadcast(x, root).wait();
      EXPECT_EQ(numbers_of(x), numbers(root, numel(shape)));
    }
  });
}

Numbers reduced(ReduceOp op, int n, std::int64_t count) {
  Numbers result = numbers(0, count);
  for (int r = 1; r < n; ++r) {
    const Numbers other = numbers(r, count);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = testing::combine(result[i], other[i], DType::f32, op);
    }
  }
  if (op == ReduceOp::avg) {
    for (double& value : result) value /= n;
  }
  return result;
}

// With the precision of f32: it cannot represent thirds.
void expect_near(const Numbers& got, const Numbers& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], expected[i]) << "at " << i;
}

TEST_P(EveryOperation, AllReduceAndReduceGiveTheReducedNumbers) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      if (op == ReduceOp::avg && dtype == DType::i64) continue;
      const Numbers expected = reduced(op, group.size(), numel(shape));
      const Tensor x = as_tensor(numbers(group.rank(), numel(shape)), shape, dtype);
      group.all_reduce(x, op).wait();
      expect_near(numbers_of(x), expected);
      for (int root = 0; root < group.size(); ++root) {
        const Tensor y = as_tensor(numbers(group.rank(), numel(shape)), shape, dtype);
        group.reduce(y, root, op).wait();
        if (group.rank() == root) expect_near(numbers_of(y), expected);
      }
    }
  });
}

Numbers of_all_ranks(int n, std::int64_t count) {
  Numbers all;
  for (int r = 0; r < n; ++r) {
    const Numbers part = numbers(r, count);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST_P(EveryOperation, GatheringStacksTheRanksNumbers) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    const int n = group.size();
    const Tensor x = as_tensor(numbers(group.rank(), numel(shape)), shape, dtype);
    const Tensor y = zeros(stacked(shape, n), dtype);
    group.all_gather(y, x).wait();
    EXPECT_EQ(numbers_of(y), of_all_ranks(n, numel(shape)));
    for (int root = 0; root < n; ++root) {
      raw::fill_(y, 99);
      group.gather(group.rank() == root ? y : Tensor(), x, root).wait();
      if (group.rank() == root) {
        EXPECT_EQ(numbers_of(y), of_all_ranks(n, numel(shape)));
      } else {
        EXPECT_EQ(numbers_of(y), Numbers(static_cast<std::size_t>(y.numel()), 99));
      }
    }
    EXPECT_EQ(numbers_of(x), numbers(group.rank(), numel(shape)));
  });
}

TEST_P(EveryOperation, ScatteringGivesEachRankItsPart) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    const int n = group.size();
    const Tensor y = zeros(shape, dtype);
    for (int root = 0; root < n; ++root) {
      raw::fill_(y, 99);
      const Tensor x = as_tensor(of_all_ranks(n, numel(shape)), stacked(shape, n), dtype);
      group.scatter(y, group.rank() == root ? x : Tensor(), root).wait();
      EXPECT_EQ(numbers_of(y), numbers(group.rank(), numel(shape)));
    }
    // Every rank has n times the stacked numbers, because all ranks bring the same ones.
    const Tensor x = as_tensor(of_all_ranks(n, numel(shape)), stacked(shape, n), dtype);
    group.reduce_scatter(y, x).wait();
    Numbers expected = numbers(group.rank(), numel(shape));
    for (double& value : expected) value *= n;
    EXPECT_EQ(numbers_of(y), expected);
  });
}

TEST_P(EveryOperation, AllToAllTransposesRanksAndParts) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    const int n = group.size(), rank = group.rank();
    const auto part = [&](int from, int to) {
      Numbers values = numbers(from, numel(shape));
      for (double& value : values) value += 100 * to;
      return values;
    };
    Numbers out, in;
    for (int r = 0; r < n; ++r) {
      std::ranges::copy(part(rank, r), std::back_inserter(out));
      std::ranges::copy(part(r, rank), std::back_inserter(in));
    }
    const Tensor y = zeros(stacked(shape, n), dtype);
    group.all_to_all(y, as_tensor(out, stacked(shape, n), dtype)).wait();
    EXPECT_EQ(numbers_of(y), in);
  });
}

TEST_P(EveryOperation, MessagesGoRoundTheRing) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    const int n = group.size(), rank = group.rank();
    if (n == 1) return;
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    const Tensor mine = as_tensor(numbers(rank, numel(shape)), shape, dtype);
    const Tensor other = zeros(shape, dtype);
    // Somewhere in the ring one rank must send first and the next one receive first.
    if (rank == 0) {
      group.send(mine, next).wait();
      group.recv(other, previous).wait();
    } else {
      group.recv(other, previous).wait();
      group.send(mine, next).wait();
    }
    EXPECT_EQ(numbers_of(other), numbers(previous, numel(shape)));
  });
}

TEST_P(EveryOperation, MemoryOfTheBackendIsThatOfATensor) {
  for_each([](ProcessGroup& group, DType dtype, const Shape& shape) {
    const Scoped elsewhere(&ThreadState::device, Device("cuda"));
    const Tensor x = group.empty(shape, dtype);
    EXPECT_EQ(x.shape(), shape);
    EXPECT_EQ(x.dtype(), dtype);
    ASSERT_EQ(x.device(), Device("cpu"));
    EXPECT_TRUE(x.is_contiguous());
    raw::fill_(x, group.rank());
    group.all_reduce(x).wait();
    const int sum = group.size() * (group.size() - 1) / 2;
    EXPECT_EQ(numbers_of(x), Numbers(static_cast<std::size_t>(numel(shape)), sum));
  });
}

TEST(ProcessGroupTest, AShapeThatCannotBeEndsNoGroup) {
  for (const char* const backend : {"threads", "shm"}) {
    in_groups(backend, 2, [](ProcessGroup& group) {
      for (const std::int64_t size : {std::int64_t{1} << 60, std::int64_t{1} << 62,
                                      std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}}) {
        EXPECT_THROW(group.empty({size}), Error) << size;
      }
      group.barrier().wait();
    });
  }
}

// The ranks share an account: two tensors of 4000 bytes, perhaps in blocks of 512.
TEST(ProcessGroupTest, MemoryOfTheBackendCountsForItsOwner) {
  const auto in_use = [] {
    return memory_stats(Device()).in_use_by_owner[static_cast<std::size_t>(MemoryOwner::gradients)];
  };
  for (const char* const backend : {"threads", "ring", "shm", "gloo"}) {
    if (!testing::missing_backend(backend).empty()) continue;
    in_groups(backend, 2, [&](ProcessGroup& group) {
      const std::int64_t before = in_use();
      group.barrier().wait();
      {
        const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
        const Tensor x = group.empty({1000});
        group.barrier().wait();
        EXPECT_GE(in_use() - before, 2 * 4000) << backend;
        EXPECT_LE(in_use() - before, 2 * 4096) << backend;
        group.barrier().wait();
      }
      group.barrier().wait();
      EXPECT_EQ(in_use(), before) << backend;
    });
  }
}

// The limit is that of both ranks together.
TEST(ProcessGroupTest, MemoryOfTheBackendCountsForTheLimit) {
  const auto in_use = [] { return memory_stats(Device()).in_use_bytes; };
  for (const char* const backend : {"threads", "ring", "shm", "gloo"}) {
    if (!testing::missing_backend(backend).empty()) continue;
    SCOPED_TRACE(backend);
    const std::int64_t before = in_use();
    in_groups(backend, 2, [&](ProcessGroup& group) {
      const auto alone = [&](const std::function<void()>& f) {
        group.barrier().wait();
        if (group.rank() == 0) f();
        group.barrier().wait();
      };
      alone([&] {
        release_cached_memory(Device());
        set_memory_limit(Device(), before + 64 * 1024);
      });
      EXPECT_WEFT_ERROR(group.empty({100'000}), OutOfMemory, "cpu:0");
      alone([&] { EXPECT_EQ(in_use(), before); });
      {
        const Tensor x = group.empty({1000});
        alone([&] { EXPECT_GE(in_use() - before, 2 * 4000); });
      }
      alone([] { set_memory_limit(Device(), 0); });
      EXPECT_EQ(group.empty({100'000}).numel(), 100'000);
    });
  }
}

TEST_P(EveryOperation, ObjectsOfAnyLengthTravel) {
  const auto& [backend, n] = GetParam();
  in_groups(backend, n, [](ProcessGroup& group) {
    const auto object = [](int rank) {
      return rank == 1 ? std::string() : std::string(1 + rank * 1000, static_cast<char>(rank));
    };
    std::vector<std::string> all;
    for (int r = 0; r < group.size(); ++r) {
      all.push_back(object(r));
      EXPECT_EQ(group.broadcast_object(group.rank() == r ? object(r) : "ignored", r), object(r));
    }
    EXPECT_EQ(group.all_gather_object(object(group.rank())), all);
    EXPECT_EQ(group.all_gather_object(""), std::vector<std::string>(all.size()));
  });
}

TEST_P(EveryOperation, BarriersLetNobodyThroughEarly) {
  const auto& [backend, n] = GetParam();
  std::atomic<int> arrived{0}, monitored{0};
  in_groups(backend, n, [&](ProcessGroup& group) {
    for (int round = 1; round <= 3; ++round) {
      const bool late = round % group.size() == group.rank();
      if (late) std::this_thread::sleep_for(milliseconds(5));
      ++arrived;
      group.barrier().wait();
      EXPECT_GE(arrived, round * group.size());
      if (late) std::this_thread::sleep_for(milliseconds(5));
      ++monitored;
      group.monitored_barrier(milliseconds(30'000));
      EXPECT_GE(monitored, round * group.size());
    }
  });
}

// --- Tensors -------------------------------------------------------------------------------------

RANKS_TEST(ProcessGroupTest, DimensionOrderIsKeptInPlace, 3, kOptions) {
  const Shape shape{2, 3, 4, 5};
  const Tensor plain = as_tensor(numbers(group.rank(), numel(shape)), shape, DType::f32);
  const Tensor x = raw::contiguous(plain, MemoryFormat::nhwc);
  ASSERT_FALSE(x.is_contiguous());
  group.all_reduce(x).wait();
  EXPECT_EQ(numbers_of(x), reduced(ReduceOp::sum, 3, numel(shape)));
}

RANKS_TEST(ProcessGroupTest, PartsOfAResultAreRowMajorWhateverTheyComeFrom, 2, kOptions) {
  const Shape shape{2, 3, 4, 5};
  const Tensor plain = as_tensor(numbers(group.rank(), numel(shape)), shape, DType::f32);
  const Tensor y = zeros(stacked(shape, 2));
  group.all_gather(y, raw::contiguous(plain, MemoryFormat::nhwc)).wait();
  EXPECT_EQ(numbers_of(y), of_all_ranks(2, numel(shape)));
}

RANKS_TEST(ProcessGroupTest, VirtualDevicesAreServed, 2, kOptions) {
  const Tensor x = full({3}, group.rank() + 1, Device("cpu:1"));
  group.all_reduce(x).wait();
  EXPECT_EQ(numbers_of(x), Numbers(3, 3));
  EXPECT_EQ(x.device(), Device("cpu:1"));
}

RANKS_TEST(ProcessGroupTest, TensorsLiveUntilTheWorkIsDoneAndNoLonger, 2, kOptions) {
  const Tensor kept = ones({4});
  for (int i = 0; i < 100; ++i) {
    group.all_reduce(kept).wait();
    EXPECT_EQ(kept.impl()->use_count(), 1u);
  }
  Work work = group.all_reduce(ones({100'000}));  // the group has the only handle
  work.wait();
}

// Otherwise autograd would not notice that a saved tensor was changed.
RANKS_TEST(ProcessGroupTest, WhatIsWrittenCountsAsChanged, 2, kOptions) {
  const bool root = group.rank() == 0;
  const Tensor x = ones({3}), y = ones({3}), all = ones({2, 3});
  const auto changes = [](const Tensor& tensor, auto&& f) {
    const auto before = tensor.storage()->version();
    f().wait();
    return tensor.storage()->version() != before;
  };
  EXPECT_TRUE(changes(x, [&] { return group.all_reduce(x); }));
  EXPECT_TRUE(changes(x, [&] { return group.reduce(x, 0); }));
  EXPECT_EQ(changes(x, [&] { return group.broadcast(x, 0); }), !root);
  EXPECT_TRUE(changes(all, [&] { return group.all_gather(all, x); }));
  EXPECT_FALSE(changes(x, [&] { return group.all_gather(all, x); }));
  EXPECT_EQ(changes(all, [&] { return group.gather(all, x, 0); }), root);
  EXPECT_TRUE(changes(y, [&] { return group.scatter(y, all, 0); }));
  EXPECT_FALSE(changes(all, [&] { return group.scatter(y, all, 0); }));
  EXPECT_TRUE(changes(y, [&] { return group.reduce_scatter(y, all); }));
  EXPECT_TRUE(changes(all, [&] { return group.reduce_scatter(y, all); }));
  EXPECT_TRUE(changes(all, [&] { return group.all_to_all(all, ones({2, 3})); }));
  EXPECT_EQ(changes(x, [&] { return root ? group.send(x, 1) : group.recv(x, 0); }), !root);
}

// --- Refused at the call -------------------------------------------------------------------------

class WrongArguments : public ::testing::Test {
 protected:
  // Runs f on one of two ranks, which must be able to work with the other one afterwards.
  void on_a_rank(const std::function<void(ProcessGroup&)>& f) {
    run_ranks(
        2,
        [&](ProcessGroup& group) {
          if (group.rank() == 1) f(group);
          const Tensor x = ones({2});
          group.all_reduce(x).wait();
          EXPECT_EQ(numbers_of(x), Numbers(2, 2));
        },
        kOptions);
  }

  const Tensor x = ones({3}), y = zeros({2, 3});
};

#define EXPECT_REFUSED(call, code, text) EXPECT_WEFT_ERROR(static_cast<void>(call), code, text)

TEST_F(WrongArguments, UndefinedTensors) {
  on_a_rank([&](ProcessGroup& group) {
    EXPECT_REFUSED(group.all_reduce({}), InvalidArgument, "[all_reduce] x is an undefined tensor");
    EXPECT_REFUSED(group.broadcast({}, 0), InvalidArgument, "[broadcast] x is an undefined tensor");
    EXPECT_REFUSED(group.reduce({}, 0), InvalidArgument, "[reduce] x is an undefined tensor");
    EXPECT_REFUSED(group.all_gather({}, x), InvalidArgument, "[all_gather] y is an undefined");
    EXPECT_REFUSED(group.all_gather(y, {}), InvalidArgument, "[all_gather] x is an undefined");
    EXPECT_REFUSED(group.reduce_scatter({}, y), InvalidArgument, "y is an undefined");
    EXPECT_REFUSED(group.gather({}, x, 1), InvalidArgument, "[gather] y is an undefined");
    EXPECT_REFUSED(group.gather(y, {}, 0), InvalidArgument, "[gather] x is an undefined");
    EXPECT_REFUSED(group.scatter(x, {}, 1), InvalidArgument, "[scatter] x is an undefined");
    EXPECT_REFUSED(group.scatter({}, y, 0), InvalidArgument, "[scatter] y is an undefined");
    EXPECT_REFUSED(group.all_to_all(y, {}), InvalidArgument, "x is an undefined tensor");
    EXPECT_REFUSED(group.send({}, 0), InvalidArgument, "[send] x is an undefined tensor");
    EXPECT_REFUSED(group.recv({}, 0), InvalidArgument, "[recv] x is an undefined tensor");
  });
}

TEST_F(WrongArguments, TensorsWithGaps) {
  const Tensor wide = ones({3, 4});
  const Tensor gaps = as_strided(wide.storage(), DType::f32, {3, 2}, {4, 1});
  const Tensor repeated = as_strided(wide.storage(), DType::f32, {3, 2}, {0, 1});
  on_a_rank([&](ProcessGroup& group) {
    EXPECT_REFUSED(group.all_reduce(gaps), InvalidArgument,
                   "x [3,2] has gaps in memory or elements that share it (strides [4,1]); use "
                   "contiguous()");
    EXPECT_REFUSED(group.broadcast(repeated, 0), InvalidArgument, "strides [0,1]");
    EXPECT_REFUSED(group.send(gaps, 0), InvalidArgument, "has gaps");
    EXPECT_REFUSED(group.all_gather(zeros({2, 3, 2}), gaps), InvalidArgument, "x [3,2] has gaps");
  });
}

TEST_F(WrongArguments, ResultsThatAreNotRowMajor) {
  const Tensor nhwc = raw::contiguous(ones({2, 3, 4, 5}), MemoryFormat::nhwc);
  on_a_rank([&](ProcessGroup& group) {
    EXPECT_REFUSED(group.all_gather(nhwc, ones({3, 4, 5})), InvalidArgument,
                   "y [2,3,4,5] is not row-major (strides [60,1,15,3])");
    EXPECT_REFUSED(group.scatter(nhwc, {}, 0), InvalidArgument, "is not row-major");
  });
}

TEST_F(WrongArguments, TensorsOnTwoDevices) {
  on_a_rank([&](ProcessGroup& group) {
    EXPECT_REFUSED(group.all_gather(y, empty({3}, Device("cuda"))), Device,
                   "y is on cpu:0, x on cuda:0");
    EXPECT_REFUSED(group.all_gather(y, ones({3}, Device("cpu:1"))), Device,
                   "y is on cpu:0, x on cpu:1");
  });
}

TEST_F(WrongArguments, Dtypes) {
  on_a_rank([&](ProcessGroup& group) {
    const Tensor integers = zeros({2, 3}, DType::i64);
    EXPECT_REFUSED(group.all_gather(integers, x), Dtype, "y is i64, x is f32");
    EXPECT_REFUSED(group.all_to_all(integers, y), Dtype, "nothing is converted on the way");
    EXPECT_REFUSED(group.all_reduce(integers, ReduceOp::avg), Dtype, "avg of i64");
    EXPECT_REFUSED(group.reduce(integers, 0, ReduceOp::avg), Dtype, "avg of i64");
    EXPECT_REFUSED(group.reduce_scatter(zeros({3}, DType::boolean), zeros({2, 3}, DType::boolean),
                                        ReduceOp::avg),
                   Dtype, "avg of bool; only floating numbers have one");
  });
}

TEST_F(WrongArguments, Shapes) {
  on_a_rank([&](ProcessGroup& group) {
    EXPECT_REFUSED(group.all_gather(zeros({3, 3}), x), Shape,
                   "[all_gather] y: got [3,3], expected [2,3] for 2 ranks (x [3])");
    EXPECT_REFUSED(group.all_gather(zeros({6}), x), Shape, "y: got [6], expected [2,3]");
    EXPECT_REFUSED(group.gather(zeros({2, 4}), x, 1), Shape, "y: got [2,4], expected [2,3]");
    EXPECT_REFUSED(group.scatter(x, zeros({4, 3}), 1), Shape, "x: got [4,3], expected [2,3]");
    EXPECT_REFUSED(group.reduce_scatter(x, zeros({2, 2})), Shape, "x: got [2,2], expected [2,3]");
    EXPECT_REFUSED(group.all_to_all(zeros({2, 4}), y), Shape,
                   "got y [2,4] and x [2,3], expected two of one shape [2,...] for 2 ranks");
    EXPECT_REFUSED(group.all_to_all(zeros({3, 3}), zeros({3, 3})), Shape, "expected two of one");
    EXPECT_REFUSED(group.all_to_all(scalar(1), scalar(2)), Shape, "expected two of one shape");
  });
}

TEST_F(WrongArguments, RanksThatThereAreNot) {
  on_a_rank([&](ProcessGroup& group) {
    EXPECT_REFUSED(group.broadcast(x, 2), InvalidArgument,
                   "[broadcast] root is rank 2, the group has ranks 0 to 1");
    EXPECT_REFUSED(group.broadcast(x, -1), InvalidArgument, "root is rank -1");
    EXPECT_REFUSED(group.reduce(x, 2), InvalidArgument, "[reduce] root is rank 2");
    EXPECT_REFUSED(group.gather(y, x, 2), InvalidArgument, "[gather] root is rank 2");
    EXPECT_REFUSED(group.scatter(x, y, 2), InvalidArgument, "[scatter] root is rank 2");
    EXPECT_REFUSED(group.send(x, 2), InvalidArgument, "[send] to is rank 2");
    EXPECT_REFUSED(group.recv(x, -1), InvalidArgument, "[recv] from is rank -1");
    EXPECT_REFUSED(group.send(x, 1), InvalidArgument, "to is rank 1, which is this one itself");
    EXPECT_REFUSED(group.recv(x, 1), InvalidArgument, "from is rank 1, which is this one itself");
    EXPECT_REFUSED(group.broadcast_object("", 2), InvalidArgument, "root is rank 2");
    EXPECT_REFUSED(group.subgroup({0, 2}), InvalidArgument, "a member is rank 2");
    EXPECT_REFUSED(group.subgroup({1, 1}), InvalidArgument, "rank 1 is given twice");
    EXPECT_REFUSED(group.subgroup({}), InvalidArgument, "got no ranks");
    EXPECT_REFUSED(group.monitored_barrier(milliseconds(0)), InvalidArgument, "timeout is 0 ms");
  });
}

TEST_F(WrongArguments, ResultsInTheMemoryTheyAreMadeFrom) {
  on_a_rank([&](ProcessGroup& group) {
    const Tensor row = as_strided(y.storage(), DType::f32, {3}, {1}, 3);
    EXPECT_REFUSED(group.all_gather(y, row), InvalidArgument, "y and x share memory");
    EXPECT_REFUSED(group.all_to_all(y, y), InvalidArgument, "y and x share memory");
  });
}

TEST(ProcessGroupTest, GroupsThatCannotBe) {
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_WEFT_ERROR(ProcessGroup(thread_backend(), store, 2, 2), InvalidArgument,
                    "rank 2 of 2; ranks count from 0 to 1");
  EXPECT_WEFT_ERROR(ProcessGroup(thread_backend(), store, -1, 2), InvalidArgument, "rank -1 of 2");
  EXPECT_WEFT_ERROR(ProcessGroup(thread_backend(), store, 0, 0), InvalidArgument, "of 0 ranks");
  EXPECT_WEFT_ERROR(ProcessGroup(thread_backend(), nullptr, 0, 2), InvalidArgument,
                    "needs a backend and a store");
  EXPECT_WEFT_ERROR(ProcessGroup({}, store, 0, 2), InvalidArgument, "needs a backend and a store");
  EXPECT_WEFT_ERROR(ProcessGroup({}, {}, 0, 1, {.timeout = milliseconds(0)}), InvalidArgument,
                    "timeout is 0 ms; needs 1 to 1000000000");
  EXPECT_WEFT_ERROR(ProcessGroup({}, {}, 0, 1, {.slow = milliseconds::max()}), InvalidArgument,
                    "slow is 9223372036854775807 ms");
}

// --- A world of one ------------------------------------------------------------------------------

TEST(ProcessGroupTest, AWorldOfOneNeedsNothing) {
  ProcessGroup group({}, nullptr, 0, 1);
  EXPECT_STREQ(group.backend(), "none");
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  const Tensor x = tensor({1, 2, 3});
  const Work work = group.all_reduce(x, ReduceOp::avg);
  EXPECT_TRUE(work.done());
  work.wait();
  EXPECT_EQ(numbers_of(x), Numbers({1, 2, 3}));
  EXPECT_REFUSED(group.send(x, 0), InvalidArgument, "which is this one itself");
  const auto same = group.subgroup({0});
  ASSERT_TRUE(same);
  EXPECT_EQ(same->all_gather_object("a"), std::vector<std::string>{"a"});
  group.monitored_barrier(milliseconds(1));
  EXPECT_EQ(group.traffic().bytes_sent, 0);
  group.abort();
  EXPECT_REFUSED(group.barrier(), Comm, "the group was aborted");
  EXPECT_WEFT_ERROR(group.monitored_barrier(milliseconds(1)), Comm, "the group was aborted");
}

TEST(ProcessGroupTest, AWorldOfOneServesAnyDevice) {
  ProcessGroup group({}, nullptr, 0, 1);
  group.all_reduce(empty({3}, Device("cuda"))).wait();
}

// --- Several groups ------------------------------------------------------------------------------

class SeveralGroups : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_backend(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, SeveralGroups,
                         ::testing::Values("threads", "ring", "shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SeveralGroups, SubgroupsAreOfTheirMembersAlone) {
  in_groups(GetParam(), 4, [](ProcessGroup& group) {
    const int rank = group.rank();
    const auto odd = group.subgroup({3, 1});
    const auto even = group.subgroup({0, 2});
    const auto last = group.subgroup({3});
    EXPECT_EQ(odd != nullptr, rank % 2 == 1);
    EXPECT_EQ(even != nullptr, rank % 2 == 0);
    EXPECT_EQ(last != nullptr, rank == 3);
    ProcessGroup& mine = odd ? *odd : *even;
    EXPECT_EQ(mine.rank(), rank / 2);
    EXPECT_EQ(mine.size(), 2);
    EXPECT_EQ(mine.options().timeout, group.options().timeout);
    const Tensor x = full({5}, rank);
    mine.all_reduce(x).wait();
    EXPECT_EQ(numbers_of(x), Numbers(5, rank % 2 == 1 ? 4 : 2));
    // A group made from a subgroup.
    const auto pair = mine.subgroup({0, 1});
    EXPECT_EQ(pair->all_gather_object(std::to_string(rank)),
              (odd ? std::vector<std::string>{"1", "3"} : std::vector<std::string>{"0", "2"}));
    group.barrier().wait();
  });
}

// With a single queue, each rank would wait for the operation that the other one calls second.
TEST_P(SeveralGroups, GroupsDoNotWaitForEachOther) {
  in_groups(GetParam(), 2, [](ProcessGroup& first) {
    const auto second = first.subgroup({0, 1});
    const Tensor x = ones({3}), y = ones({4});
    if (first.rank() == 0) {
      const Work a = first.all_reduce(x), b = second->all_reduce(y);
      b.wait();
      a.wait();
    } else {
      second->all_reduce(y).wait();
      first.all_reduce(x).wait();
    }
    EXPECT_EQ(numbers_of(x), Numbers(3, 2));
    EXPECT_EQ(numbers_of(y), Numbers(4, 2));
  });
}

TEST_P(SeveralGroups, TwoThreadsUseTwoGroups) {
  in_groups(GetParam(), 3, [](ProcessGroup& first) {
    const auto second = first.subgroup({0, 1, 2});
    const auto use = [](ProcessGroup& group, int base) {
      for (int i = 0; i < 50; ++i) {
        const Tensor x = full({17}, base + i + group.rank());
        group.all_reduce(x).wait();
        EXPECT_EQ(numbers_of(x), Numbers(17, 3 * (base + i) + 3));
      }
    };
    std::thread other([&] { use(*second, 1000); });
    use(first, 0);
    other.join();
  });
}

// --- Checks between ranks ------------------------------------------------------------------------

// Two operations with the same number of bytes.
Work reduce_bucket(ProcessGroup& group) {
  const ProcessGroup::Tag tag("bucket 1");
  return group.all_reduce(ones({10}));
}
Work broadcast_weights(ProcessGroup& group) {
  const Scoped step(&ThreadState::step, std::int64_t{5});
  const PathScope module("layer3");
  const ProcessGroup::Tag tag("weights");
  return group.broadcast(ones({10}), 0);
}

void expect_mismatch(const std::function<Work(ProcessGroup&)>& rank_0,
                     const std::function<Work(ProcessGroup&)>& others, const std::string& text) {
  ProcessGroupOptions options = kOptions;
  options.check_fingerprints = true;
  std::atomic<int> told{0};
  run_ranks(
      3,
      [&](ProcessGroup& group) {
        group.barrier().wait();
        try {
          (group.rank() == 0 ? rank_0(group) : others(group)).wait();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::Comm);
          const std::string all = error.what();
          EXPECT_HAS(all, text) << "\nwant ";
          EXPECT_LACKS(all, "first") << "says the same twice: ";
          ++told;
        }
      },
      options);
  EXPECT_EQ(told, 3);
}

TEST(FingerprintTest, NamesWhatTheRanksCall) {
  expect_mismatch(
      reduce_bucket, broadcast_weights,
      "operation 2: rank 0 calls all_reduce of 10 f32 (bucket 1), rank 1 calls broadcast of 10 f32 "
      "(weights) at step 5 in layer3; all ranks must call the same operations in the same order");
}

TEST(FingerprintTest, ComparesAllThatMatters) {
  const auto reduce = [](const Tensor& x, ReduceOp op = ReduceOp::sum) {
    return [=](ProcessGroup& group) { return group.all_reduce(x, op); };
  };
  expect_mismatch(reduce(ones({10})), reduce(ones({11})),
                  "rank 0 calls all_reduce of 10 f32, rank 1 calls all_reduce of 11 f32;");
  expect_mismatch(reduce(ones({10})), reduce(ones({10}, DType::f64)), "all_reduce of 10 f64");
  expect_mismatch(reduce(ones({10})), reduce(ones({10}), ReduceOp::max),
                  "rank 0 calls all_reduce of 10 f32, rank 1 calls all_reduce of 10 f32, max;");
  const auto broadcast = [](int root, const char* tag_text) {
    return [=](ProcessGroup& group) {
      const ProcessGroup::Tag tag(tag_text);
      return group.broadcast(ones({2}), root);
    };
  };
  expect_mismatch(broadcast(0, "a"), broadcast(1, "a"), "broadcast of 2 f32, root 1 (a)");
  expect_mismatch(broadcast(0, "a"), broadcast(0, "b"), "broadcast of 2 f32 (b)");
  expect_mismatch(
      broadcast(0, "a"), [](ProcessGroup& group) { return group.barrier(); },
      "rank 1 calls barrier;");
}

class Mismatch : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  // Rank 0 makes one call and the other ranks another. All of them end with an error, at least one
  // error names both calls, and no rank waits for the timeout.
  static void expect(const std::function<Work(ProcessGroup&)>& rank_0,
                     const std::function<Work(ProcessGroup&)>& others, const std::string& of_0,
                     const std::string& of_others) {
    const auto& [backend, n] = GetParam();
    const std::string missing = testing::missing_backend(backend);
    if (!missing.empty()) GTEST_SKIP() << missing;
    std::vector<std::string> failures(n);  // of each rank
    const auto began = std::chrono::steady_clock::now();
    in_groups(backend, n, [&](ProcessGroup& group) {
      group.barrier().wait();
      try {
        (group.rank() == 0 ? rank_0(group) : others(group)).wait();
        // A rank that only sends may be done before another one notices.
        group.barrier().wait();
      } catch (const Error& error) {
        failures[group.rank()] = error.what();
        EXPECT_TRUE(error.code() == ErrorCode::Comm || error.code() == ErrorCode::PeerFailed)
            << error.what();
      }
    });
    // By one thread: libstdc++ fills a cache of the locale without a lock when it reads a pattern.
    const std::regex both("rank 0 calls operation " + of_0 + ", rank [12] calls operation " +
                          of_others +
                          "; all ranks must call the same operations in the same order");
    int told = 0;
    for (const std::string& failure : failures) {
      EXPECT_NE(failure, "");
      if (std::regex_search(failure, both)) ++told;
    }
    EXPECT_GE(told, 1) << of_0 << " and " << of_others;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, Mismatch,
                         ::testing::Combine(::testing::Values("threads", "ring", "shm", "gloo"),
                                            ::testing::Values(2, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST_P(Mismatch, OfTheOperationIsFoundWhereTheBytesAreAsMany) {
  expect(reduce_bucket, broadcast_weights, "2, all_reduce of 10 f32 \\(bucket 1\\)",
         "2, broadcast of 10 f32 \\(weights\\) at step 5 in layer3");
}

TEST_P(Mismatch, OfWhatBytesMeanIsFound) {
  const auto reduce = [](const Tensor& x, ReduceOp op, const char* text) {
    return [=](ProcessGroup& group) {
      const ProcessGroup::Tag tag(text);
      return group.all_reduce(x, op);
    };
  };
  const auto f32 = reduce(ones({10}), ReduceOp::sum, "a");
  const std::string of_0 = "2, all_reduce of 10 f32 \\(a\\)";
  expect(f32, reduce(ones({10}, DType::i32), ReduceOp::sum, "a"), of_0,
         "2, all_reduce of 10 i32 \\(a\\)");
  expect(f32, reduce(ones({10}), ReduceOp::max, "a"), of_0, "2, all_reduce of 10 f32, max \\(a\\)");
  expect(f32, reduce(ones({10}), ReduceOp::sum, "b"), of_0, "2, all_reduce of 10 f32 \\(b\\)");
  expect(f32, reduce(ones({5}, DType::f64), ReduceOp::sum, "a"), of_0,
         "2, all_reduce of 5 f64 \\(a\\)");
  // More than shm's staging area, and many of the ring's chunks.
  const std::int64_t many = 3'000'000;
  expect(reduce(ones({many}), ReduceOp::sum, "a"), reduce(ones({many}), ReduceOp::sum, "b"),
         "2, all_reduce of 3000000 f32 \\(a\\)", "2, all_reduce of 3000000 f32 \\(b\\)");
}

// A root that only sends notices it in its next call, wherever that is made.
TEST_P(Mismatch, OfTheRootIsFound) {
  const std::string& backend = std::get<0>(GetParam());
  if (backend == "threads" || backend == "gloo") {
    GTEST_SKIP() << "both roots wait for receivers until their timeout, as another test shows";
  }
  const auto broadcast = [](int root, const char* next) {
    return [=](ProcessGroup& group) {
      group.broadcast(ones({2}), root).wait();
      const PathScope module(next);
      return group.barrier();
    };
  };
  expect(broadcast(0, "a"), broadcast(1, "b"), "2, broadcast of 2 f32",
         "2, broadcast of 2 f32, root 1");
}

TEST(Mismatches, OfRootsEndWithTimeoutWhereASenderWaitsForItsReceiver) {
  for (const char* const backend : {"threads", "gloo"}) {
    if (!testing::missing_backend(backend).empty()) continue;
    const ProcessGroupOptions options{.timeout = milliseconds(300)};
    std::atomic<int> late{0};
    run_ranks(
        2,
        [&](ProcessGroup& threads) {
          ProcessGroup group(testing::maker_of(backend),
                             std::make_shared<PrefixStore>(backend, threads.store()),
                             threads.rank(), 2, options);
          try {
            group.broadcast(ones({2}), group.rank()).wait();
            ADD_FAILURE() << backend;
          } catch (const Error& error) {
            late += error.code() == ErrorCode::Timeout;
            EXPECT_TRUE(error.code() == ErrorCode::Timeout || error.code() == ErrorCode::PeerFailed)
                << error.what();
          }
        },
        kOptions);
    EXPECT_GE(late, 1) << backend;
  }
}

TEST_P(Mismatch, OfTheMemoryIsFound) {
  if (std::get<0>(GetParam()) != "shm") GTEST_SKIP() << "no memory that the ranks share";
  const auto memory = [](std::int64_t count) {
    return [=](ProcessGroup& group) {
      static_cast<void>(group.empty({count}));  // waits
      return group.barrier();
    };
  };
  expect(memory(2), memory(3), "2, empty of 8 bytes", "2, empty of 12 bytes");
}

TEST_P(Mismatch, OfTheNumberOfCallsIsFound) {
  expect(
      [](ProcessGroup& group) {
        group.all_reduce(ones({10})).wait();
        return group.all_reduce(ones({10}));
      },
      [](ProcessGroup& group) {
        group.all_reduce(ones({10})).wait();
        return group.barrier();
      },
      "3, all_reduce of 10 f32", "3, barrier");
}

// With some backends the sender has gone on before the receiver takes the message.
TEST_P(Mismatch, OfAMessagesDtypeIsFound) {
  expect([](ProcessGroup& group) { return group.send(ones({4}), 1); },
         [](ProcessGroup& group) {
           return group.rank() == 1 ? group.recv(ones({4}, DType::i32), 0) : group.barrier();
         },
         "(1, send of 4 f32|2, barrier)", "1, recv of 4 i32");
}

TEST(FingerprintTest, LetsPassWhatFits) {
  ProcessGroupOptions options = kOptions;
  options.check_fingerprints = true;
  run_ranks(
      3,
      [](ProcessGroup& group) {
        const int rank = group.rank();
        const ProcessGroup::Tag tag(std::string(1000, 'x'));
        const Tensor x = full({4}, rank), y = zeros({4});
        const Tensor all = zeros({3, 4});
        group.gather(rank == 2 ? all : Tensor(), x, 2).wait();
        group.scatter(y, rank == 2 ? all : Tensor(), 2).wait();
        EXPECT_EQ(numbers_of(y), Numbers(4, rank));
        // The two ranks of a message may use different tags, as stages of a pipeline do.
        const ProcessGroup::Tag own(rank == 0 ? ">F0.1" : "<F1.1");
        if (rank == 0) group.send(x, 1).wait();
        if (rank == 1) group.recv(x, 0).wait();
        const ProcessGroup::Tag shared("barrier");
        group.barrier().wait();
        EXPECT_EQ(group.broadcast_object(rank == 1 ? "object" : "", 1), "object");
      },
      options);
}

TEST(FingerprintTest, IsOnWhereTheEnvironmentSaysSo) {
  const auto is_on = [] { return ProcessGroup({}, {}, 0, 1).options().check_fingerprints; };
  ASSERT_FALSE(is_on());
  setenv("WEFT_DISTRIBUTED_DEBUG", "1", 1);
  EXPECT_TRUE(is_on());
  setenv("WEFT_DISTRIBUTED_DEBUG", "0", 1);
  EXPECT_FALSE(is_on());
  unsetenv("WEFT_DISTRIBUTED_DEBUG");
}

// --- Ranks that do not come to a new group -------------------------------------------------------

class MakingAGroup : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, MakingAGroup,
                         ::testing::Values("threads", "ring", "shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(MakingAGroup, ARankThatHasFailedIsNotWaitedFor) {
  const std::string missing = testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  in_groups(GetParam(), 3, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      note_failure(*group.store(), {.rank = 1, .cause = "killed by signal 9"});
    } else {
      EXPECT_WEFT_ERROR(group.duplicate(), PeerFailed,
                        "rank 1 failed before all ranks had connected: killed by signal 9");
    }
  });
}

// The errors of a subgroup's ranks when rank `failing` throws in its backend's `call`-th call of
// the store; none if there are fewer calls.
std::map<int, Error> errors_of_connecting(const std::string& backend,
                                          const std::vector<int>& subgroup, int failing, int call) {
  std::mutex mutex;
  std::map<int, Error> errors;
  run_ranks(
      4,
      [&](ProcessGroup& threads) {
        int makes = 0, calls = 0;
        const auto fail = [&](const std::string&) {
          if (calls++ == call) throw Error(ErrorCode::Io, "test", "enough", __FILE__, __LINE__);
        };
        const BackendMaker make = [&](std::shared_ptr<Store> store, int rank, int size,
                                      const Deadline& deadline) {
          if (++makes == 2 && threads.rank() == failing) {
            store = std::make_shared<weft::testing::HookedStore>(store, fail);
          }
          return testing::maker_of(backend)(store, rank, size, deadline);
        };
        ProcessGroup group(make, std::make_shared<PrefixStore>(backend, threads.store()),
                           threads.rank(), 4, kOptions);
        try {
          group.subgroup(subgroup);
        } catch (const Error& error) {
          const std::lock_guard lock(mutex);
          errors.emplace(group.rank(), error);
        }
      },
      kOptions);
  return errors;
}

TEST_P(MakingAGroup, ARankThatFailsWhileItConnectsIsNamedByTheOthers) {
  const std::string missing = testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  // With three threads the last may come when the first has left, which gives Comm.
  const bool threads = std::string_view(GetParam()) == "threads";
  const std::vector<int> subgroup = threads ? std::vector{1, 3} : std::vector{1, 2, 3};
  for (const int failing : subgroup) {
    for (int call = 0;; ++call) {
      SCOPED_TRACE(detail::concat("rank ", failing, " at call ", call));
      const auto errors = errors_of_connecting(GetParam(), subgroup, failing, call);
      if (errors.empty()) {
        EXPECT_GT(call, 0);
        break;
      }
      ASSERT_EQ(errors.size(), subgroup.size());
      for (const auto& [rank, error] : errors) {
        const std::string text = error.what();
        if (rank == failing) {
          EXPECT_TRUE(text.starts_with("[test] enough")) << text;
          continue;
        }
        ASSERT_EQ(error.code(), ErrorCode::PeerFailed) << text;
        const std::string name = "rank " + std::to_string(failing);
        EXPECT_TRUE(text.find(name + " failed first: [test] enough") != text.npos ||
                    text.find(name + " failed before all ranks had connected: [test] enough") !=
                        text.npos)
            << text;
      }
    }
  }
}

// A rank whose operation has failed, and which has handled the error, may go on with another group.
TEST_P(MakingAGroup, AnOldFailureOfARankThatComesEndsNoGroup) {
  const std::string missing = testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  in_groups(GetParam(), 3, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      note_failure(*group.store(), {.rank = 0, .cause = "nobody came", .timed_out = true});
    }
    group.barrier().wait();
    // The others check for failures meanwhile.
    if (group.rank() == 2) std::this_thread::sleep_for(2 * Deadline::kCheckEvery);
    group.duplicate()->barrier().wait();
  });
}

TEST_P(MakingAGroup, ARankThatHasHandledAnErrorMayBeLateForTheNextGroup) {
  const std::string missing = testing::missing_backend(GetParam());
  if (!missing.empty()) GTEST_SKIP() << missing;
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    EXPECT_THROW(group.duplicate()->all_reduce(ones({3 + group.rank()})).wait(), Error);
    group.barrier().wait();
    const auto first = find_failure(*group.run_store(), Deadline(testing::patience()));
    ASSERT_TRUE(first);
    if (group.rank() == first->rank) std::this_thread::sleep_for(2 * Deadline::kCheckEvery);
    group.duplicate()->barrier().wait();
  });
}

TEST(ProcessGroupTest, ARankThatHasNotHandledItsErrorIsNotWaitedFor) {
  const auto run = [] {
    run_ranks(
        2,
        [](ProcessGroup& group) {
          const Failure enough{.rank = 0, .cause = "enough"};
          if (group.rank() == 0) {
            note_own_failure(*group.store(), enough, false);
            throw Error(ErrorCode::Comm, "test", "enough", __FILE__, __LINE__);
          }
          find_failure(*group.store(), Deadline(testing::patience()));
          EXPECT_WEFT_ERROR(group.duplicate(), PeerFailed,
                            "rank 0 failed before all ranks had connected: enough");
        },
        kOptions);
  };
  EXPECT_WEFT_ERROR(run(), Comm, "enough");
}

// Without a launcher only the rank itself can say why its connections are closed.
TEST(ProcessGroupTest, WhoGivesUpAGroupSaysSoBeforeItClosesItsConnections) {
  for (const bool of_weft : {true, false}) {
    std::atomic<bool> said{false};
    run_ranks(
        2,
        [&](ProcessGroup& threads) {
          const auto store = std::make_shared<PrefixStore>("group", threads.store());
          const auto closed = [&](void*) {
            said = store->try_get("left") && store->try_get(kFailureKey);
          };
          const BackendMaker fails = [&](const std::shared_ptr<Store>&, int, int, const Deadline&) {
            const std::shared_ptr<void> connections(nullptr, closed);
            return closing_late(connections, [&]() -> std::unique_ptr<Backend> {
              if (of_weft) throw Error(ErrorCode::Comm, "test", "enough", __FILE__, __LINE__);
              throw std::runtime_error("enough");
            });
          };
          const BackendMaker waits = [&](const std::shared_ptr<Store>& keys, int, int,
                                         const Deadline& deadline) -> std::unique_ptr<Backend> {
            keys->get("never", deadline);
            return nullptr;
          };
          if (threads.rank() == 0) {
            EXPECT_WEFT_ERROR(ProcessGroup(waits, store, 0, 2, kOptions), PeerFailed,
                              "rank 1 failed before all ranks had connected: ");
          } else if (of_weft) {
            EXPECT_WEFT_ERROR(ProcessGroup(fails, store, 1, 2, kOptions), Comm, "enough");
          } else {
            EXPECT_WEFT_ERROR(ProcessGroup(fails, store, 1, 2, kOptions), Library, "enough");
          }
        },
        kOptions);
    EXPECT_TRUE(said);
  }
}

TEST(ProcessGroupTest, AStoreThatDoesNotAnswerForAMomentEndsNoGroup) {
  std::atomic<int> silent{0};
  run_ranks(
      2,
      [&](ProcessGroup& threads) {
        std::shared_ptr<Store> store = std::make_shared<PrefixStore>("ring", threads.store());
        if (threads.rank() == 0) {
          store->get("arrival/1", testing::patience());
          std::this_thread::sleep_for(milliseconds(500));  // rank 1 asks which rank has failed
        } else {
          const auto ask = [&](const std::string& key) {
            if (key != kFailureKey && (key != "backend/addr/0" || silent == 3)) return;
            if (key != kFailureKey) ++silent;
            weft::testing::store_times_out();
          };
          store = std::make_shared<weft::testing::HookedStore>(store, ask);
        }
        ProcessGroup group(ring_backend("127.0.0.1"), store, threads.rank(), 2, kOptions);
        group.barrier().wait();
      },
      kOptions);
  EXPECT_EQ(silent, 3);
}

// The rank that waits a moment longer learns from the other that it gave up, and why.
RANKS_TEST(ProcessGroupTest, ARankThatDoesNotComeToAGroupIsNamed, 4,
           {.timeout = milliseconds(2000)}) {
  const auto part = group.subgroup({1, 2, 3});
  if (group.rank() % 2 == 0) return;
  if (group.rank() == 3) std::this_thread::sleep_for(milliseconds(500));
  try {
    part->duplicate();
    ADD_FAILURE() << "a group without rank 2";
  } catch (const Error& error) {
    const std::string seen = "rank 2 did not come to make a group within 2 s, seen on rank ";
    const std::string other = std::to_string(4 - group.rank());
    if (error.code() == ErrorCode::Timeout) {
      EXPECT_HAS(error.what(), seen + std::to_string(group.rank()));
    } else {
      EXPECT_EQ(error.code(), ErrorCode::PeerFailed) << error.what();
      EXPECT_HAS(error.what(), "rank " + other + " was the first to give up");
      EXPECT_HAS(error.what(), seen + other);
    }
  }
}

TEST(MonitoredBarrierTest, NamesTheMissingRanksToAllThatCame) {
  std::atomic<int> told{0};
  run_ranks(
      4,
      [&](ProcessGroup& group) {
        group.monitored_barrier(milliseconds(30'000));
        if (group.rank() % 2 == 0) {
          EXPECT_WEFT_ERROR(
              group.monitored_barrier(milliseconds(1000)), Timeout,
              "ranks 1, 3 did not come within 1 s, seen on rank " + std::to_string(group.rank()));
          ++told;
        }
      },
      kOptions);
  EXPECT_EQ(told, 2);
}

RANKS_TEST(MonitoredBarrierTest, MissesRank0Too, 3, kOptions) {
  if (group.rank() == 0) return;
  EXPECT_WEFT_ERROR(group.monitored_barrier(milliseconds(200)), Timeout,
                    "rank 0 did not come within 200 ms");
}

TEST(MonitoredBarrierTest, LeavesNothingOfItselfBehind) {
  const auto seen = std::make_shared<MemoryStore>();
  run_ranks(
      2,
      [&](ProcessGroup& threads) {
        ProcessGroup group(thread_backend(), seen, threads.rank(), 2, kOptions);
        for (int round = 0; round < 3; ++round) group.monitored_barrier(milliseconds(30'000));
        group.barrier().wait();
      },
      kOptions);
  for (const std::string round : {"barrier/0/", "barrier/1/"}) {
    for (const char* const what : {"0", "1", "missing"}) {
      EXPECT_FALSE(seen->try_get(round + what)) << round << what;
    }
  }
  EXPECT_TRUE(seen->try_get("barrier/2/missing"));
}

// Also if it was late for several, whose results the others read long ago.
TEST(MonitoredBarrierTest, ALateRankHearsAtOnceThatItWasMissing) {
  const auto seen = std::make_shared<MemoryStore>();
  run_ranks(
      3,
      [&](ProcessGroup& threads) {
        ProcessGroup group(thread_backend(), seen, threads.rank(), 3, kOptions);
        const auto miss = [&] {
          for (int round = 0; round < 2; ++round) {
            EXPECT_WEFT_ERROR(group.monitored_barrier(milliseconds(200)), Timeout,
                              "rank 2 did not come within 200 ms");
          }
        };
        if (group.rank() < 2) miss();
        group.barrier().wait();
        if (group.rank() == 2) miss();
        group.monitored_barrier(milliseconds(30'000));
        group.barrier().wait();
      },
      kOptions);
  for (const std::string round : {"barrier/0/", "barrier/1/"}) {
    for (const char* const what : {"0", "1", "2", "missing"}) {
      EXPECT_FALSE(seen->try_get(round + what)) << round << what;
    }
  }
}

TEST(ProcessGroupTest, ObjectsAreBounded) {
  // These pages are never touched.
  constexpr std::size_t kBytes = (std::size_t{1} << 30) + 1;
  void* const pages =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const std::string_view huge(static_cast<const char*>(pages), kBytes);
  run_ranks(
      2,
      [&](ProcessGroup& group) {
        const std::string_view mine = group.rank() == 1 ? huge : "";
        EXPECT_WEFT_ERROR(group.broadcast_object(mine, 1), InvalidArgument,
                          "objects of 1073741825 bytes; at most 1073741824 go at once");
        EXPECT_WEFT_ERROR(group.all_gather_object(mine.substr(0, kBytes / 2 + 1)), InvalidArgument,
                          "objects of 1073741826 bytes");
      },
      kOptions);
  munmap(pages, kBytes);
}

}  // namespace
}  // namespace weft::comm
