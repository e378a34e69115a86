// After a few steps a training step allocates nothing: neither from the driver nor, in weft's own
// code, from the heap.
#include <gtest/gtest.h>

#include "weft/autograd/autograd.h"
#include "weft/core/runtime/allocator.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/mlp.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tests/examples/heap_by_caller.h"

namespace weft {
namespace {

template <class Step>
void expect_steady(Step step) {
  if (!testing::HeapByCaller::available()) GTEST_SKIP() << "a sanitizer owns malloc";
  for (int i = 0; i < 5; ++i) step();
  const std::int64_t driver_calls = memory_stats(Device()).driver_allocations;
  const int steps = 10;
  std::map<std::string, std::int64_t> counts;
  std::string example;
  {
    testing::HeapByCaller heap;
    for (int i = 0; i < steps; ++i) step();
    counts = heap.counts();
    example = heap.example();
  }
  EXPECT_EQ(memory_stats(Device()).driver_allocations, driver_calls);
  EXPECT_EQ(counts["weft"], 0) << "in " << steps << " steps; one of them from" << example;
  for (const auto& [caller, count] : counts)
    std::printf("heap allocations in %d steps by %s: %lld\n", steps, caller.c_str(),
                static_cast<long long>(count));
}

TEST(SteadyState, TheCounterSeesWeftsAllocations) {
  if (!testing::HeapByCaller::available()) GTEST_SKIP() << "a sanitizer owns malloc";
  testing::HeapByCaller heap;
  auto* p = new std::vector<int>(3);
  delete p;
  EXPECT_EQ(heap.counts()["weft"], 2);
}

TEST(SteadyState, AutoencoderStepAllocatesNothing) {
  manual_seed(0);
  examples::Autoencoder model;
  optim::Adam adam(model.parameters());
  const Tensor x = rand({32, 1, 28, 28});
  expect_steady([&] {
    adam.zero_grad();
    nn::mse_loss(model(x).first, x).backward();
    adam.step();
  });
}

TEST(SteadyState, MlpStepAllocatesNothing) {
  manual_seed(0);
  nn::Sequential model = examples::mlp();
  optim::SGD sgd(model.parameters());
  const Tensor x = rand({64, 1, 28, 28}), label = zeros({64}, DType::i64);
  expect_steady([&] {
    sgd.zero_grad();
    nn::cross_entropy(model(x), label).backward();
    sgd.step();
  });
}

}  // namespace
}  // namespace weft
