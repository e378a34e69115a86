// The f32 and bf16 kernels for training, forward and backward, against f64.
//
// A sum of n products, in any order, computed with unit roundoff u, is off by at most
// gamma(n) sum |a||b|, gamma(n) = n u / (1 - n u). The sum of absolute values is the same
// operation, in f64, of absolute values; so the reference run gives the bound element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/tests/autograd/with_gradients.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;

constexpr double kHalfUlpF32 = 0x1p-24;
constexpr double kHalfUlpBf16 = 0x1p-8;

using Op = std::function<Tensor(std::span<const Tensor>)>;

struct Case {
  std::string name;
  std::vector<Tensor> inputs;  // f64, with values that bf16 represents exactly
  std::vector<double> terms;   // number of products in an element: of y, then of each dL/dinput
  Op op;
  // Number of intermediate roundings in a bf16 kernel: of the sum before the bias is added, or of
  // the running sum of a gradient that is stored as bf16.
  int bf16_roundings = 0;
  // The same for the forward on CUDA: cuDNN adds the bias only in algorithms that may not be
  // deterministic, so with fixed kernels a second kernel adds it.
  int bf16_roundings_on_cuda = 0;
};

// y, then the gradients; of the inputs' and the upstream gradient's absolute values if `absolute`.
std::vector<Tensor> run(const Case& c, DType dtype, bool absolute) {
  std::vector<Tensor> inputs = c.inputs;
  if (absolute) std::transform(inputs.begin(), inputs.end(), inputs.begin(), raw::abs);
  return testing::with_gradients(c.op, inputs, dtype, [=](const Shape& shape) {
    const Tensor gradient = testing::some(shape, DType::bf16, -1, 1, 99);
    return absolute ? raw::abs(gradient) : gradient;
  });
}

// elementwise false: uses the bound of the whole tensor for each element, times `slack`. For
// algorithms that mix elements (Winograd): their error does not depend on each sum alone.
void compare(const Case& c, DType dtype, bool elementwise, double slack) {
  const std::vector<Tensor> got = run(c, dtype, false);
  const std::vector<Tensor> want = run(c, DType::f64, false);
  const std::vector<Tensor> sizes = run(c, DType::f64, true);
  for (std::size_t k = 0; k < got.size(); ++k) {
    ASSERT_EQ(got[k].dtype(), dtype);
    ASSERT_EQ(got[k].shape(), want[k].shape());
    const auto a = testing::values_of(got[k]);
    const auto b = testing::values_of(want[k]);
    const auto size = testing::values_of(sizes[k]);
    // Two operations more than terms: the bias, and the scale of a mean.
    const double n = c.terms[k] + 2;
    const double gamma = n * kHalfUlpF32 / (1 - n * kHalfUlpF32);
    const double largest = size.empty() ? 0 : *std::max_element(size.begin(), size.end());
    for (std::size_t i = 0; i < a.size(); ++i) {
      double bound = gamma * (elementwise ? size[i] : slack * largest);
      if (dtype == DType::bf16) {
        const bool on_cuda = k == 0 && got[0].device().is_cuda();
        const int roundings = std::max(c.bf16_roundings, on_cuda ? c.bf16_roundings_on_cuda : 0);
        bound = bound * (1 + kHalfUlpBf16) + kHalfUlpBf16 * (std::abs(b[i]) + roundings * size[i]);
      }
      ASSERT_LE(std::abs(a[i] - b[i]), bound + 1e-37)
          << c.name << ", " << dtype << ", " << (k == 0 ? "forward" : "gradient ")
          << (k == 0 ? "" : std::to_string(k - 1)) << ", element " << i << " of " << a.size()
          << ": got " << a[i] << ", want " << b[i];
    }
  }
}

Tensor values(const Shape& shape, std::uint64_t seed) {
  return raw::to(testing::some(shape, DType::bf16, -1, 1, seed), DType::f64);
}

Case conv(const std::string& name, const Shape& x, const Shape& w, Conv2dParams params) {
  const std::int64_t k = params.transposed ? w[1] * params.groups : w[0];
  Case c{name, {values(x, 1), values(w, 2), values({k}, 3)}, {}, [params](auto t) {
           return params.transposed ? conv_transpose2d(t[0], t[1], t[2], params)
                                    : conv2d(t[0], t[1], t[2], params);
         }};
  const double window = static_cast<double>(w[2] * w[3]);
  const Shape y = c.op(c.inputs).shape();
  const double positions = static_cast<double>(std::max(y[2] * y[3], x[2] * x[3]) * x[0]);
  const double in = static_cast<double>(x[1] / params.groups);
  const double out = static_cast<double>(k / params.groups);
  c.terms = {in * window, out * window, positions, positions};
  if (params.transposed) c.bf16_roundings = 1;
  c.bf16_roundings_on_cuda = 1;
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> list;
  list.push_back(conv("conv 3x3", {4, 8, 14, 14}, {16, 8, 3, 3}, {}));
  list.push_back(conv("conv 3x3 one channel", {8, 1, 28, 28}, {8, 1, 3, 3}, {}));
  list.push_back(conv("conv padded, strided", {2, 16, 13, 15}, {24, 16, 3, 3},
                      {.stride = {2, 2}, .padding = {1, 1}}));
  list.push_back(conv("conv 5x5 dilated", {2, 3, 17, 17}, {7, 3, 5, 5}, {.dilation = {2, 2}}));
  list.push_back(conv("conv groups", {2, 12, 9, 9}, {8, 3, 3, 3}, {.groups = 4}));
  list.push_back(conv("conv 1x1", {2, 32, 7, 7}, {16, 32, 1, 1}, {}));
  list.push_back(conv("transposed 3x3", {4, 16, 12, 12}, {16, 8, 3, 3}, {.transposed = true}));
  list.push_back(
      conv("transposed strided", {2, 8, 7, 7}, {8, 4, 3, 3},
           {.stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}, .transposed = true}));
  list.push_back({"linear",
                  {values({32, 784}, 1), values({100, 784}, 2), values({100}, 3)},
                  {784, 100, 32, 32},
                  [](auto t) { return linear(t[0], t[1], t[2]); }});
  list.push_back(
      {"linear tails", {values({5, 67}, 1), values({13, 67}, 2)}, {67, 13, 5}, [](auto t) {
         return linear(t[0], t[1]);
       }});
  list.push_back({"matmul", {values({33, 65}, 1), values({65, 17}, 2)}, {65, 17, 33}, [](auto t) {
                    return matmul(t[0], t[1]);
                  }});
  list.push_back(
      {"matmul batched", {values({3, 9, 20}, 1), values({3, 20, 11}, 2)}, {20, 11, 9}, [](auto t) {
         return matmul(t[0], t[1]);
       }});
  list.push_back(
      {"matmul broadcast", {values({3, 9, 20}, 1), values({20, 11}, 2)}, {20, 11, 27}, [](auto t) {
         return matmul(t[0], t[1]);
       }});
  list.push_back({"max_pool2d",
                  {values({2, 3, 12, 12}, 1)},
                  {1, 4},
                  [](auto t) { return max_pool2d(t[0], {.kernel = {3, 3}, .stride = {2, 2}}); },
                  3});
  return list;
}

// The values of y, then those of dL/dx; dL/dy is 1 for a scalar.
std::vector<double> flat_with_gradient(const Tensor& x, DType dtype,
                                       const std::function<Tensor(const Tensor&)>& f) {
  const Op op = [&](std::span<const Tensor> in) { return f(in[0]); };
  const auto upstream = [](const Shape& shape) {
    return shape.empty() ? ones({}) : testing::some(shape, DType::bf16, 0.5, 2, 99);
  };
  std::vector<double> all;
  for (const Tensor& t : testing::with_gradients(op, {{x}}, dtype, upstream)) {
    for (const double v : testing::values_of(t)) all.push_back(v);
  }
  return all;
}

class PrecisionTest : public testing::DeviceParam {};

TEST_P(PrecisionTest, F32WithFixedKernels) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  for (const Case& c : cases()) compare(c, DType::f32, true, 1);
}

// With the kernels that timing selects. 20 covers the growth of errors in Winograd F(4x4, 3x3)'s
// transforms.
TEST_P(PrecisionTest, F32WithTimedKernels) {
  for (const Case& c : cases()) compare(c, DType::f32, false, 20);
}

TEST_P(PrecisionTest, Bf16) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  for (const Case& c : cases()) {
    try {
      compare(c, DType::bf16, true, 1);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::Unsupported) throw;
    }
  }
}

// Losses are not sums of products: compared with f64, with the rounding errors of a few operations
// on values as large as the largest logit, and of a pairwise sum.
TEST_P(PrecisionTest, Losses) {
  const Tensor logits = values({64, 10}, 1) * 8.0;
  const Tensor target = raw::to(raw::mul(raw::abs(values({64}, 2)), 9.0), DType::i64);
  const auto check = [&](const char* name, double scale, auto loss) {
    const auto f = [&](const Tensor& x) { return loss(x); };
    const auto want = flat_with_gradient(logits, DType::f64, f);
    const auto got = flat_with_gradient(logits, DType::f32, f);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double size = i == 0 ? scale * 64 : scale;
      EXPECT_NEAR(got[i], want[i], 40 * kHalfUlpF32 * std::max(size, std::abs(want[i])))
          << name << ", element " << i;
    }
  };
  for (const double smoothing : {0.0, 0.1}) {
    check("cross_entropy", 1.0 / 64, [&](const Tensor& x) {
      return cross_entropy(x, target, {.label_smoothing = smoothing});
    });
  }
  const Tensor other = values({64, 10}, 5);
  check("mse_loss", 1.0 / 64,
        [&](const Tensor& x) { return mse_loss(x, raw::to(other, x.dtype())); });
  // Weighted sums, so that gradients are about 1 and logits about 8.
  const auto weighted = [&](auto f) {
    return [&, f](const Tensor& x) { return sum(f(x) * raw::to(other, x.dtype())); };
  };
  check("softmax", 8, weighted([](const Tensor& x) { return softmax(x, 1); }));
  check("log_softmax", 8, weighted([](const Tensor& x) { return log_softmax(x, 0); }));
  check("gelu", 8, weighted([](const Tensor& x) { return gelu(x); }));
  check("gelu_tanh", 8, weighted([](const Tensor& x) { return gelu_tanh(x); }));
  check("log_sigmoid", 8, weighted([](const Tensor& x) { return log_sigmoid(x); }));
}

// Normalised values are about 1, so an element's error is that of a few roundings of values of the
// size of x / deviation, in forward and backward. Gradients of weight and bias are sums in f64 over
// n elements with this error.
TEST_P(PrecisionTest, Norms) {
  const Tensor image = values({4, 6, 9, 7}, 1), rows = values({12, 50}, 2);
  const Tensor channels = values({6}, 3), features = values({50}, 4);
  // between: number of intermediate results that are rounded to be stored.
  const auto check = [&](const char* name, const std::vector<Tensor>& inputs, double terms,
                         const Op& op, int between = 0) {
    const std::vector<Tensor> want = testing::with_gradients(op, inputs, DType::f64);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::vector<Tensor> got = testing::with_gradients(op, inputs, dtype);
      for (std::size_t k = 0; k < got.size(); ++k) {
        const auto a = testing::values_of(got[k]), b = testing::values_of(want[k]);
        const double stored = dtype == DType::bf16 ? kHalfUlpBf16 : 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
          const double size = k < 2 ? 4 : terms;
          const double rounded = std::abs(b[i]) + (k == 0 ? between * size : 0);
          ASSERT_NEAR(a[i], b[i], 20 * kHalfUlpF32 * size + 1.01 * stored * rounded)
              << name << ", " << dtype << ", result " << k << ", element " << i;
        }
      }
    }
  };
  check("batch_norm", {image, channels, channels}, 4 * 9 * 7,
        [](auto t) { return batch_norm(t[0], t[1], t[2], {}); });
  const Tensor more = values({4, 6, 9, 7}, 5);
  check(
      "batch_norm with addition", {image, channels, channels, more}, 4 * 9 * 7,
      [](auto t) { return batch_norm(t[0], t[1], t[2], {}, {}, {.add = t[3]}); }, 1);
  check("layer_norm", {rows, features, features}, 12,
        [](auto t) { return layer_norm(t[0], {50}, t[1], t[2]); });
  check("avg_pool2d", {image}, 1,
        [](auto t) { return avg_pool2d(t[0], {.kernel = {3, 3}, .padding = {1, 1}}); });
  check("adaptive_avg_pool2d", {image}, 1,
        [](auto t) { return adaptive_avg_pool2d(t[0], {4, 2}); });
}

// Computed in f64 until the result is stored: at most one rounding besides f64's own errors, which
// are a few thousandths of it.
void expect_one_rounding(const char* name, const Tensor& x,
                         const std::function<Tensor(const Tensor&)>& f) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor held = raw::to(raw::to(x, dtype), DType::f64);  // the same numbers for both
    const auto want = flat_with_gradient(held, DType::f64, f);
    const auto got = flat_with_gradient(held, dtype, f);
    const double half_ulp = dtype == DType::f32 ? kHalfUlpF32 : kHalfUlpBf16;
    const double least = 0x1p-133;  // bf16's ulp below its normal numbers; that of f32 is smaller
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1.01 * half_ulp * std::abs(want[i]) + least)
          << name << ", " << dtype << ", element " << i;
    }
  }
}

TEST_P(PrecisionTest, SpreadsAndNormsRoundOnce) {
  const Tensor x = values({4, 1000}, 1);
  const std::vector<std::pair<double, double>> places{{0, 1},       {1e5, 1},  {1e7, 1},  {1e18, 1},
                                                      {1e18, 1e18}, {0, 1e30}, {0, 1e-30}};
  for (const auto& [mean, size] : places) {
    SCOPED_TRACE(detail::concat("mean ", mean, ", size ", size));
    const Tensor at = raw::add(raw::mul(x, size), mean);
    // The variance of numbers around 1e30 does not fit in f32, but their standard deviation does.
    if (size < 1e19 && size > 1e-18) {
      expect_one_rounding("var", at, [](const Tensor& t) { return var(t, {1}); });
      expect_one_rounding("var of all", at, [](const Tensor& t) { return var(t, {}, 0); });
    }
    expect_one_rounding("std", at, [](const Tensor& t) { return std(t, {0}); });
    expect_one_rounding("std of all", at, [](const Tensor& t) { return std(t); });
    expect_one_rounding("norm", at, [](const Tensor& t) { return norm(t, {1}); });
    expect_one_rounding("norm of columns", at, [](const Tensor& t) { return norm(t, {0}, true); });
  }
}

// At most six of each kind, so that the product itself stays in f64's range.
TEST_P(PrecisionTest, ProductsOfOthersStayInRange) {
  const auto prod_of = [](const Tensor& t) { return prod(t, {1}); };
  expect_one_rounding("prod", make({1e-30, 1e-30, 1e30, 2e30, 3, 1e20, 1e-20, 4}, {2, 4}), prod_of);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto gradient = [](const std::vector<double>& x) {
    const Tensor leaf = make(x, {static_cast<std::int64_t>(x.size())}).set_requires_grad();
    prod(leaf).backward();
    return leaf.grad();
  };
  // The product of the others, also next to infinities and zeros.
  EXPECT_TRUE(testing::near_values(gradient({inf, 2, -3}), {-6, -inf, inf}, 0));
  EXPECT_TRUE(testing::near_values(gradient({-inf, inf, 2}), {inf, -inf, -inf}, 0));
  EXPECT_TRUE(testing::near_values(gradient({0, 2, 3}), {6, 0, 0}, 0));
  EXPECT_TRUE(testing::near_values(gradient({0, 0, 3}), {0, 0, 0}, 0));
  EXPECT_TRUE(testing::near_values(gradient({inf, 0, 3}), {0, inf, nan}, 0));
}

// 1 / b is infinite where x / b is not.
TEST_P(PrecisionTest, GradientsOfTinyDivisorsAreDivided) {
  for (const auto& [dtype, b] : {std::pair(DType::f32, 0x1p-130),
                                 {DType::bf16, 0x1p-130},
                                 {DType::f64, 0x1p-1030},
                                 {DType::f64, 0x1p-130}}) {
    SCOPED_TRACE(detail::concat(dtype, " ", b));
    const Tensor x = make({0, 0x1p-20}, {2}, dtype).set_requires_grad();
    const auto expect = [&](const Tensor& y) {
      EXPECT_EQ(testing::values_of(y), (std::vector<double>{0, 0x1p-20 / b}));
      y.backward(make({0, -0x1p-20}, {2}, dtype));
      EXPECT_EQ(testing::values_of(x.grad()), (std::vector<double>{0, -0x1p-20 / b}));
      x.set_grad({});
    };
    expect(x / b);
    expect(x.clone().div_(b));
    expect((x / -b).neg());
  }
}

TEST_P(PrecisionTest, SquaresDoubleLast) {
  const Tensor x = make({3e38, -2e38}, {2}).set_requires_grad();
  mean(square(x) * 0x1p-10).backward();
  // Powers of two, so every step is exact.
  EXPECT_TRUE(testing::near_values(
      x.grad(), {0x1p-10 * static_cast<double>(3e38F), -0x1p-10 * static_cast<double>(2e38F)}, 0));
}

WEFT_FOR_EACH_DEVICE(PrecisionTest);

}  // namespace
}  // namespace weft
