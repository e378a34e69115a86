#include "weft/train/memory_table.h"

#include <gtest/gtest.h>

#include <string>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/linear.h"
#include "weft/optim/adam.h"
#include "weft/tensor/creation.h"

namespace weft::train {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

Tensor hold(std::int64_t mib, Device device, MemoryOwner owner) {
  const Scoped scope(&ThreadState::memory_owner, owner);
  return empty({mib * kMiB}, {DType::u8, device});
}

TEST(MemoryTable, SaysWhoHoldsWhatAndWhyTheFirstHoldsMore) {
  set_host_devices(3);
  const Device one("cpu:1"), two("cpu:2");
  {
    const Tensor a = hold(3, one, MemoryOwner::gathered), b = hold(4, one, MemoryOwner::parameters);
  }
  const Tensor c = hold(4, two, MemoryOwner::parameters);
  const std::string table = memory_table(std::vector{one, two});
  EXPECT_EQ(table,
            "peak memory, MiB           cpu:1       cpu:2\n"
            "activations                 0.00        0.00\n"
            "parameters                  4.00        4.00\n"
            "gradients                   0.00        0.00\n"
            "optimizer                   0.00        0.00\n"
            "gathered outputs            3.00        0.00\n"
            "data                        0.00        0.00\n"
            "together                    7.00        4.00\n"
            "cpu:1 holds 3.00 MiB more than cpu:2: 3.00 of gathered outputs, for the outputs of "
            "all devices are gathered there.\n");
  EXPECT_TRUE(
      memory_table(std::vector{one, two}, /*model_in_parts=*/true)
          .ends_with("cpu:1 holds 3.00 MiB more than cpu:2: 3.00 of gathered outputs; the parts of "
                     "the model differ.\n"));
  EXPECT_EQ(memory_table(std::vector{two}).find("holds"), std::string::npos);
}

// Of a training step, by the sizes of its tensors.
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
