// fully_shard: how much memory a rank needs, and how many bytes it sends.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/core/runtime/allocator.h"
#include "weft/nn/module_list.h"
#include "weft/optim/adam.h"
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

// Eight equal units, and a root of two small layers. All divide by 4.
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kRootBytes = 4 * (8 * kWidth + kWidth + kWidth * 4 + 4);
struct Tower : nn::Module<Tower> {
  nn::Linear in = child("in", nn::Linear(8, kWidth));
  nn::ModuleList<nn::Sequential> blocks = child("blocks", nn::ModuleList<nn::Sequential>());
  nn::Linear out = child("out", nn::Linear(kWidth, 4));
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

TEST_F(FullyShardTest, AStepSendsAThirdMoreThanDdpAtMost) {
  for (const char* const backend : {"ring", "shm"}) {
    for (const auto& [reshard, root_too] :
         {std::pair(std::optional<bool>(), false), {true, true}, {false, false}}) {
      for (const auto& [n, checkpoints] : {std::pair(2, false), {4, false}, {2, true}}) {
        SCOPED_TRACE(::testing::Message()
                     << backend << ' ' << n << ' ' << reshard.value_or(true) << ' ' << checkpoints);
        std::atomic<std::int64_t> sent = 0;
        std::int64_t expected = 0;
        const bool recomputes = checkpoints;
        const int ranks = n;
        comm::testing::in_groups(
            backend, n, [&, reshard = reshard, root_too = root_too](comm::ProcessGroup& group) {
              Tower model = testing::seeded(3, [&] { return Tower(recomputes); });
              const std::int64_t all = bytes_of(model.parameters());
              const FullySharded sharded =
                  cut_blocks(model, group, {.reshard_after_forward = reshard});
              const Tensor x = uniform({4, 8}, -1, 1);
              std::int64_t before = 0;
              for (int i = 0; i < 3; ++i) {  // the first one finds the order
                before = sharded.traffic().bytes_sent;
                model.zero_grad();
                model(x).sum().backward();
              }
              sent += sharded.traffic().bytes_sent - before;
              if (group.rank() != 0) return;
              const bool frees = recomputes || reshard.value_or(true);
              const std::int64_t root = frees && !root_too ? kRootBytes : 0;
              expected = (ranks - 1) * ((frees ? 3 : 2) * all - root);
              // The units' numbers, of 8 bytes: one in a gather, one for each rank in a reduction.
              const std::int64_t gathers = 9 + (frees ? 8 : 0) + (root_too ? 1 : 0);
              expected += 8 * ranks * (ranks - 1) * (gathers + 9 * ranks);
            });
        // shm counts what a ring would send, rounded down.
        EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(expected), 8 * 27 * n);
      }
    }
  }
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
      const std::int64_t all = bytes_of(model.parameters());
      const std::int64_t of_root = kRootBytes, of_block = (all - of_root) / 8;
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
      constexpr std::int64_t kRounding = 16 * 512;
      EXPECT_LE(most(MemoryOwner::parameters), all / n + kRounding);
      EXPECT_LE(most(MemoryOwner::optimizer), 2 * all / n + 2 * kRounding);
      EXPECT_LE(most(MemoryOwner::whole_parameters), of_root + 2 * of_block + kRounding);
      EXPECT_LE(most(MemoryOwner::communication), 2 * of_block + kRounding);
      EXPECT_LE(most(MemoryOwner::gradients),
                all / n + of_root + of_block + of_block / n + kRounding);
      EXPECT_GT(most(MemoryOwner::whole_parameters), 0);
      EXPECT_GT(most(MemoryOwner::communication), 0);
    });
  }
}

}  // namespace
}  // namespace weft::parallel
