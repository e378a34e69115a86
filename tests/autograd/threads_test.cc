// Several tapes in several threads, and tapes that cross threads. Run under TSan.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

Tensor leaf(double value) { return testing::make({value}, {}, DType::f64).set_requires_grad(); }

template <class F>
void in_threads(int count, F f) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) threads.emplace_back([&f, t] { f(t); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadsTest, TapesOfTheirOwn) {
  in_threads(4, [](int t) {
    const PathScope scope(t % 2 ? "odd" : "even");
    const Tensor x = leaf(t);
    double expected = 0;
    for (int i = 0; i < 100; ++i) {
      (x * x + exp(x * 0.0)).backward();
      expected += 2 * t;
      EXPECT_EQ(x.grad().item<double>(), expected);
    }
  });
}

// Parameters used by several threads at once: nothing is lost.
TEST(ThreadsTest, OneLeafInManyTapes) {
  const Tensor w = leaf(3);
  std::atomic<int> calls{0};
  autograd::add_leaf_hook(w, [&](const Tensor&) { ++calls; });
  in_threads(4, [&](int) {
    for (int i = 0; i < 100; ++i) (w * 2.0).backward();
  });
  EXPECT_EQ(w.grad().item<double>(), 800);
  EXPECT_EQ(calls, 400);
}

// A common trunk with retained saved tensors.
TEST(ThreadsTest, OneGraphWalkedByMany) {
  const Tensor x = leaf(3);
  const Tensor h = square(x) * 2.0;
  std::vector<double> grads(4);
  in_threads(4, [&](int t) {
    for (int i = 0; i < 50; ++i) {
      const Tensor y = h * (t + 1.0);
      grads[t] = autograd::grad({&y, 1}, {&x, 1}, {}, true)[0].item<double>();
    }
  });
  EXPECT_EQ(grads, (std::vector<double>{12, 24, 36, 48}));
}

TEST(ThreadsTest, RecordedHereRunThereFreedElsewhere) {
  for (int round = 0; round < 20; ++round) {
    const Tensor x = leaf(2);
    Tensor y = x;
    std::thread([&] {
      for (int i = 0; i < 10; ++i) y = y * x;
    }).join();
    std::thread([&] { y.backward(); }).join();
    EXPECT_EQ(x.grad().item<double>(), 11 * 1024.0);
    std::thread([moved = std::move(y)]() mutable { moved = Tensor(); }).join();
  }
}

TEST(ThreadsTest, NoGradIsPerThread) {
  const Tensor x = leaf(2);
  const NoGrad no_grad;
  std::thread([&] { EXPECT_TRUE((x * 2.0).requires_grad()); }).join();
  EXPECT_FALSE((x * 2.0).requires_grad());
}

}  // namespace
}  // namespace weft
