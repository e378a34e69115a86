// Several tapes in several threads, and tapes used by several threads. Also run under TSan.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/tests/core/expect_error.h"
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

// Several threads use parameters at the same time: no gradient is lost.
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

// A common part of the graph whose saved tensors are retained.
TEST(ThreadsTest, OneGraphWalkedByMany) {
  const Tensor x = leaf(3);
  const Tensor h = square(x) * 2.0;
  std::vector<double> grads(4);
  in_threads(4, [&](int t) {
    for (int i = 0; i < 50; ++i) {
      const Tensor y = h * (t + 1.0);
      grads[t] = autograd::grad({&y, 1}, {&x, 1}, {}, {.retain_graph = true})[0].item<double>();
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

// Number of attempts to let two threads meet within nanoseconds. The thread sanitizer finds a race
// even if they are only close, and is slower per attempt.
#if defined(__SANITIZE_THREAD__)
constexpr int kTries = 1000;
#elif defined(__has_feature)
constexpr int kTries = __has_feature(thread_sanitizer) ? 1000 : 20000;
#else
constexpr int kTries = 20000;
#endif

// A place where two threads meet. They leave it closer together than a std::barrier.
class Meeting {
 public:
  void arrive_and_wait() {
    const int round = arrived_.fetch_add(1) / 2;
    for (int tries = 0; arrived_.load() < 2 * (round + 1); ++tries) {
      if (tries > 10000) std::this_thread::yield();
    }
  }

 private:
  std::atomic<int> arrived_{0};
};

// In each round both threads start at the same time; then `check` runs in one of them.
template <class F, class Check>
void in_two_threads(int rounds, F f, Check check) {
  Meeting meeting;
  in_threads(2, [&](int t) {
    for (int round = 0; round < rounds; ++round) {
      meeting.arrive_and_wait();
      f(t);
      meeting.arrive_and_wait();
      if (t == 0) check();
    }
  });
}

// Forgotten memory is set to zero before a gradient is added, never after that.
TEST(ThreadsTest, AGradientAskedForWhileItArrives) {
  const std::int64_t n = 1 << 16;  // the write takes long enough for the other thread to read
  const Tensor w = zeros({n}, DType::f64).set_requires_grad();
  const Tensor memory = zeros({n}, DType::f64), ones = ones_like(w);
  autograd::set_grad_storage(w, memory);
  std::atomic<bool> arriving{false};
  autograd::add_grad_hook(w, [&](const Tensor&) {
    arriving = true;
    return Tensor();
  });
  int lost = 0;
  in_two_threads(
      300,
      [&](int t) {
        if (t == 0) {
          w.backward(ones);
        } else {
          while (!arriving) std::this_thread::yield();
          w.grad();
        }
      },
      [&] {
        lost += raw::sum(memory).item<double>() != n;
        autograd::zero_grad(w);
        arriving = false;
      });
  EXPECT_EQ(lost, 0);
}

// Computes only the gradients that are needed; changes of `data` may come in between.
struct Product : autograd::Function<Product> {
  using Visit = std::function<void()>;
  static Tensor forward(autograd::Context& ctx, const Tensor& a, const Tensor& b,
                        const Visit& visit) {
    ctx.save_for_backward({a, b});
    ctx.data = visit;
    return raw::mul(a, b);
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    std::any_cast<const Visit&>(ctx.data)();
    std::vector<Tensor> result(2);
    for (int i : {0, 1}) {
      if (ctx.needs_input_grad(i)) result[i] = raw::mul(grads[0], ctx.saved(1 - i));
    }
    return result;
  }
};

TEST(ThreadsTest, OneRetainedTapeWithAFunction) {
  const Tensor a = leaf(3), b = leaf(5);
  Meeting meeting;
  const Tensor y = Product::apply(a, b, [&] { meeting.arrive_and_wait(); });
  std::atomic<int> wrong{0};
  in_threads(2, [&](int t) {
    const Tensor input = t == 0 ? a : b;
    for (int i = 0; i < 1000; ++i) {
      const Tensor g =
          autograd::grad({&y, 1}, {&input, 1}, {}, {.retain_graph = true, .allow_unused = true})[0];
      wrong += !g.defined() || g.item<double>() != (t == 0 ? 5 : 3);
    }
  });
  EXPECT_EQ(wrong, 0);
}

bool refused(const Error& error) {
  return error.code() == ErrorCode::InvalidArgument &&
         std::string(error.what()).find("an earlier backward freed") != std::string::npos;
}

// The second backward begins while a rule of the first one is running.
TEST(ThreadsTest, ATapeThatIsInUseForTheLastTime) {
  std::atomic<bool> running{false}, tried{false};
  std::atomic<int> visits{0};
  const Tensor a = leaf(3), b = leaf(5);
  const Tensor y = Product::apply(a, b, [&] {
    if (visits++ > 0) return;
    running = true;
    while (!tried) std::this_thread::yield();
  });
  in_threads(2, [&](int t) {
    if (t == 0) {
      y.backward();
      return;
    }
    while (!running) std::this_thread::yield();
    for (const bool retain : {true, false}) {
      try {
        y.backward({}, retain);
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        EXPECT_TRUE(refused(error)) << error.what();
      }
    }
    tried = true;
  });
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(a.grad().item<double>(), 5);
  EXPECT_EQ(b.grad().item<double>(), 3);
}

// The last use begins while another one's rule is running: what that rule needs stays until it is
// done.
TEST(ThreadsTest, ATapeEndsWhenItsLastUserLeaves) {
  std::atomic<bool> running{false}, ended{false};
  std::atomic<int> visits{0};
  const Tensor a = leaf(3), b = leaf(5);
  const Tensor y = Product::apply(a, b, [&] {
    if (visits++ > 0) return;
    running = true;
    while (!ended) std::this_thread::yield();
  });
  in_threads(2, [&](int t) {
    if (t == 0) {
      EXPECT_EQ(autograd::grad({&y, 1}, {&a, 1}, {}, {.retain_graph = true})[0].item<double>(), 5);
      return;
    }
    while (!running) std::this_thread::yield();
    EXPECT_EQ(autograd::grad({&y, 1}, {&b, 1})[0].item<double>(), 3);
    ended = true;
  });
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "an earlier backward freed");
}

// A rule that failed leaves its node usable.
TEST(ThreadsTest, AFailedBackwardLeavesTheTape) {
  int visits = 0;
  const Tensor a = leaf(3), b = leaf(5);
  const Tensor y = Product::apply(a, b, [&] {
    if (visits++ == 0) throw std::runtime_error("from the rule");
  });
  EXPECT_THROW(y.backward(), std::runtime_error);
  y.backward();
  EXPECT_EQ(a.grad().item<double>(), 5);
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "an earlier backward freed");
}

// With and without retaining the tape, at any moment: either a correct result or an error.
TEST(ThreadsTest, OneTapeAtOnce) {
  for (const bool one_retains : {false, true}) {
    Tensor x, y;
    const auto record = [&] {
      x = leaf(0.5);
      y = Product::apply(exp(exp(x)), exp(x), [] {});
    };
    record();
    const double inner = std::exp(0.5), expected = std::exp(inner) * inner * (1 + inner);
    std::atomic<int> done{0};
    in_two_threads(
        1000,
        [&](int t) {
          try {
            const Tensor g =
                autograd::grad({&y, 1}, {&x, 1}, {}, {.retain_graph = one_retains && t == 0})[0];
            EXPECT_NEAR(g.item<double>(), expected, 1e-12);
            ++done;
          } catch (const Error& error) {
            EXPECT_TRUE(refused(error)) << error.what();
          }
        },
        [&] {
          if (one_retains) {
            EXPECT_GE(done, 1);
          } else {
            EXPECT_EQ(done, 1);
          }
          done = 0;
          record();
        });
  }
}

// Autograd's data of a tensor is made at its first use, which may happen in two threads at once.
TEST(ThreadsTest, FirstUsesAtOnce) {
  Tensor x;
  const auto renew = [&] { x = testing::make({2}, {}, DType::f64); };
  renew();
  std::atomic<int> calls{0};
  in_two_threads(
      kTries,
      [&](int) {
        x.set_requires_grad();
        autograd::add_leaf_hook(x, [&](const Tensor&) { ++calls; });
        autograd::add_grad_hook(x, [&](const Tensor&) {
          ++calls;
          return Tensor();
        });
      },
      [&] {
        (x * x).backward();
        EXPECT_EQ(calls.exchange(0), 4);
        EXPECT_EQ(x.grad().item<double>(), 4);
        renew();
      });
}

TEST(ThreadsTest, FirstHooksOfANodeAtOnce) {
  const Tensor x = leaf(2);
  Tensor y;
  const auto renew = [&] { y = x * x; };
  renew();
  std::atomic<int> calls{0};
  in_two_threads(
      kTries,
      [&](int) {
        autograd::add_grad_hook(y, [&](const Tensor&) {
          ++calls;
          return Tensor();
        });
      },
      [&] {
        y.backward();
        EXPECT_EQ(calls.exchange(0), 2);
        renew();
      });
}

// The node that made an operand of y's operation.
RefCounted* maker_of_operand(const Tensor& y, int operand) {
  return autograd::meta_of(y)->producer->edges()[operand].target();
}

// Threads that inherit a scope's state share its converted weights.
TEST(ThreadsTest, AutocastConvertsAWeightOnceForAllThreads) {
  const Tensor x = testing::some({2, 3});
  const Tensor w = testing::some({3, 4}).set_requires_grad();
  std::vector<Tensor> y(2);
  Meeting both;
  for (int round = 0; round < 200; ++round) {
    if (round % 2) raw::fill_(w, round);
    const autograd::Autocast autocast(DeviceType::cpu);
    const ThreadState state = thread_state();
    in_threads(2, [&](int t) {
      const ThreadStateGuard guard(state);
      both.arrive_and_wait();
      y[t] = matmul(x, w);
    });
    ASSERT_EQ(y[0].dtype(), DType::bf16);
    ASSERT_EQ(maker_of_operand(y[0], 1), maker_of_operand(y[1], 1));
    ASSERT_EQ(maker_of_operand(matmul(x, w), 1), maker_of_operand(y[0], 1));
    autograd::zero_grad(w);
    matmul(x, w).to(DType::f32).sum().backward();
    const std::vector<double> once = testing::values_of(w.grad());
    autograd::zero_grad(w);
    (y[0].to(DType::f32) + y[1].to(DType::f32)).sum().backward();
    const std::vector<double> both_gradients = testing::values_of(w.grad());
    // Exactly twice the same bf16 values.
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(both_gradients[i], 2 * once[i]);
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
