#include "weft/train/memory_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/linear.h"
#include "weft/optim/adam.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"

namespace weft::train {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

Tensor hold(std::int64_t bytes, Device device, MemoryOwner owner) {
  const Scoped scope(&ThreadState::memory_owner, owner);
  return empty({bytes}, {DType::u8, device});
}

TEST(MemoryTable, SaysWhoHoldsWhatAndWhyTheFirstHoldsMore) {
  set_host_devices(3);
  const Device one("cpu:1"), two("cpu:2");
  {
    const Tensor a = hold(3 * kMiB, one, MemoryOwner::gathered),
                 b = hold(4 * kMiB, one, MemoryOwner::parameters);
  }
  // Neither is there at its device's peak.
  hold(kMiB, one, MemoryOwner::activations);
  hold(4096, two, MemoryOwner::gradients);
  const Tensor c = hold(4096, two, MemoryOwner::batches),
               d = hold(4 * kMiB, two, MemoryOwner::parameters);
  const std::string table = memory_table(std::vector{one, two});
  EXPECT_EQ(
      table,
      "memory                                 cpu:1                      cpu:2\n"
      "                    at its peak      at most   at its peak      at most\n"
      "activations                 0 B     1.00 MiB           0 B          0 B\n"
      "parameters             4.00 MiB     4.00 MiB      4.00 MiB     4.00 MiB\n"
      "gradients                   0 B          0 B           0 B     4.00 KiB\n"
      "gathered outputs       3.00 MiB     3.00 MiB           0 B          0 B\n"
      "batches                     0 B          0 B      4.00 KiB     4.00 KiB\n"
      "together               7.00 MiB                   4.00 MiB\n"
      "Gradients are those of weights and, until a layer's backward has used them, of "
      "activations.\n"
      "The peak of cpu:1 is 2.99 MiB above that of cpu:2: 3.00 MiB more of gathered outputs (the "
      "outputs of all devices are gathered there), 4.00 KiB less of batches.\n");
  EXPECT_TRUE(memory_table(std::vector{one, two}, /*model_in_parts=*/true)
                  .ends_with("3.00 MiB more of gathered outputs, 4.00 KiB less of batches; the "
                             "parts of the model differ.\n"));
  EXPECT_LACKS(memory_table(std::vector{two}), "above");
}

TEST(MemoryTable, IsThatOfAllRanks) {
  // What rank 1 of 2 has held; rank 0 says the same of itself.
  MemoryStats own{.peak_in_use_bytes = 3 * kMiB};
  own.most_by_owner[static_cast<std::size_t>(MemoryOwner::whole_parameters)] = 2 * kMiB;
  own.most_by_owner[static_cast<std::size_t>(MemoryOwner::optimizer)] = 1536;
  std::string of_other(20 * sizeof(double), '\0');
  const double peak = 512;
  std::memcpy(of_other.data() + 9 * sizeof(double), &peak, sizeof(double));
  const auto by_rank =
      memory_by_rank({own}, {.rank = 1, .size = 2, .gather = [&](const auto& text) {
                               return std::vector{of_other, text};
                             }});
  EXPECT_EQ(by_rank[1], (TestFigures{{"activations", 0},
                                     {"parameters", 0},
                                     {"gradients", 0},
                                     {"optimizer", 1536},
                                     {"gathered_outputs", 0},
                                     {"batches", 0},
                                     {"data_set", 0},
                                     {"whole_parameters", 2 * kMiB},
                                     {"communication", 0},
                                     {"peak", 3 * kMiB}}));
  EXPECT_EQ(memory_table(by_rank),
            "memory, at most         rank 0       rank 1\n"
            "optimizer                  0 B     1.50 KiB\n"
            "whole parameters           0 B     2.00 MiB\n"
            "all at once              512 B     3.00 MiB");
}

TEST(MemoryTable, IsThatOfTheDevicesOfAProcess) {
  set_host_devices(3);
  const Device two("cpu:2");
  const Tensor x = hold(kMiB, two, MemoryOwner::batches);
  const std::vector<MemoryStats> held = memory_of_rank(Device("cpu:0"), {});
  EXPECT_EQ(held.back().in_use_bytes, memory_stats(two).in_use_bytes);
  EXPECT_EQ(memory_of_rank(two, {.rank = 0, .size = 2}).size(), 1U);
  EXPECT_EQ(memory_by_rank(held, {}).size(), held.size());
}

// In a training step, by the sizes of its tensors.
TEST(MemoryOwners, AreThoseOfATrainingStep) {
  constexpr std::int64_t kSide = 512, kBytes = kSide * kSide * 4;
  const auto in_use = [](MemoryOwner owner) {
    return memory_stats(Device()).in_use_by_owner[static_cast<std::size_t>(owner)];
  };
  nn::Linear fc(kSide, kSide, false);
  EXPECT_EQ(in_use(MemoryOwner::parameters), kBytes);
  optim::Adam adam(fc.parameters());
  {
    const Tensor y = fc(zeros({kSide, kSide}));
    EXPECT_EQ(in_use(MemoryOwner::activations), 2 * kBytes);
    y.backward(y);
  }
  EXPECT_EQ(in_use(MemoryOwner::gradients), kBytes);
  adam.step();
  EXPECT_EQ(in_use(MemoryOwner::optimizer), 2 * kBytes);
  EXPECT_EQ(in_use(MemoryOwner::gradients), kBytes);
  fc.to(DType::f64);
  EXPECT_EQ(in_use(MemoryOwner::parameters), 2 * kBytes);
  EXPECT_EQ(in_use(MemoryOwner::gradients), 2 * kBytes);
}

}  // namespace
}  // namespace weft::train
