// What follows a linear layer's product, on emulated GPUs: cuBLASLt does it in the same call.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/weft.h"

extern "C" const char* weft_emulated_take_counts();

namespace weft {
namespace {

const Device kDevice("cuda:0");

struct Calls {
  long products, kernels;
  friend bool operator==(const Calls&, const Calls&) = default;
  friend void PrintTo(const Calls& c, std::ostream* out) {
    *out << c.products << " products, " << c.kernels << " kernels";
  }
};

class LinearRelu : public ::testing::Test {
 protected:
  LinearRelu() { thread_state().device = kDevice; }
  ~LinearRelu() override { thread_state() = before_; }

  static nlohmann::json taken() {
    runtime(kDevice).synchronize_device(0);
    return nlohmann::json::parse(weft_emulated_take_counts());
  }
  /// Of the second run, which finds its plans.
  static Calls calls(const std::function<void()>& run) {
    run();
    taken();
    run();
    const nlohmann::json counts = taken();
    return {counts["cublaslt"]["calls"], counts["kernels"]["calls"]};
  }
  static Tensor some(const Shape& shape, DType dtype = DType::f32) {
    return uniform(shape, -1, 1).to(dtype);
  }

  const ThreadState before_ = thread_state();
  const Scoped<bool> fixed_{&ThreadState::deterministic, true};
};

TEST_F(LinearRelu, IsOneCallWithTheBias) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = some({8, 16}, dtype), w = some({24, 16}, dtype), b = some({24}, dtype);
    EXPECT_EQ(calls([&] { linear(x, w, b, Activation::relu); }), (Calls{1, 0}));
    EXPECT_EQ(calls([&] { linear(x, w, {}, Activation::relu); }), (Calls{1, 1})) << "no bias";
    const Tensor slice = some({8 * 16 + 1}, dtype).slice(0, 1, 8 * 16 + 1).reshape({8, 16});
    EXPECT_EQ(calls([&] { linear(slice, w, b, Activation::relu); }), (Calls{1, 2})) << "unaligned";
  }
  const Tensor x = some({8, 16}, DType::f64), w = some({24, 16}, DType::f64);
  EXPECT_EQ(calls([&] { linear(x, w, some({24}, DType::f64), Activation::relu); }).products, 1);
}

// Timing chooses among algorithms of which some have no relu, and one makes a NaN 0.
TEST_F(LinearRelu, LeavesANaN) {
  const Scoped timed(&ThreadState::deterministic, false);
  const Scoped benchmark(&ThreadState::benchmark, true);
  long separate = 0;
  for (const std::int64_t n : {8, 16, 24, 32, 40, 48, 56, 64, 72, 80}) {
    const Tensor x = some({8, 16}), w = some({n, 16}), b = some({n});
    b.slice(0, 3, 4).fill_(std::numeric_limits<double>::quiet_NaN());
    separate += calls([&] { linear(x, w, b, Activation::relu); }).kernels;
    const auto y = linear(x, w, b, Activation::relu).to(Device()).to_vector<float>();
    const auto plain = relu(linear(x, w, b)).to(Device()).to_vector<float>();
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(std::isnan(y[i]), static_cast<std::int64_t>(i) % n == 3);
      EXPECT_TRUE(std::isnan(y[i]) || y[i] == plain[i]) << i;
    }
  }
  EXPECT_GT(separate, 0);
  EXPECT_LT(separate, 10);
}

TEST_F(LinearRelu, GradientOfTheBiasComesWithThatOfTheWeight) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor x = some({8, 16}, dtype), grad = some({8, 24}, dtype);
    const Calls got = calls([&] { raw::linear_backward_weights(x, grad); });
    EXPECT_EQ(got, (Calls{1, dtype == DType::f64 ? got.kernels : 0}));
    EXPECT_EQ(got.kernels > 0, dtype == DType::f64) << "it has no such epilogue";
  }
}

class TwoLayers : public LinearRelu {
 protected:
  /// What a backward launches; `use` gets the value between the layers, and returns what the loss
  /// has beside the last layer's, or nothing.
  Calls backward(const std::function<Tensor(const Tensor& y)>& use,
                 const std::function<void(const Tensor& loss, const Tensor& y)>& run) {
    Tensor loss, y;
    const auto forward = [&] {
      y = linear(x, w, b, Activation::relu);
      loss = linear(y, w2, b2).sum();
      if (const Tensor more = use(y); more.defined()) loss = loss + more;
    };
    forward();
    run(loss, y);
    forward();
    taken();
    run(loss, y);
    const nlohmann::json counts = taken();
    return {counts["cublaslt"]["calls"], counts["kernels"]["calls"]};
  }
  Calls backward(const std::function<Tensor(const Tensor& y)>& use) {
    return backward(use, [](const Tensor& loss, const Tensor&) { loss.backward(); });
  }
  const Tensor x = some({8, 16}), w = some({24, 16}).set_requires_grad(),
               b = some({24}).set_requires_grad(), w2 = some({8, 24}).set_requires_grad(),
               b2 = some({8}).set_requires_grad();
};

Tensor nothing(const Tensor&) { return {}; }

// Each product does what follows it, so no kernel masks the gradient between the layers.
TEST_F(TwoLayers, MaskIsAppliedByTheProduct) {
  const Calls plain = backward(nothing);
  EXPECT_EQ(plain.products, 3);
  const auto with_hook = [&](const Tensor& y) {
    autograd::add_grad_hook(y, [](const Tensor& grad) { return grad; });
    return Tensor();
  };
  EXPECT_EQ(backward(with_hook), (Calls{3, plain.kernels + 1}));
  EXPECT_GE(backward([](const Tensor& y) { return y.sum(); }).kernels, plain.kernels + 2);
  const auto asked = [&](const Tensor& loss, const Tensor& y) {
    autograd::grad(loss, {y, w, b, w2, b2});
  };
  const auto not_asked = [&](const Tensor& loss, const Tensor&) {
    autograd::grad(loss, {w, b, w2, b2});
  };
  EXPECT_EQ(backward(nothing, asked).kernels, backward(nothing, not_asked).kernels + 1);
}

}  // namespace
}  // namespace weft
