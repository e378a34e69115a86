// Checks every recorded operation's rule against finite differences, and that the list is complete.
#include "weft/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>

#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/tests/autograd/op_cases.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/declared.h"
#include "weft/tests/device_param.h"
#include "weft/tests/every_case.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::OpCase;

constexpr int kAll = -1;
constexpr std::size_t kReversed = 1;  // of image_layouts(); up to one dimension, the first again

// `layout`: of every input that may have it. `only`: the one input that requires a gradient, while
// the others are constants; or kAll.
void check(const OpCase& c, std::size_t layout, int only) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : c.inputs()) {
    const std::vector<Tensor> laid = testing::image_layouts(x);
    inputs.push_back(laid[std::min(layout, laid.size() - 1)]);
    const int index = static_cast<int>(inputs.size()) - 1;
    if (only == kAll || only == index) inputs.back().set_requires_grad();
  }
  try {
    autograd::gradcheck(c.op, c.f, inputs);
  } catch (const std::exception& e) {
    ADD_FAILURE() << c.op << " (" << c.variant << "), layout " << layout << ", input "
                  << (only == kAll ? "all" : std::to_string(only)) << ": " << e.what();
  }
}

class GradcheckTest : public testing::DeviceParam {};

// Emulated GPUs take seconds for each layout: there one of each case in turn, as EveryOpTest
// compares the gradients in all layouts.
TEST_P(GradcheckTest, EveryRuleInEveryLayout) {
  std::size_t turn = 0;
  for (const OpCase& c : testing::op_cases()) {
    const std::vector<Tensor> inputs = c.inputs();
    const bool two_orders =
        std::ranges::any_of(inputs, [](const Tensor& x) { return x.dim() > 1; });
    const std::size_t layouts = testing::image_layouts(inputs[0]).size();
    if (!on_cpu() && c.slack != 0 && !testing::every_case()) {
      check(c, turn++ % layouts, kAll);
      continue;
    }
    for (std::size_t i = 0; i < layouts; ++i) {
      if (i != kReversed || two_orders) check(c, i, kAll);
    }
  }
}

// A rule saves and computes only what is needed, for every combination of inputs.
TEST_P(GradcheckTest, EachInputAlone) {
  for (const OpCase& c : testing::op_cases()) {
    const int count = static_cast<int>(c.inputs().size());
    for (int i = 0; count > 1 && i < count; ++i) {
      if (c.op == "where" && i == 0) continue;  // the condition has no gradient
      check(c, 0, i);
    }
  }
}
WEFT_FOR_EACH_DEVICE(GradcheckTest);

// The headers that autograd/ops.h includes of autograd/.
std::vector<std::string> families() {
  std::vector<std::string> headers;
  std::ifstream text("autograd/ops.h");
  const std::regex include(R"re(#include "weft/(autograd/\w+\.h)")re");
  std::smatch match;
  for (std::string line; std::getline(text, line);) {
    if (std::regex_match(line, match, include)) headers.push_back(match[1]);
  }
  return headers;
}

// What tensor/ops.h declares in weft::raw, and autograd/ops.h in weft::.
std::set<std::string> declared_operations() {
  std::set<std::string> names = testing::tensor_functions("tensor/ops.h");
  EXPECT_GT(names.size(), 90u) << "tensor/ops.h was not read";
  const std::vector<std::string> headers = families();
  EXPECT_GT(headers.size(), 15u) << "autograd/ops.h was not read";
  for (const std::string& header : headers) {
    const std::set<std::string> recorded = testing::tensor_functions(header);
    EXPECT_FALSE(recorded.empty()) << header << " was not read";
    names.insert(recorded.begin(), recorded.end());
  }
#define X(value, name, ...) names.insert(#name);
  WEFT_UNARY_OPS(X)
  WEFT_BINARY_OPS(X)
  WEFT_COMPARE_OPS(X)
#undef X
  return names;
}

TEST(CoverageTest, EachOperationHasARuleOrIsListedWithout) {
  const std::set<std::string> declared = declared_operations();
  std::set<std::string> checked;
  for (const OpCase& c : testing::op_cases()) checked.insert(c.op);
  for (const std::string& name : declared) {
    const int places = static_cast<int>(checked.contains(name)) +
                       static_cast<int>(testing::non_differentiable().contains(name)) +
                       static_cast<int>(testing::not_recorded().contains(name));
    EXPECT_EQ(places, 1) << name << " of tensor/ops.h or autograd/ops.h: give it a gradcheck in "
                         << "op_cases.cc, or list it in non_differentiable()";
  }
  for (const auto* list : {&testing::non_differentiable(), &testing::not_recorded(),
                           static_cast<const std::set<std::string>*>(&checked)}) {
    for (const std::string& name : *list) {
      EXPECT_TRUE(declared.contains(name)) << name << " is listed, and no header declares it";
    }
  }
}

TEST(CoverageTest, NonDifferentiableResultsDoNotRequireGradients) {
  const Tensor x = testing::some({2, 3}, DType::f64).set_requires_grad();
  EXPECT_FALSE((eq(x, x)).requires_grad());
  EXPECT_FALSE(lt(x, 1.0).requires_grad());
  EXPECT_FALSE(logical_not(x).requires_grad());
  EXPECT_FALSE(all(x).requires_grad());
  EXPECT_FALSE(any(x).requires_grad());
  EXPECT_FALSE(argmax(x, 0).requires_grad());
  EXPECT_FALSE(argmin(x, 0).requires_grad());
  EXPECT_FALSE(argsort(x).requires_grad());
  EXPECT_FALSE(sort(x).indices.requires_grad());
  EXPECT_FALSE(median(x, 0).indices.requires_grad());
  EXPECT_FALSE(nonzero(x).requires_grad());
  EXPECT_FALSE(searchsorted(x, x).requires_grad());
  EXPECT_FALSE(bincount(zeros({1}, DType::i64), x[0][0].reshape({1})).requires_grad());
  EXPECT_FALSE(unique(x).values.requires_grad());
  EXPECT_FALSE(x.to(DType::i64).requires_grad());
}

struct WrongSquare : autograd::Function<WrongSquare> {
  static Tensor forward(autograd::Context& ctx, const Tensor& x) {
    ctx.save_for_backward({x});
    return square(x);
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    return {grads[0] * ctx.saved(0) * 3.0};
  }
};

TEST(GradcheckErrorTest, NamesOperationInputElementAndBothValues) {
  const Tensor a = testing::make({1, 2}, {2}, DType::f64);
  const Tensor x = testing::make({1, 2}, {2}, DType::f64).set_requires_grad();
  const auto f = [](std::span<const Tensor> in) { return WrongSquare::apply(in[1]); };
  EXPECT_WEFT_ERROR(autograd::gradcheck("my_square", f, {a, x}), InvalidArgument,
                    "[my_square] gradcheck: d(output 0, element 0)/d(input 1, element 0): backward "
                    "gives 3, differences give 2");
  EXPECT_EQ(testing::values_of(x), (std::vector<double>{1, 2}));
}

TEST(GradcheckErrorTest, RefusesWhatItCannotCheck) {
  const auto f = [](std::span<const Tensor> in) { return square(in[0]); };
  const Tensor x = testing::some({2}, DType::f32).set_requires_grad();
  EXPECT_WEFT_ERROR(autograd::gradcheck("square", f, {x}), Dtype, "need f64");
  const std::function<Tensor(std::span<const Tensor>)> none;
  EXPECT_WEFT_ERROR(autograd::gradcheck("square", none, {x}), InvalidArgument,
                    "[square] gradcheck: the function is empty");
  EXPECT_WEFT_ERROR(autograd::gradcheck("square", f, {testing::some({2}, DType::f64)}),
                    InvalidArgument, "no input requires a gradient");
}

TEST(GradcheckErrorTest, SecondDerivativesOfOneResult) {
  const Tensor x = testing::make({1, 2}, {2}, DType::f64).set_requires_grad();
  autograd::gradgradcheck("cube", [](std::span<const Tensor> in) { return pow(in[0], 3); }, {x});
  const auto f = [](std::span<const Tensor> in) { return WrongSquare::apply(in[0]); };
  EXPECT_WEFT_ERROR(autograd::gradgradcheck("my_square", f, {x}), Unsupported, "WrongSquare");
  const std::function<Tensor(std::span<const Tensor>)> none;
  EXPECT_WEFT_ERROR(autograd::gradgradcheck("square", none, {x}), InvalidArgument,
                    "[square] gradgradcheck: the function is empty");
}

TEST(RuleTest, NormHasNoGradientAtZero) {
  const Tensor x = zeros({3}, DType::f64).set_requires_grad();
  norm(x).backward();
  EXPECT_TENSOR(x.grad(), {3}, {0, 0, 0});
}

TEST(RuleTest, TiesShareTheGradientOfAnExtreme) {
  const Tensor x = testing::make({1, 4, 4, 2}, {4}, DType::f64).set_requires_grad();
  max(x).backward();
  EXPECT_TENSOR(x.grad(), {4}, {0, 0.5, 0.5, 0});
  const Tensor y = testing::make({2, 3}, {2}, DType::f64).set_requires_grad();
  maximum(y, 2.0).sum().backward();
  EXPECT_TENSOR(y.grad(), {2}, {0.5, 1});
}

TEST(RuleTest, DimensionsOfAScalar) {
  using Inputs = std::span<const Tensor>;
  const Tensor zero = zeros({}, DType::i64);
  for (const int dim : {0, -1}) {
    const std::function<Tensor(Inputs)> rules[] = {
        [=](Inputs x) { return sum(x[0], {dim}); },
        [=](Inputs x) { return mean(x[0], {dim}, true); },
        [=](Inputs x) { return prod(x[0], {dim}); },
        [=](Inputs x) { return max(x[0], {dim}); },
        [=](Inputs x) { return min(x[0], {dim}); },
        [=](Inputs x) { return var(x[0], {dim}, 0); },
        [=](Inputs x) { return norm(x[0], {dim}); },
        [=](Inputs x) { return softmax(x[0], dim); },
        [=](Inputs x) { return log_softmax(x[0], dim); },
        [=](Inputs x) { return index_select(x[0], dim, zero); },
        [=](Inputs x) { return gather(x[0], dim, zeros({3}, DType::i64)); },
        [=](Inputs x) { return x[0].transpose(0, dim) * x[0]; },
        [=](Inputs x) { return x[0].squeeze(dim) * x[0]; },
        [=](Inputs x) { return x[0].unsqueeze(dim) * x[0]; },
        [=](Inputs x) { return x[0].flatten(0, dim) * x[0]; },
    };
    for (std::size_t i = 0; i < std::size(rules); ++i) {
      autograd::gradcheck(detail::concat("rule ", i), rules[i],
                          {scalar(1.5, DType::f64).set_requires_grad()});
    }
  }
}

TEST(RuleTest, AScalarsGradientHasItsOwnDtype) {
  const Tensor x = testing::make({1, 2}, {2}).set_requires_grad();
  const Tensor factor = scalar(3, DType::f64).set_requires_grad();
  const Tensor y = x * factor;
  EXPECT_EQ(y.dtype(), DType::f32);
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), ({2}), {3, 3});
  EXPECT_TENSOR(factor.grad(), ({}), {3});
  EXPECT_EQ(factor.grad().dtype(), DType::f64);
}

TEST(RuleTest, DivisionsGradientDoesNotOverflowOnTheWay) {
  const Tensor a = full({9}, 1e-25).set_requires_grad(), b = full({9}, 1e-25).set_requires_grad();
  (a / b).sum().backward();
  EXPECT_TRUE(testing::near_values(b.grad(), std::vector<double>(9, -1e25), 1e-6));
  EXPECT_TRUE(testing::near_values(a.grad(), std::vector<double>(9, 1e25), 1e-6));
}

TEST(RuleTest, GradientsHaveTheOperandsDtype) {
  const Tensor a = testing::some({2, 3}, DType::f32).set_requires_grad();
  const Tensor b = testing::some({3}, DType::f64).set_requires_grad();
  const Tensor c = testing::some({2, 3}, DType::bf16).set_requires_grad();
  (add(a, b) * b - c).sum().backward();
  EXPECT_EQ(a.grad().dtype(), DType::f32);
  EXPECT_EQ(b.grad().dtype(), DType::f64);
  EXPECT_EQ(c.grad().dtype(), DType::bf16);
  EXPECT_TENSOR(c.grad(), ({2, 3}), {-1, -1, -1, -1, -1, -1});

  const Tensor d = testing::make({1, 2}, {2}, DType::f64).set_requires_grad();
  (d.to(DType::f32) * 3.0).sum().backward();
  EXPECT_EQ(d.grad().dtype(), DType::f64);
  EXPECT_TENSOR(d.grad(), {2}, {3, 3});
  const Tensor e = testing::make({5}, {1}, DType::f32).set_requires_grad();
  cat({e, testing::make({1}, {1}, DType::f64)}).sum().backward();
  EXPECT_EQ(e.grad().dtype(), DType::f32);
}

TEST(RuleTest, CrossEntropyOfImagesChecksItsTarget) {
  const Tensor x = testing::some({2, 3, 2, 2}, DType::f64).set_requires_grad();
  EXPECT_WEFT_ERROR(cross_entropy(x, zeros({2, 2, 3}, DType::i64)), Shape,
                    "target: got [2,2,3], logits [2,3,2,2] need [2,2,2]");
}

}  // namespace
}  // namespace weft
