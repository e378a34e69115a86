// fully_shard: how much memory a rank needs, and how many bytes it sends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/core/runtime/allocator.h"
#include "weft/nn/module_list.h"
#include "weft/optim/adam.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/parallel/sharded_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;

std::int64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& x : tensors) sum += x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
  return sum;
}

// Eight equal units, and a root of two small layers. All divide by 2, 3 and 4.
constexpr std::int64_t kWidth = 72;
constexpr std::int64_t kRootBytes = 4 * (8 * kWidth + kWidth + kWidth * 12 + 12);
constexpr std::int64_t kBlockBytes = 4 * (2 * kWidth * 4 * kWidth + 5 * kWidth);
constexpr std::int64_t kBytes = kRootBytes + 8 * kBlockBytes;
struct Tower : nn::Module<Tower> {
  nn::Linear in = child("in", nn::Linear(8, kWidth));
  nn::ModuleList<nn::Sequential> blocks = child("blocks", nn::ModuleList<nn::Sequential>());
  nn::Linear out = child("out", nn::Linear(kWidth, 12));
  bool checkpoints;

  explicit Tower(bool with_checkpoints) : checkpoints(with_checkpoints) {
    for (int i = 0; i < 8; ++i) {
      blocks.append({nn::Linear(kWidth, 4 * kWidth), nn::Tanh(), nn::Linear(4 * kWidth, kWidth)});
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = in(x);
    for (nn::Sequential& block : blocks) {
      y = checkpoints
              ? autograd::checkpoint([block](const Tensor& z) mutable { return block(z); }, y)
              : block(y);
    }
    return out(y);
  }
};
FullySharded cut_blocks(Tower& model, comm::ProcessGroup& group,
                        const FullyShardOptions& options = {}) {
  for (nn::Sequential& block : model.blocks) fully_shard(block, group, options);
  return fully_shard(model, group, options);
}

struct Steps {
  std::function<void()> step;
  std::function<std::int64_t()> bytes_sent;
};

// What n ranks send together in a step. The first one finds the order, the second one repeats it.
void expect_bytes(const char* backend, int n, std::int64_t expected,
                  const std::function<Steps(comm::ProcessGroup&)>& make) {
  std::atomic<std::int64_t> sent = 0;
  comm::testing::in_groups(backend, n, [&](comm::ProcessGroup& group) {
    const Steps steps = make(group);
    std::int64_t before = 0;
    for (int i = 0; i < 3; ++i) {
      before = steps.bytes_sent();
      steps.step();
    }
    sent += steps.bytes_sent() - before;
  });
  // shm counts what a ring would send, rounded down.
  EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(expected), 8 * 27 * n);
}

std::function<void()> steps_of(Tower model) {
  return [model, x = uniform({4, 8}, -1, 1)]() mutable {
    model.zero_grad();
    model(x).sum().backward();
  };
}

constexpr const char* kBackends[] = {"ring", "shm"};

TEST_F(FullyShardTest, AStepSendsAThirdMoreThanDdpAtMost) {
  for (const char* const backend : kBackends) {
    for (const auto& [reshard, root_too] :
         {std::pair(std::optional<bool>(), false), {true, true}, {false, false}}) {
      for (const auto& [n, checkpoints] :
           {std::pair(2, false), {3, false}, {4, false}, {2, true}, {3, true}, {4, true}}) {
        SCOPED_TRACE(::testing::Message() << backend << ' ' << n << ' ' << reshard.value_or(true)
                                          << root_too << ' ' << checkpoints);
        const bool frees = reshard.value_or(true);
        const std::int64_t root = frees && !root_too ? kRootBytes : 0;
        expect_bytes(backend, n, (n - 1) * ((frees ? 3 : 2) * kBytes - root),
                     [&, reshard = reshard, recomputes = checkpoints](comm::ProcessGroup& group) {
                       Tower model = testing::seeded(3, [&] { return Tower(recomputes); });
                       const FullySharded sharded =
                           cut_blocks(model, group, {.reshard_after_forward = reshard});
                       return Steps{steps_of(model), [=] { return sharded.traffic().bytes_sent; }};
                     });
      }
    }
  }
}

TEST_F(FullyShardTest, AStepOfDdpSendsTwoThirds) {
  for (const char* const backend : kBackends) {
    for (int n = 2; n <= 4; ++n) {
      SCOPED_TRACE(::testing::Message() << backend << ' ' << n);
      expect_bytes(backend, n, (n - 1) * 2 * kBytes, [](comm::ProcessGroup& group) {
        Tower model(false);
        const auto ddp = std::make_shared<DistributedDataParallel<Tower>>(model, group);
        const auto step = [ddp, model, x = uniform({4, 8}, -1, 1)]() mutable {
          model.zero_grad();
          (*ddp)(x).sum().backward();
        };
        return Steps{step, [&group] { return group.traffic().bytes_sent; }};
      });
    }
  }
}

// Two whole units, and the weights of a third one.
TEST_F(FullyShardTest, FrozenParametersAreGatheredAndNeverReduced) {
  constexpr std::int64_t kFrozen = 2 * kBlockBytes + 4 * 2 * kWidth * 4 * kWidth;
  for (const char* const backend : kBackends) {
    for (int n = 2; n <= 4; ++n) {
      SCOPED_TRACE(::testing::Message() << backend << ' ' << n);
      expect_bytes(backend, n, (n - 1) * (3 * kBytes - kRootBytes - kFrozen),
                   [](comm::ProcessGroup& group) {
                     Tower model(false);
                     model.blocks[1].requires_grad(false);
                     model.blocks[4].requires_grad(false);
                     for (const auto& [name, x] : model.blocks[6].named_parameters()) {
                       if (name.ends_with("weight")) x.set_requires_grad(false);
                     }
                     const FullySharded sharded = cut_blocks(model, group);
                     return Steps{steps_of(model), [=] { return sharded.traffic().bytes_sent; }};
                   });
    }
  }
}

// A step gathers each unit for its forward, each block again for its backward, and reduces each
// unit once. The handle of a block counts that block alone.
TEST_F(FullyShardTest, StatisticsCountGathersAndReductions) {
  for (int n = 1; n <= 4; ++n) {
    SCOPED_TRACE(n);
    comm::run_ranks(n, [](comm::ProcessGroup& group) {
      Tower model(false);
      const FullySharded block = fully_shard(model.blocks[0], group);
      for (std::size_t i = 1; i < 8; ++i) fully_shard(model.blocks[i], group);
      const FullySharded sharded = fully_shard(model, group);
      EXPECT_EQ(sharded.stats().gathers, 0);
      const auto step = steps_of(model);
      for (int i = 1; i <= 3; ++i) {
        step();
        const FullyShardStats all = sharded.stats(), one = block.stats();
        EXPECT_EQ(all.gathers, i * (9 + 8));
        EXPECT_EQ(all.bytes_gathered, i * (kBytes + 8 * kBlockBytes));
        EXPECT_EQ(all.reductions, i * 9);
        EXPECT_EQ(all.bytes_reduced, i * kBytes);
        EXPECT_EQ(one.gathers, i * 2);
        EXPECT_EQ(one.bytes_gathered, i * 2 * kBlockBytes);
        EXPECT_EQ(one.reductions, i);
        EXPECT_EQ(one.bytes_reduced, i * kBlockBytes);
        EXPECT_GE(all.gather_wait_ms, one.gather_wait_ms);
        EXPECT_GE(all.reduce_wait_ms, one.reduce_wait_ms);
      }
      const FullyShardStats before = sharded.stats();
      {
        const auto local = sharded.no_sync();
        step();
      }
      const FullyShardStats after = sharded.stats();
      EXPECT_EQ(after.gathers - before.gathers, 9 + 8);
      EXPECT_EQ(after.reductions, before.reductions);
    });
  }
}

// The one that is asked for parameters first waits for the one that comes later.
TEST_F(FullyShardTest, StatisticsTellHowLongARankWaited) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Tower model(false);
    const FullySharded sharded = cut_blocks(model, group);
    const auto step = steps_of(model);
    step();
    const double before = sharded.stats().gather_wait_ms;
    group.barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    step();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    const double waited = sharded.stats().gather_wait_ms - before;
    EXPECT_LE(waited, took.count());
    if (group.rank() == 0) {
      EXPECT_GE(waited, 100);
    }
  });
}

// With whole parameters backward waits for gradients alone.
TEST_F(FullyShardTest, StatisticsTellHowLongARankWaitedForGradients) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Tower model(false);
    const FullySharded sharded = cut_blocks(model, group, {.reshard_after_forward = false});
    steps_of(model)();  // finds the order
    const FullyShardStats before = sharded.stats();
    const Tensor loss = model(uniform({4, 8}, -1, 1)).sum();
    group.barrier().wait();
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    loss.backward();
    if (group.rank() == 0) {
      EXPECT_GE(sharded.stats().reduce_wait_ms - before.reduce_wait_ms, 100);
    }
  });
}

TEST(FullyShardMemoryTest, ARankHasItsPartAndAFewUnits) {
  set_host_devices(4);
  for (const auto& [n, checkpoints] :
       {std::pair(1, false), {2, false}, {4, false}, {2, true}, {4, true}}) {
    SCOPED_TRACE(::testing::Message() << n << ' ' << checkpoints);
    comm::run_ranks(n, [&, n = n, recomputes = checkpoints](comm::ProcessGroup& group) {
      const Device device(DeviceType::cpu, group.rank());
      const auto most = [&](MemoryOwner owner) {
        return memory_stats(device).most_by_owner[static_cast<std::size_t>(owner)];
      };
      Tower model = testing::seeded(3, [&] { return Tower(recomputes); });
      model.to(device);
      const std::int64_t all = kBytes, of_root = kRootBytes, of_block = kBlockBytes;
      ASSERT_EQ(bytes_of(model.parameters()), all);
      cut_blocks(model, group);
      optim::Adam adam(model.parameters());
      const Tensor x = uniform({1, 8}, -1, 1).to(device);
      for (int i = 0; i < 2; ++i) {
        reset_peak_memory(device);
        adam.zero_grad();
        model(x).sum().backward();
        adam.step();
      }
      // Blocks of the allocator are multiples of 512 bytes.
      const std::int64_t kRounding = 512 * std::ssize(model.parameters());
      EXPECT_LE(most(MemoryOwner::parameters), all / n + kRounding);
      EXPECT_LE(most(MemoryOwner::optimizer), 2 * (all / n + kRounding));
      EXPECT_LE(most(MemoryOwner::whole_parameters), of_root + 2 * of_block + kRounding);
      EXPECT_LE(most(MemoryOwner::communication), 2 * of_block + kRounding);
      EXPECT_LE(most(MemoryOwner::gradients), all / n + of_root + of_block + kRounding);
      // Besides the parts there are never more at once than the root, two units, a buffer for a
      // gather, the gradients of a unit, and a buffer for their sum.
      const auto& peak = memory_stats(device).peak_by_owner;
      const auto at_peak = [&](MemoryOwner owner) { return peak[static_cast<std::size_t>(owner)]; };
      EXPECT_LE(at_peak(MemoryOwner::whole_parameters) + at_peak(MemoryOwner::communication) +
                    at_peak(MemoryOwner::gradients),
                all / n + of_root + 5 * of_block + kRounding);
      EXPECT_GT(most(MemoryOwner::whole_parameters), 0);
      EXPECT_GT(most(MemoryOwner::communication), 0);
    });
  }
}

/// Its forward calls `left`, `right` or neither; `between` is called before.
struct TwoWays : nn::Module<TwoWays> {
  nn::Linear first = child("first", nn::Linear(32, 32));
  nn::Linear left = child("left", nn::Linear(32, 32));
  nn::Linear right = child("right", nn::Linear(32, 32));
  nn::Linear last = child("last", nn::Linear(32, 32));
  Tensor forward(const Tensor& x, const std::string& way, const std::function<void()>& between) {
    const Tensor y = first(x);
    between();
    if (way == "back") return y;
    return last(way == "left" ? left(y) : right(y));
  }
};

TEST(FullyShardMemoryTest, WhatIsFetchedInVainIsFreed) {
  set_host_devices(3);
  for (const int n : {2, 3}) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const Device device(DeviceType::cpu, group.rank());
      const auto messages = [&] {
        const auto& by_owner = memory_stats(device).in_use_by_owner;
        return by_owner[static_cast<std::size_t>(MemoryOwner::communication)];
      };
      TwoWays model;
      model.to(device);
      const std::int64_t bytes = bytes_of(model.left.parameters());
      // Frozen, so that a backward may leave them out.
      for (nn::Linear* layer : {&model.left, &model.right, &model.last}) {
        layer->requires_grad(false);
      }
      cut_children(model, group, [](const std::string& name) { return !name.empty(); });
      const auto is_whole = [](const nn::Linear& layer) {
        return !layer.weight.storage()->released();
      };
      const Tensor x = uniform({4, 32}, -1, 1).to(device);
      const std::int64_t before = messages();
      std::string last;  // `way` in the step before
      for (const std::string way : {"left", "left", "right", "left", "back", "left", "right"}) {
        SCOPED_TRACE(way + " after " + last);
        const Tensor y = model(x, way, [&] {
          // The gather of the unit that came next in an earlier step has been started.
          EXPECT_EQ(messages() >= before + bytes, !last.empty());
        });
        EXPECT_EQ(messages(), before);
        EXPECT_FALSE(is_whole(model.left) || is_whole(model.right));
        y.sum().backward();
        EXPECT_EQ(messages(), before);
        EXPECT_FALSE(is_whole(model.left) || is_whole(model.right));
        model.zero_grad();
        last = way;
      }
    });
  }
}

TEST(FullyShardMemoryTest, ASteadyStepTakesNoMemoryOfTheDriver) {
  set_host_devices(4);
  for (const auto& [reshard, checkpoints] :
       {std::pair(std::optional<bool>(), false), {{}, true}, {false, false}, {false, true}}) {
    SCOPED_TRACE(::testing::Message() << reshard.value_or(true) << ' ' << checkpoints);
    for (const int n : {1, 2, 4}) {
      comm::run_ranks(n, [&, how = reshard, recomputes = checkpoints](comm::ProcessGroup& group) {
        const Device device(DeviceType::cpu, group.rank());
        Tower model = testing::seeded(3, [&] { return Tower(recomputes); });
        model.to(device);
        const FullySharded sharded = cut_blocks(model, group, {.reshard_after_forward = how});
        optim::Adam adam(model.parameters());
        const Tensor x = uniform({4, 8}, -1, 1).to(device);
        std::int64_t before = 0;
        for (int i = 0; i < 8; ++i) {
          adam.zero_grad();
          model(x).sum().backward();
          sharded.clip_grad_norm(1);
          adam.step();
          if (i == 2) before = memory_stats(device).driver_allocations;
        }
        EXPECT_EQ(memory_stats(device).driver_allocations, before);
      });
    }
  }
}

}  // namespace
}  // namespace weft::parallel
