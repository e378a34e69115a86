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
  /// The calls of the second run, which finds its plans.
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

// The number of rows says which of the emulated algorithms comes first: the second has no relu, the
// third makes a NaN 0, and the mask of the fourth lets the gradient at 0 pass.
constexpr struct Rule {
  std::int64_t rows;
  bool relu, mask;
} kRules[] = {{8, true, true}, {9, false, false}, {10, false, false}, {11, true, false}};

TEST_F(LinearRelu, LeavesANaN) {
  for (const Rule& rule : kRules) {
    const Tensor x = some({rule.rows, 16}), w = some({24, 16}), b = some({24});
    b.slice(0, 3, 4).fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(calls([&] { linear(x, w, b, Activation::relu); }), (Calls{1, rule.relu ? 0 : 1}))
        << rule.rows;
    const auto y = linear(x, w, b, Activation::relu).to(Device()).to_vector<float>();
    const auto plain = relu(linear(x, w, b)).to(Device()).to_vector<float>();
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(std::isnan(y[i]), i % 24 == 3);
      EXPECT_TRUE(std::isnan(y[i]) || y[i] == plain[i]) << i;
    }
  }
}

TEST_F(LinearRelu, MaskIsRefusedIfItsRuleIsAnother) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Rule& rule : kRules) {
      const Tensor x = some({rule.rows, 16}, dtype), w = some({24, 16}, dtype);
      const auto [y, mask] = raw::linear_relu(x, w, some({24}, dtype));
      EXPECT_EQ(mask.defined(), rule.mask) << rule.rows << " rows, " << to_string(dtype);
    }
  }
  EXPECT_FALSE(raw::linear_relu(some({8, 16}), some({4, 16}), some({4})).second.defined())
      << "not a byte";
}

// Batch dimensions that are not regular are joined by a copy of x if that is no more than a pass
// over y, which the mask would cost beside a batch.
TEST_F(LinearRelu, MaskIsMadeForABatchOfSeveralDimensions) {
  const Tensor x = some({2, 5, 8, 16}).slice(1, 0, 3);
  for (const std::int64_t n : {8, 64}) {
    const Tensor w = some({n, 16}), b = some({n});
    const auto [y, mask] = raw::linear_relu(x, w, b);
    EXPECT_EQ(mask.defined(), n == 64) << n;
    const auto got = y.to(Device()).to_vector<float>();
    const auto plain = relu(linear(x, w, b)).to(Device()).to_vector<float>();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], plain[i], 1e-5) << i;
  }
}

// The gradient at 0 and NaN, whatever the algorithm.
TEST_F(LinearRelu, GradientsAtZeroAndNaNAreThoseOfARelu) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const Rule& rule : kRules) {
    const auto gradient_of_bias = [&](bool fused) {
      const Tensor x = zeros({rule.rows, 16}), w = some({24, 16}), w2 = ones({8, 24});
      const Tensor b = zeros({24});
      b.slice(0, 0, 24, 4).fill_(kNaN);
      b.slice(0, 2, 24, 4).fill_(-1);
      b.slice(0, 3, 24, 4).fill_(1);
      b.set_requires_grad();
      const Tensor y = fused ? linear(x, w, b, Activation::relu) : relu(linear(x, w, b));
      linear(y, w2, {}).sum().backward();
      return b.grad().to(Device()).to_vector<float>();
    };
    EXPECT_EQ(gradient_of_bias(true), gradient_of_bias(false)) << rule.rows;
    EXPECT_EQ(gradient_of_bias(true)[0], static_cast<float>(8 * rule.rows));
    EXPECT_EQ(gradient_of_bias(true)[1], 0);
  }
}

// A step whose recorded call meets a shape that no call before had.
TEST_F(LinearRelu, IsTriedAfterARecordingToo) {
  const Tensor w = some({24, 16}), b = some({24});
  const Tensor few = some({16, 16}), many = some({32, 16});
  int call = 0;
  const auto body = [&] { linear(call++ == 0 ? few : many, w, b, Activation::relu); };
  graph::Step step = graph::capture(kDevice, body);
  for (int i = 0; i < 3; ++i) step();
  EXPECT_GE(call, 2);
  EXPECT_EQ(calls([&] { linear(many, w, b, Activation::relu); }), (Calls{1, 0}));
}

TEST_F(LinearRelu, IsNotTriedWithoutARelu) {
  const Tensor x = some({40, 16}), w = some({24, 16}), b = some({24});
  taken();
  linear(x, w, b);
  EXPECT_EQ(taken()["cublaslt"]["calls"], 1);
  linear(x, w, b, Activation::relu);
  EXPECT_EQ(taken()["cublaslt"]["calls"], 2);
}

// With `deterministic` the sums are those of the product alone: fused if its algorithm can.
TEST_F(LinearRelu, MaskIsAppliedByTheAlgorithmOfThePlainProduct) {
  for (const bool fixed : {true, false}) {
    const Scoped deterministic(&ThreadState::deterministic, fixed);
    for (const std::int64_t rows : {8, 9}) {
      const Tensor mask = zeros({rows, 16}, DType::u8);
      const auto [y, masked] = raw::matmul_where(some({rows, 16}), some({16, 24}), mask);
      EXPECT_EQ(masked, rows == 8 || !fixed) << rows;
    }
  }
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
  /// What a backward launches. `use` gets the value between the layers, and returns what is added
  /// to the loss besides the last layer's output, or nothing.
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

// Each product also does what follows it, so no kernel masks the gradient between the layers.
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

// The backward has two products and the gradient of the sum. No kernel fills the gradient that it
// begins with.
TEST_F(LinearRelu, ABackwardBeginsWithAOneThatIsThere) {
  const Tensor x = some({8, 16}), w = some({24, 16});
  w.set_requires_grad();
  const Calls plain = calls([&] { linear(x, w, {}).sum(); });
  const Calls with_backward = calls([&] {
    autograd::zero_grad(w);
    linear(x, w, {}).sum().backward();
  });
  EXPECT_EQ(with_backward, (Calls{plain.products + 1, plain.kernels + 1}));
}

}  // namespace
}  // namespace weft
