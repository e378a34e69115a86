// The cost of a steady training step besides arithmetic: no heap memory.
#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/pool.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

// f64 uses weft's own kernels, so oneDNN's allocations are not counted.
struct Mlp {
  Tensor w1 = testing::some({16, 20}, DType::f64, -1, 1, 1).set_requires_grad();
  Tensor b1 = testing::some({16}, DType::f64, -1, 1, 2).set_requires_grad();
  Tensor w2 = testing::some({4, 16}, DType::f64, -1, 1, 3).set_requires_grad();
  Tensor b2 = testing::some({4}, DType::f64, -1, 1, 4).set_requires_grad();
  Tensor x = testing::some({8, 4, 5}, DType::f64);
  Tensor target = testing::make({0, 1, 2, 3, 0, 1, 2, 3}, {8}, DType::i64);

  Tensor gain = testing::some({5}, DType::f64, 0.5, 2, 5).set_requires_grad();
  RunningStats running{zeros({4}, DType::f64), ones({4}, DType::f64), zeros({}, DType::i64)};

  void step() const {
    const PathScope scope("mlp");
    const Tensor image = layer_norm(x, {5}, gain).reshape({8, 4, 5, 1});
    const Tensor pooled = avg_pool2d(image, {.kernel = {3, 1}, .padding = {1, 0}});
    const Tensor normal =
        batch_norm(pooled, {}, {}, running, {}, {.add = pooled, .negative_slope = 0.1});
    const Tensor h = relu(linear(normal.flatten(1), w1, b1));
    const Tensor y = linear(h, w2, b2);
    const Tensor loss = cross_entropy(y, target) + mse_loss(sigmoid(y), raw::mul(y, 0)) * 0.1;
    loss.backward();
  }
  void zero_grad() const {
    for (const Tensor& p : {w1, b1, w2, b2, gain}) autograd::zero_grad(p);
  }
};

void expect_no_allocation(const Mlp& mlp, int hook_calls_per_step, const int& hook_calls) {
  for (int i = 0; i < 3; ++i) {
    mlp.step();
    mlp.zero_grad();
  }
  const int hooks_before = hook_calls;
  const std::int64_t heap = testing::heap_count();
  const std::int64_t pool = pool_heap_allocations();
  const std::int64_t driver = memory_stats(Device()).driver_allocations;
  for (int i = 0; i < 10; ++i) {
    mlp.step();
    mlp.zero_grad();
  }
  EXPECT_EQ(testing::heap_count(), heap);
  EXPECT_EQ(pool_heap_allocations(), pool);
  EXPECT_EQ(memory_stats(Device()).driver_allocations, driver);
  EXPECT_EQ(hook_calls, hooks_before + 10 * hook_calls_per_step);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // then the pool gets every object from the heap
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

TEST(CostTest, ASteadyStepAllocatesNothing) {
  if (kSanitized) GTEST_SKIP() << "not under AddressSanitizer";
  int calls = 0;
  expect_no_allocation(Mlp(), 0, calls);
}

TEST(CostTest, NorWithHooksAndOwnedGradients) {
  if (kSanitized) GTEST_SKIP() << "not under AddressSanitizer";
  const Mlp mlp;
  int calls = 0;
  std::vector<Tensor> buckets;
  for (const Tensor& p : {mlp.w1, mlp.b1, mlp.w2, mlp.b2}) {
    buckets.push_back(zeros_like(p));
    autograd::set_grad_storage(p, buckets.back());
    autograd::add_final_leaf_hook(p, [](const Tensor&) {});
    autograd::add_leaf_hook(p, [&calls](const Tensor&) {
      ++calls;
      autograd::at_backward_end([](const std::exception_ptr&) {});
    });
  }
  expect_no_allocation(mlp, 4, calls);
}

// Each allocation in turn fails, in the calling thread or in a worker.
TEST(CostTest, NoMemoryIsAnErrorOfTheBackwardOverDevices) {
  set_host_devices(2);
  const Device devices[] = {Device("cpu:0"), Device("cpu:1")};
  for (std::int64_t k = 1;; ++k) {
    const Tensor x = testing::make({1}, {}, DType::f64).set_requires_grad();
    Tensor outputs[2];
    for (int i = 0; i < 2; ++i) {
      outputs[i] = x.to(devices[i]) * 2.0;
      for (int n = 0; n < 40; ++n) {
        outputs[i] = outputs[i] + (outputs[i].to(devices[1 - i]) * 0.5).to(devices[i]);
      }
    }
    const testing::FailHeap fault(k);
    bool failed = false;
    try {
      std::thread([&] {  // this thread has no memory for a backward yet
        try {
          autograd::backward(outputs, {}, true);
        } catch (const std::bad_alloc&) {
          failed = true;
        }
      })
          .join();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    if (fault.fired()) {
      EXPECT_TRUE(failed || x.grad().defined());
      continue;
    }
    EXPECT_FALSE(failed);
    break;
  }
}

TEST(CostTest, NothingStaysAfterAStep) {
  const Mlp mlp;
  mlp.step();
  mlp.zero_grad();
  const std::int64_t before = memory_stats(Device()).in_use_bytes;
  mlp.step();
  mlp.zero_grad();
  EXPECT_EQ(memory_stats(Device()).in_use_bytes, before);
}

// A chain of element-wise operations needs two buffers at a time in backward, whatever its length.
TEST(CostTest, BackwardFreesAsItGoes) {
  const Tensor x = testing::some({1024}, DType::f64).set_requires_grad();
  const auto peak_of = [&](int length) {
    Tensor y = x;
    for (int i = 0; i < length; ++i) y = exp(y * 0.5);
    const Tensor loss = y.sum();
    y = Tensor();
    const std::int64_t before = memory_stats(Device()).in_use_bytes;
    reset_peak_memory(Device());
    loss.backward();
    return memory_stats(Device()).peak_in_use_bytes - before;
  };
  peak_of(2);
  autograd::zero_grad(x);
  const std::int64_t of_short = peak_of(4);
  autograd::zero_grad(x);
  EXPECT_EQ(peak_of(40), of_short);
}

TEST(CostTest, ASmallGraphAfterALongOne) {
  const Tensor x = testing::make({1}, {}, DType::f64).set_requires_grad();
  Tensor y = x;
  for (int i = 0; i < 100'000; ++i) y = y + x;
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), 100'001);
  (x * 2.0).backward();  // the tables of the long chain have been freed or cleared
  EXPECT_EQ(x.grad().item<double>(), 100'003);
}

}  // namespace
}  // namespace weft
