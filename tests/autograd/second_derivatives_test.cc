// Backwards that are recorded (create_graph): every operation has a second derivative, and the
// first ones are those of the fused rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/tests/autograd/against_goldens.h"
#include "weft/tests/autograd/op_cases.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using autograd::grad;
using testing::OpCase;
using testing::values_of;

constexpr autograd::GradOptions kRecorded{.create_graph = true};

class SecondDerivativesTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(SecondDerivativesTest);

constexpr int kAll = -1;

// New inputs of which all, or a single one, require gradients.
std::vector<Tensor> inputs_of(const OpCase& c, std::size_t layout, int only = kAll) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : c.inputs()) {
    const std::vector<Tensor> laid = testing::image_layouts(x);
    inputs.push_back(laid[std::min(layout, laid.size() - 1)]);
    const int index = static_cast<int>(inputs.size()) - 1;
    if (only == kAll || only == index) inputs.back().set_requires_grad();
  }
  return inputs;
}

void check(const OpCase& c, int only) {
  SCOPED_TRACE(c.op + " (" + c.variant + "), input " + std::to_string(only));
  try {
    autograd::gradgradcheck(c.op, c.f, inputs_of(c, 0, only));
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

// Many thousand calls. The rules are the same on every device: there the first derivatives, and
// products with a Hessian, show that the kernels agree.
TEST_P(SecondDerivativesTest, OfEveryOperation) {
  if (!on_cpu()) GTEST_SKIP() << "finite differences on the CPU alone";
  for (const OpCase& c : testing::op_cases()) check(c, kAll);
}

// A rule finds the history of each input by itself, whatever the others are.
TEST_P(SecondDerivativesTest, OfEachInputAlone) {
  if (!on_cpu()) GTEST_SKIP() << "finite differences on the CPU alone";
  for (const OpCase& c : testing::op_cases()) {
    const int count = static_cast<int>(c.inputs().size());
    for (int i = 0; count > 1 && i < count; ++i) {
      if (c.op == "where" && i == 0) continue;  // the condition has no gradient
      check(c, i);
    }
  }
}

// By single operations a rule rounds more often than in one kernel.
TEST_P(SecondDerivativesTest, FirstDerivativesAreThoseOfTheFusedRules) {
  for (const OpCase& c : testing::op_cases()) {
    for (std::size_t layout = 0; layout < 3; ++layout) {
      SCOPED_TRACE(c.op + " (" + c.variant + "), layout " + std::to_string(layout));
      const std::vector<Tensor> inputs = inputs_of(c, layout);
      std::vector<Tensor> outputs, grads;
      for (const Tensor& y : c.f(inputs)) {
        if (!y.requires_grad()) continue;
        outputs.push_back(y);
        grads.push_back(testing::some(y.shape(), DType::f64, -1, 1, 99));
      }
      const autograd::GradOptions plain{.retain_graph = true, .allow_unused = true};
      const auto want = grad(outputs, inputs, grads, plain);
      const auto got = grad(outputs, inputs, grads, {.create_graph = true, .allow_unused = true});
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].defined(), want[i].defined()) << "input " << i;
        if (!want[i].defined()) continue;
        ASSERT_EQ(got[i].shape(), want[i].shape()) << "input " << i;
        EXPECT_TRUE(testing::near_values(got[i], values_of(want[i]), 1e-12)) << "input " << i;
      }
    }
  }
}

// x^4: 4 x^3, 12 x^2, 24 x, 24, 0.
TEST_P(SecondDerivativesTest, OfAnyOrder) {
  const Tensor x = tensor({2.0, -3.0}, DType::f64).set_requires_grad();
  Tensor y = pow(x, 4);
  const double factors[] = {4, 12, 24, 24}, exponents[] = {3, 2, 1, 0};
  for (int order = 0; order < 4; ++order) {
    y = grad(sum(y), x, kRecorded);
    const double a = factors[order], n = exponents[order];
    EXPECT_TRUE(testing::near_values(y, {a * std::pow(2.0, n), a * std::pow(-3.0, n)}, 1e-12));
  }
}

// d(sum of y)/dx, recorded.
Tensor grad_sum(const Tensor& y, const Tensor& x) { return sum(grad(sum(y), x, kRecorded)); }

TEST_P(SecondDerivativesTest, OfWritesThroughViews) {
  const auto f = [](std::span<const Tensor> x) {
    Tensor y = x[0] * x[0];
    const Tensor row = y[1];
    row.mul_(x[1]);
    y.slice(1, 0, 2).add_(x[0].slice(1, 1, 3));
    return std::vector<Tensor>{y * row.sum(), row};
  };
  const std::vector<Tensor> inputs{testing::some({2, 3}, DType::f64, 0.5, 2, 1).set_requires_grad(),
                                   testing::some({3}, DType::f64, 0.5, 2, 2).set_requires_grad()};
  autograd::gradgradcheck("views", f, inputs);
}

TEST_P(SecondDerivativesTest, OfWritesInPlace) {
  const auto f = [](std::span<const Tensor> x) {
    Tensor y = x[0].clone();
    y.mul_(x[1]);
    y.add_(x[0], 2.0);
    y.div_(x[1]);
    y.mul_(y);
    y.mul_(3.0);
    return std::vector<Tensor>{relu(sin(y) * x[1])};
  };
  const std::vector<Tensor> inputs{
      testing::some({2, 3}, DType::f64, 0.5, 2, 1).set_requires_grad(),
      testing::some({2, 3}, DType::f64, 0.5, 2, 2).set_requires_grad()};
  autograd::gradgradcheck("in place", f, inputs);

  const auto check = [&](const char* name, auto write) {
    const auto one = [write](std::span<const Tensor> x) {
      const Tensor y = x[0].clone();
      write(y, x[1]);
      return std::vector<Tensor>{y * y * x[1]};
    };
    EXPECT_NO_THROW(autograd::gradgradcheck(name, one, inputs)) << name;
  };
  const Tensor chosen = testing::make({1, 0, 1}, {3}, DType::boolean);
  check("sub_", [](const Tensor& y, const Tensor& b) { y.sub_(b, 2.5); });
  check("clamp_", [](const Tensor& y, const Tensor&) { y.clamp_(0.8, 1.5); });
  check("clamp_", [](const Tensor& y, const Tensor& b) { y.clamp_(b - 1, b); });
  check("masked_fill_", [&](const Tensor& y, const Tensor&) { y.masked_fill_(chosen, 2); });
  check("masked_fill_", [&](const Tensor& y, const Tensor& b) { y.masked_fill_(chosen, b.sum()); });
  check("addcmul_", [](const Tensor& y, const Tensor& b) { y.addcmul_(b, b, 0.5); });
  check("addcdiv_", [](const Tensor& y, const Tensor& b) { y.addcdiv_(exp(b), b, -2); });
  check("exp_", [](const Tensor& y, const Tensor&) { y.exp_(); });
}

// The rule of a fused operation differentiates by each input alone, also where one input was
// computed from another.
TEST_P(SecondDerivativesTest, OfInputsThatDependOnEachOther) {
  const auto f = [](std::span<const Tensor> x) {
    const Tensor weight = mean(x[0], {0}) * x[1];
    return std::vector<Tensor>{layer_norm(x[0], {4}, weight, exp(weight))};
  };
  const std::vector<Tensor> inputs{testing::some({3, 4}, DType::f64, -1, 1, 1).set_requires_grad(),
                                   testing::some({4}, DType::f64, 0.5, 2, 2).set_requires_grad()};
  autograd::gradgradcheck("layer_norm", f, inputs);
}

const testing::Goldens goldens("tests/autograd/second_goldens");  // by write_second_goldens.py

using Loss = std::function<Tensor(const Tensor& w)>;

// w, v -> the product of the loss's Hessian by w with v
auto hessian_times(const Loss& loss) {
  return [loss](std::span<const Tensor> in) {
    const Tensor gradient = grad(loss(in[0]), in[0], kRecorded);
    return grad(sum(gradient * in[1]), in[0], kRecorded);
  };
}

// The gradients of these functions are third derivatives. The tolerance is some thousand roundings:
// sums of up to 50 products, three times in a row.
TEST_P(SecondDerivativesTest, ProductsWithAHessianAreThoseOfPyTorch) {
  const Tensor x = testing::ramp({3, 4}), images = testing::ramp({2, 2, 5, 5});
  const Tensor target = tensor({2.0, 0.0, 4.0}, DType::i64);
  const auto check = [&](const std::string& name, const Shape& shape, const Loss& loss) {
    testing::expect_goldens(goldens, "hessian_" + name, hessian_times(loss),
                            {testing::ramp(shape), testing::ramp(shape) * 2}, 1e-11);
  };
  check("mlp", {4, 5}, [&](const Tensor& w) { return sum(square(tanh(gelu(matmul(x, w))))); });
  check("cross_entropy", {4, 5}, [&](const Tensor& w) {
    return cross_entropy(matmul(x, w), target, {.label_smoothing = 0.1});
  });
  check("layer_norm", {4, 5},
        [&](const Tensor& w) { return mean(exp(layer_norm(matmul(x, w), {5}, {}, {}))); });
  check("batch_norm", {3, 2, 3, 3}, [&](const Tensor& w) {
    return sum(sigmoid(batch_norm(conv2d(images, w, {}, {.stride = {2, 2}}), {}, {}, {}, {})));
  });
}

TEST_P(SecondDerivativesTest, ThePenaltyOnACriticsSlopeIsThatOfPyTorch) {
  const auto penalty = [](std::span<const Tensor> in) {
    const Tensor x = testing::ramp({2, 2, 5, 5}).set_requires_grad();
    const Tensor hidden = conv2d(x, in[0], {}, {.stride = {2, 2}, .padding = {1, 1}});
    const Tensor score = sum(conv2d(leaky_relu(hidden, 0.2), in[1], {}, {}));
    return mean(square(norm(grad(score, x, kRecorded).flatten(1), {1}) - 1));
  };
  testing::expect_goldens(goldens, "penalty", penalty,
                          {testing::ramp({4, 2, 3, 3}), testing::ramp({1, 4, 3, 3})}, 1e-12);
}

// Where factors are 0, the product of the others counts.
TEST_P(SecondDerivativesTest, OfProductsWithZeros) {
  const auto f = [](std::span<const Tensor> x) {
    return std::vector<Tensor>{prod(x[0], {1}), cumprod(x[0], 1)};
  };
  const std::vector<Tensor> inputs{tensor({2.0, 0.0, 3.0, 0.5, 0.0, 0.0, 4.0, -1.0}, DType::f64)
                                       .reshape({2, 4})
                                       .detach()
                                       .set_requires_grad()};
  autograd::gradgradcheck("prod", f, inputs);
}

// Where the fused rules give 0, the recorded ones do, and what follows from them is finite.
TEST_P(SecondDerivativesTest, NothingComesOfWhatDoesNotCount) {
  const double nan = std::nan("");
  const Tensor logits =
      tensor({nan, nan, 0.5, 1.0, -1.0, 2.0}, DType::f64).reshape({3, 2}).detach();
  for (const double last : {-100.0, 1.0}) {
    const Tensor x = logits.clone().set_requires_grad();
    const Tensor target = tensor({-100.0, last, last}, DType::i64);
    const Tensor loss = cross_entropy(x, target);
    const Tensor seed = tensor({1.0}, DType::f64).reshape({});
    const Tensor want = grad({&loss, 1}, {&x, 1}, {&seed, 1}, {.retain_graph = true})[0];
    const Tensor g = grad({&loss, 1}, {&x, 1}, {&seed, 1}, kRecorded)[0];
    EXPECT_TRUE(testing::near_values(g, values_of(want), 1e-12));
    EXPECT_FALSE(isnan(grad(sum(g * g), x)).any().item<bool>());
  }
  const Tensor x = tensor({0.0, 1.0, 2.0}, DType::f64).set_requires_grad();
  const Tensor of_norm = grad(grad_sum(p_norm(x, 1.5), x), x);
  EXPECT_TRUE(std::isfinite(of_norm.to_vector<double>()[1]));
  const Tensor same = ones({4}, DType::f64).set_requires_grad();
  EXPECT_TRUE(testing::near_values(grad(grad_sum(weft::std(same), same), same), {0, 0, 0, 0}, 0));
}

// The recorded rules of these compute in f64, as the fused ones.
TEST_P(SecondDerivativesTest, SmallDtypesAreWidened) {
  const Tensor x = tensor({100.0, 100.5, 101.0, 102.0}, DType::bf16).set_requires_grad();
  const Tensor y = weft::std(x);
  const Tensor want = grad(y, x, {.retain_graph = true}), got = grad(y, x, kRecorded);
  EXPECT_TRUE(testing::near_values(got, values_of(want), 0x1p-8));
  const Tensor factors = tensor({1e30, 1e30, 1e-30, 1e-30, 5.0}, DType::f32).set_requires_grad();
  EXPECT_NEAR(grad(prod(factors), factors, kRecorded).to_vector<float>()[4], 1, 1e-6);
}

// What was saved counts, not what the leaf holds now.
TEST(CreateGraphTest, ALeafThatHasChangedKeepsItsOldValueInTheTape) {
  const Tensor logits =
      tensor({1.0, 2.0, 3.0}, DType::f64).reshape({1, 3}).detach().set_requires_grad();
  const Tensor loss = cross_entropy(logits, tensor({0.0}, DType::i64));
  const Tensor want = grad(loss, logits, {.retain_graph = true});
  {
    const NoGrad no_grad;
    logits.mul_(2);
  }
  const Tensor got = grad(loss, logits, kRecorded);
  EXPECT_TRUE(testing::near_values(got, values_of(want), 1e-12));
  EXPECT_TRUE(grad(sum(got * got), logits).defined());
}

TEST(CreateGraphTest, KeepsTheTape) {
  const Tensor x = tensor({3.0}, DType::f64).set_requires_grad();
  const Tensor y = x * x * x;
  const Tensor first = grad(y, x, kRecorded), again = grad(y, x, kRecorded);
  EXPECT_EQ(first.item<double>(), 27);
  EXPECT_EQ(again.item<double>(), 27);
  EXPECT_EQ(grad(first, x).item<double>(), 18);
}

TEST(CreateGraphTest, BackwardLeavesGradientsWithAHistory) {
  const Tensor x = tensor({3.0}, DType::f64).set_requires_grad();
  (x * x * x).backward({}, false, true);
  EXPECT_TRUE(x.grad().requires_grad());
  (x * x).backward({}, false, true);
  const Tensor sum = x.grad();  // 3 x^2 + 2 x
  EXPECT_EQ(sum.item<double>(), 33);
  EXPECT_EQ(grad(sum, x).item<double>(), 20);
  autograd::zero_grad(x);
  EXPECT_FALSE(x.grad().defined());
}

TEST(CreateGraphTest, WithoutItGradientsHaveNoHistory) {
  const Tensor x = tensor({3.0}, DType::f64).set_requires_grad();
  const Tensor first = grad(x * x, x);
  EXPECT_FALSE(first.requires_grad());
  EXPECT_WEFT_ERROR(first.backward(), InvalidArgument, "in a backward without create_graph");
}

// As torch.autograd.grad, which turns recording on for the backward alone.
TEST(CreateGraphTest, RecordsUnderNoGradToo) {
  const Tensor x = tensor({3.0}, DType::f64).set_requires_grad();
  const Tensor y = x * x * x;
  const NoGrad no_grad;
  EXPECT_TRUE(grad(y, x, kRecorded).requires_grad());
  EXPECT_FALSE(thread_state().grad_enabled);
  EXPECT_FALSE(thread_state().create_graph);
}

TEST(CreateGraphTest, ItsGradientsOfOutputsMayHaveAHistory) {
  const Tensor x = tensor({3.0}, DType::f64).set_requires_grad();
  const Tensor v = tensor({5.0}, DType::f64).set_requires_grad();
  const Tensor y = x * x;
  const Tensor g = grad({&y, 1}, {&x, 1}, {&v, 1}, kRecorded)[0];  // 2 x v
  EXPECT_EQ(grad(g, v, {.retain_graph = true}).item<double>(), 6);
  EXPECT_EQ(grad(g, x).item<double>(), 10);
}

TEST(CreateGraphTest, HooksComputeWithHistory) {
  const Tensor x = tensor({3.0}, DType::f64).set_requires_grad();
  const Tensor h = x * x;
  autograd::add_grad_hook(h, [](const Tensor& g) { return g * g; });
  const Tensor g = grad(h * x, x, kRecorded);  // h + g^2 2x with g = x: x^2 + 2 x^3
  EXPECT_EQ(g.item<double>(), 9 + 54);
  EXPECT_EQ(grad(g, x).item<double>(), 6 + 54);
}

struct Cube : autograd::Function<Cube> {
  static constexpr bool differentiable_backward = true;
  static Tensor forward(autograd::Context& context, const Tensor& x) {
    const Tensor y = x * x;
    context.save_for_backward({x, y});
    return y * x;
  }
  static std::vector<Tensor> backward(autograd::Context& context, std::span<const Tensor> grads) {
    return {grads[0] * context.saved(0) * context.saved(0) * 3};
  }
};
// Saves its result, which has a history in a recorded backward, too.
struct Exp : autograd::Function<Exp> {
  static constexpr bool differentiable_backward = true;
  static Tensor forward(autograd::Context& context, const Tensor& x) {
    const Tensor y = exp(x);
    context.save_for_backward({y});
    return y;
  }
  static std::vector<Tensor> backward(autograd::Context& context, std::span<const Tensor> grads) {
    return {grads[0] * context.saved(0)};
  }
};
struct Once : autograd::Function<Once> {
  static Tensor forward(autograd::Context&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor> grads) {
    return {grads[0] * 2};
  }
};

TEST(CreateGraphTest, AFunctionMayDeclareItsBackwardDifferentiable) {
  const Tensor x = tensor({2.0}, DType::f64).set_requires_grad();
  EXPECT_EQ(grad(grad(Cube::apply(x), x, kRecorded), x).item<double>(), 12);
  const Tensor e = grad(grad(Exp::apply(x * 3), x, kRecorded), x);
  EXPECT_NEAR(e.item<double>(), 9 * std::exp(6.0), 1e-9);
  const Tensor y = Once::apply(x);
  EXPECT_WEFT_ERROR(grad(y, x, kRecorded), Unsupported, "has no second derivative");
  EXPECT_EQ(grad(y, x).item<double>(), 2) << "the refusal frees nothing";
}

TEST(CreateGraphTest, RefusesByName) {
  const Tensor x = tensor({2.0}, DType::f64).set_requires_grad();
  const Tensor y = autograd::checkpoint([](const Tensor& t) { return t * t; }, x);
  EXPECT_WEFT_ERROR(grad(y, x, kRecorded), Unsupported, "checkpoint");
  autograd::set_grad_storage(x, zeros({1}, DType::f64));
  EXPECT_WEFT_ERROR((x * x).backward({}, false, true), Unsupported, "memory that was given");
  EXPECT_EQ(grad(grad(x * x, x, kRecorded), x).item<double>(), 2);
}

TEST(CreateGraphTest, RefusesSeveralDevices) {
  set_host_devices(2);
  const Tensor x = tensor({2.0}, DType::f64).set_requires_grad();
  const Tensor y = ((x * x).to(Device("cpu:1")) * 3).to(Device("cpu:0")) * x;
  EXPECT_WEFT_ERROR(grad(y, x, kRecorded), Unsupported, "several devices");
  set_host_devices(1);
}

}  // namespace
}  // namespace weft
