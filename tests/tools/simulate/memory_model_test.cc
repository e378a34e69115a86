// The predicted memory, compared with what the engines need.
#include "weft/tools/simulate/memory_model.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/optim/adam.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/vocab_loss.h"
#include "weft/parallel/zero.h"
#include "weft/tools/simulate/measure.h"

namespace weft::simulator {
namespace {

// Bytes by the names of MemoryOwner, for the rank that needs the most of each.
using Use = std::map<std::string, double>;

// A step of two ranks, the third one. `make` prepares the engine and returns what runs a step.
using Make = std::function<std::function<void(const Tensor& x, const Tensor& target)>(
    nn::Sequential model, const Program& program, comm::ProcessGroup& group,
    std::vector<std::shared_ptr<void>>& kept)>;

// With `together` all ranks share one device.
Use measured(const std::string& name, std::int64_t rows, int ranks, const Make& make,
             bool together = false) {
  set_host_devices(ranks);
  std::vector<MemoryStats> stats(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::ProcessGroup& group) {
    const Device device(DeviceType::cpu, together ? 0 : group.rank());
    const Scoped here(&ThreadState::device, device);
    const EnableGrad recording;
    Program program = make_program(name);
    const nn::Sequential model = program.layers;
    program.layers = {};
    std::vector<std::shared_ptr<void>> kept;
    const auto step = make(model, program, group, kept);
    const auto [x, target] = program.batch(rows);
    for (int i = 0; i < 3; ++i) {
      group.barrier().wait();
      if (i == 2) reset_peak_memory(device);
      step(x, target);
    }
    stats[static_cast<std::size_t>(group.rank())] = memory_stats(device);
    group.barrier().wait();
  });
  Use most;
  for (const MemoryStats& of_rank : stats) {
    for (int i = 0; i < kMemoryOwners; ++i) {
      double& bytes = most[to_string(static_cast<MemoryOwner>(i))];
      bytes =
          std::max(bytes, static_cast<double>(of_rank.most_by_owner[static_cast<std::size_t>(i)]));
    }
    double& all = most["all"];
    all = std::max(all, static_cast<double>(of_rank.peak_in_use_bytes));
  }
  set_host_devices(1);
  return most;
}

Use predicted(const std::string& name, std::int64_t batch, int ranks, const std::string& engine) {
  Program program = make_program(name);
  program.sizes = {1, 4};
  const MemoryUse use = memory_of(sizes_of(program, ranks), {engine, batch, ranks});
  Use by_owner(use.most.begin(), use.most.end());
  by_owner["all"] = use.peak;
  return by_owner;
}

Make by_ddp(bool zero) {
  return [zero](nn::Sequential model, const Program& program, comm::ProcessGroup& group,
                auto& kept) -> std::function<void(const Tensor&, const Tensor&)> {
    const auto ddp =
        std::make_shared<parallel::DistributedDataParallel<nn::Sequential>>(model, group);
    std::shared_ptr<optim::Optimizer> adam;
    if (zero) {
      adam = std::make_shared<parallel::ZeroRedundancyOptimizer<optim::Adam>>(
          optim::Adam(model.parameters(), {}), group);
    } else {
      adam = program.make_optimizer(model.parameters());
    }
    kept = {ddp, adam};
    return [ddp, adam, &program](const Tensor& x, const Tensor& target) {
      adam->zero_grad();
      program.loss((*ddp)(x), target).backward();
      adam->step();
    };
  };
}

Make by_fully_shard(bool reshard) {
  return [reshard](nn::Sequential model, const Program& program, comm::ProcessGroup& group,
                   auto& kept) -> std::function<void(const Tensor&, const Tensor&)> {
    parallel::FullyShardOptions how;
    if (!reshard) how.reshard_after_forward = false;
    for (std::size_t i = 0; i < model.size(); ++i) {
      if (!model[i].parameters().empty() && program.own_unit(i)) {
        parallel::fully_shard(model[i], group, how);
      }
    }
    parallel::fully_shard(model, group, how);
    const std::shared_ptr<optim::Optimizer> adam = program.make_optimizer(model.parameters());
    kept = {adam};
    return [model, adam, &program](const Tensor& x, const Tensor& target) mutable {
      adam->zero_grad();
      program.loss(model(x), target).backward();
      adam->step();
    };
  };
}

Make by_parallelize() {
  return [](nn::Sequential model, const Program& program, comm::ProcessGroup& group,
            auto& kept) -> std::function<void(const Tensor&, const Tensor&)> {
    using namespace parallel;
    const auto tp = std::make_shared<Parallelized>(parallelize(model, group, program.plan));
    const std::shared_ptr<optim::Optimizer> adam = program.make_optimizer(model.parameters());
    kept = {tp, adam};
    return [model, tp, adam, &program](const Tensor& x, const Tensor& target) mutable {
      adam->zero_grad();
      parallel::cross_entropy(tp->ranks(), model(x).flatten(0, 1), target.flatten(),
                              program.characters)
          .backward();
      adam->step();
    };
  };
}

// `exact`: owners whose bytes must be equal. The peak of the sum must agree to `within`.
void expect_predicted(const std::string& program, const std::string& engine, int ranks,
                      std::int64_t rows, const Make& make, double within,
                      const std::vector<std::string>& exact = {
                          "parameters", "optimizer", "whole parameters", "communication"}) {
  SCOPED_TRACE(program + ' ' + engine + ", ranks " + std::to_string(ranks));
  const Use real = measured(program, rows, ranks, make);
  Use said = predicted(program, engine == "tp" ? rows : rows * ranks, ranks, engine);
  for (const std::string& owner : exact) EXPECT_EQ(said[owner], real.at(owner)) << owner;
  EXPECT_NEAR(said["all"] / real.at("all"), 1, within)
      << ::testing::PrintToString(said) << ::testing::PrintToString(real);
}

class MemoryOf : public ::testing::TestWithParam<std::string> {};

// For a moment the gradients of parameters exist beside the buckets into which they are copied.
TEST_P(MemoryOf, Ddp) {
  for (const int n : {2, 3}) {
    expect_predicted(GetParam(), "ddp", n, 4, by_ddp(false), 0.03);
    // Its messages of small parameters count as activations in the engine.
    expect_predicted(GetParam(), "zero1", n, 4, by_ddp(true), 0.03, {"parameters", "optimizer"});
  }
}

TEST_P(MemoryOf, FullyShard) {
  for (const int n : {2, 3}) {
    expect_predicted(GetParam(), "fsdp", n, 4, by_fully_shard(true), 0.03);
    expect_predicted(GetParam(), "zero2", n, 4, by_fully_shard(false), 0.03);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, MemoryOf, ::testing::Values("mlp_adam", "char_transformer"),
                         [](const auto& info) { return info.param; });

TEST(Memory, OfTensorParallelism) {
  const Use real = measured("char_transformer", 4, 2, by_parallelize(), true);
  Use said = predicted("char_transformer", 4, 2, "tp");
  // The two row-wise layers of each block have zeros of 256 bytes in place of their biases.
  said["parameters"] += 4 * 512;
  for (const std::string owner : {"parameters", "optimizer"}) {
    EXPECT_EQ(2 * said[owner], real.at(owner)) << owner;
  }
}

}  // namespace
}  // namespace weft::simulator
