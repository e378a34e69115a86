// Work that begins at the end of a program: in the destructor of a static object.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

// A step with everything of weft that keeps objects per thread: generators, the tape, the workers.
// The products use oneDNN, which has static objects of its own.
bool step(int n) {
  // Without timing the first candidate is used; a new n gives one that has not been built yet.
  const Scoped fixed(&ThreadState::deterministic, true);
  const Tensor w = testing::some({n, 16}, DType::f32).set_requires_grad();
  const Tensor x = testing::some({n, 16}, DType::f32);
  int ended = 0, final = 0;
  autograd::add_final_leaf_hook(w, [&](const Tensor&) { ++final; });
  autograd::add_leaf_hook(w, [&](const Tensor&) {
    autograd::at_backward_end([&](const std::exception_ptr&) {
      ++ended;
      // A write to freed memory makes these checks fail.
      std::vector<std::unique_ptr<char[]>> blocks;
      for (int i = 0; i < 64; ++i) blocks.push_back(std::make_unique<char[]>(24 + 16 * (i % 2)));
    });
  });
  const Tensor h = autograd::checkpoint(
      [n](const Tensor& in, const Tensor& weight) {
        return in * weight * bernoulli({n, 16}, 0.5) *
               bernoulli({n, 16}, 0.5, Device("cpu:1")).to(Device());
      },
      x, w);
  const Tensor there = matmul(h, h.t()).to(Device("cpu:1"));
  (square(h).sum() + square(there).sum().to(Device())).backward();
  return ended == 1 && final == 1 && w.grad().defined();
}

struct AtExit {
  ~AtExit() {
    if (armed && !(step(8) && step(9))) _exit(7);
  }
  bool armed = false;
};
AtExit at_exit;  // made before the library's objects, so destroyed after them

TEST(ExitDeathTest, AStaticDestructorMayCompute) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    set_host_devices(2);
    at_exit.armed = true;
    std::exit(step(8) ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft
