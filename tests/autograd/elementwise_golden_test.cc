// Values and gradients of every element-wise operation, also for special values, against PyTorch's.
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "weft/autograd/ops.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::values_of;

const testing::Goldens goldens("tests/autograd/elementwise_goldens");

class ElementwiseGoldenTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ElementwiseGoldenTest);

using One = std::function<Tensor(const Tensor&)>;
using Two = std::function<Tensor(const Tensor&, const Tensor&)>;

const std::map<std::string, One>& unary() {
  static const std::map<std::string, One> table{
#define X(value, name, ...) {#name, [](const Tensor& x) { return weft::name(x); }},
      WEFT_UNARY_OPS(X)
#undef X
          {"add_number", [](const Tensor& x) { return x + 1.5; }},
      {"sub_number", [](const Tensor& x) { return x - 1.5; }},
      {"mul_number", [](const Tensor& x) { return x * -2.5; }},
      {"number_sub", [](const Tensor& x) { return 1.5 - x; }},
      {"number_div", [](const Tensor& x) { return 1.5 / x; }},
      {"div_number", [](const Tensor& x) { return x / 3; }},
      {"div_power", [](const Tensor& x) { return x / 4; }},
      {"pow_2.5", [](const Tensor& x) { return pow(x, 2.5); }},
      {"pow_3", [](const Tensor& x) { return pow(x, 3); }},
      {"pow_-1", [](const Tensor& x) { return pow(x, -1); }},
      {"maximum_number", [](const Tensor& x) { return maximum(x, 0.5); }},
      {"minimum_number", [](const Tensor& x) { return minimum(x, 0.5); }},
      {"remainder_number", [](const Tensor& x) { return x % -1.5; }},
      {"floor_divide_number", [](const Tensor& x) { return floor_divide(x, -1.5); }},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.25); }},
      {"clamp", [](const Tensor& x) { return clamp(x, -1, 2); }},
      {"clamp_min", [](const Tensor& x) { return clamp(x, -1); }},
      {"clamp_max", [](const Tensor& x) { return clamp(x, {}, 2); }},
      {"elu", [](const Tensor& x) { return elu(x, 1.5); }},
      {"softplus", [](const Tensor& x) { return softplus(x, 2, 5); }},
      {"smooth_l1", [](const Tensor& x) { return smooth_l1(x); }},
  };
  return table;
}

const std::map<std::string, Two>& binary() {
  static const std::map<std::string, Two> table{
#define X(value, name, ...) \
  {#name, [](const Tensor& a, const Tensor& b) { return weft::name(a, b); }},
      WEFT_BINARY_OPS(X) WEFT_COMPARE_OPS(X)
#undef X
  };
  return table;
}

// What a new operation may have in place of PyTorch's results: values computed by hand, at least
// five of them.
struct ByHand {
  std::vector<double> x;  // one number or two
  double y;
  std::vector<double> slopes;  // dy/dx of each; empty for a comparison
};
const std::map<std::string, std::vector<ByHand>> by_hand{
    // operations by hand
};

const char* const how_to_get_goldens =
    " has no golden. With PyTorch, name it in tests/autograd/write_elementwise_goldens.py and run\n"
    "  python3 tests/autograd/write_elementwise_goldens.py\n"
    "Without, write five values into by_hand in tests/autograd/elementwise_golden_test.cc";

struct Golden {
  std::string op;
  DType dtype;  // dtype of the operands
  Tensor y;
  std::string prefix;  // prefix of the names of its tensors
};

// The results for "unary" or "binary" operations in the file.
std::vector<Golden> results(const std::string& kind) {
  std::vector<Golden> all;
  for (const auto& [name, y] : goldens.tensors()) {
    if (!name.starts_with(kind + "/") || !name.ends_with("/y")) continue;
    const std::string prefix = name.substr(0, name.size() - 1);
    const std::string middle = prefix.substr(kind.size() + 1, prefix.size() - kind.size() - 2);
    const std::size_t slash = middle.find('/');
    all.push_back({middle.substr(0, slash), parse_dtype(middle.substr(slash + 1)), y, prefix});
  }
  return all;
}

std::vector<double> upstream(std::size_t n) {
  std::vector<double> g(n);
  for (std::size_t i = 0; i < n; ++i) g[i] = i % 3 == 0 ? 1.0 : i % 3 == 1 ? -2.0 : 0.5;
  return g;
}

Tensor operand(const std::vector<double>& values, DType dtype) {
  return make(values, {std::ssize(values)}, dtype);
}

struct Bound {
  double relative = 0;  // of the value
  double absolute = 0;
};

void expect_near(const Tensor& got, const Tensor& golden, const Bound& bound,
                 const std::string& what, const std::vector<double>& x,
                 const std::vector<double>& second = {}) {
  EXPECT_EQ(got.dtype(), golden.dtype()) << what;
  const std::vector<double> values = values_of(got), want = values_of(golden);
  ASSERT_EQ(values.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(values[i])) continue;
    // PyTorch's remainder divides first, which may overflow.
    const double largest = got.dtype() == DType::f64 ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
    const bool overflows =
        !second.empty() && second[i] != 0 && std::abs(x[i] / second[i]) > largest;
    if (what.starts_with("remainder") && overflows && std::isfinite(x[i])) continue;
    if (values[i] == want[i]) continue;
    EXPECT_LE(std::abs(values[i] - want[i]), bound.relative * std::abs(want[i]) + bound.absolute)
        << what << " at " << x[i] << (second.empty() ? "" : ", " + std::to_string(second[i]))
        << ": got " << values[i] << ", PyTorch has " << want[i];
  }
}

// The error of one rounding in the dtype, and its smallest positive number.
double roundoff(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : 0x1p-9;
}
double smallest(DType dtype) {
  return dtype == DType::f64 ? 0x1p-1074 : dtype == DType::f32 ? 0x1p-149 : 0x1p-133;
}

// IEEE 754 defines most results to the last bit. The others may differ by a few units of the last
// place in weft (4 on CUDA) and by one or two in PyTorch, whose square root of f64 and division of
// a number are not rounded correctly either.
Bound bound_of(const std::string& op, DType dtype) {
  static const std::set<std::string> rounded{
      "exp",         "log",      "log1p", "expm1",   "erf",   "tan",     "sin",       "silu",
      "elu",         "softplus", "cos",   "tanh",    "sqrt",  "sigmoid", "gelu",      "gelu_tanh",
      "log_sigmoid", "rsqrt",    "pow",   "pow_2.5", "pow_3", "pow_-1",  "number_div"};
  if (!rounded.contains(op)) return {};
  const double unit = roundoff(dtype);
  Bound bound{12 * unit, 2 * smallest(dtype)};
  // 1 + erf(x) loses digits where it is small.
  if (op == "gelu" || op == "gelu_tanh") bound.absolute = 4 * unit;
  // PyTorch's results are 0 if exp(-x) is infinite.
  if (op == "sigmoid" || op == "silu") bound.absolute = 2 * smallest(dtype) / unit;
  return bound;
}

TEST_P(ElementwiseGoldenTest, ValuesByHand) {
  for (const auto& [op, values] : by_hand) {
    EXPECT_GE(values.size(), 5u) << op;
    for (const ByHand& value : values) {
      SCOPED_TRACE(op + " at " + std::to_string(value.x[0]));
      std::vector<Tensor> x;
      for (const double number : value.x) x.push_back(make({number}, {}, DType::f64));
      for (const Tensor& operand : x) operand.set_requires_grad(!value.slopes.empty());
      const Tensor y = x.size() == 1 ? unary().at(op)(x[0]) : binary().at(op)(x[0], x[1]);
      EXPECT_NEAR(y.item<double>(), value.y, 1e-12);
      for (std::size_t i = 0; i < value.slopes.size(); ++i) {
        if (i == 0) y.backward();
        EXPECT_NEAR(x[i].grad().item<double>(), value.slopes[i], 1e-12) << "gradient " << i;
      }
    }
  }
}

TEST_P(ElementwiseGoldenTest, OneOperand) {
  std::set<std::string> seen;
  for (const Golden& golden : results("unary")) {
    seen.insert(golden.op);
    const std::string dtype = to_string(golden.dtype), what = golden.op + " of " + dtype;
    const std::vector<double> xs = goldens["unary/" + dtype + "/x"];
    const bool differentiated = goldens.tensors().contains(golden.prefix + "grad");
    const Tensor x = operand(xs, golden.dtype);
    if (differentiated) x.set_requires_grad();
    const Tensor y = unary().at(golden.op)(x);
    EXPECT_EQ(y.dtype(), golden.dtype) << what;
    const double unit = roundoff(golden.dtype);
    expect_near(y, golden.y, bound_of(golden.op, golden.dtype), what, xs);
    if (!differentiated) continue;
    y.backward(operand(upstream(xs.size()), golden.dtype));
    expect_near(x.grad(), goldens.tensor(golden.prefix + "grad"), {16 * unit, 16 * unit},
                "gradient of " + what, xs);
  }
  for (const auto& [op, f] : unary())
    EXPECT_TRUE(seen.contains(op) || by_hand.contains(op)) << op << how_to_get_goldens;
}

TEST_P(ElementwiseGoldenTest, TwoOperands) {
  std::set<std::string> seen;
  for (const Golden& golden : results("binary")) {
    seen.insert(golden.op);
    const std::string dtype = to_string(golden.dtype), what = golden.op + " of " + dtype;
    const std::vector<double> as = goldens["binary/" + dtype + "/a"];
    const std::vector<double> bs = goldens["binary/" + dtype + "/b"];
    const bool differentiated = goldens.tensors().contains(golden.prefix + "grad_a");
    const Tensor a = operand(as, golden.dtype), b = operand(bs, golden.dtype);
    if (differentiated) a.set_requires_grad(), b.set_requires_grad();
    const Tensor y = binary().at(golden.op)(a, b);
    const double unit = roundoff(golden.dtype);
    expect_near(y, golden.y, bound_of(golden.op, golden.dtype), what, as, bs);
    if (!differentiated) continue;
    y.backward(operand(upstream(as.size()), golden.dtype));
    const Bound bound{16 * unit, 16 * unit};
    expect_near(a.grad(), goldens.tensor(golden.prefix + "grad_a"), bound, "gradient a of " + what,
                as, bs);
    expect_near(b.grad(), goldens.tensor(golden.prefix + "grad_b"), bound, "gradient b of " + what,
                as, bs);
  }
  for (const auto& [op, f] : binary())
    EXPECT_TRUE(seen.contains(op) || by_hand.contains(op)) << op << how_to_get_goldens;
}

}  // namespace
}  // namespace weft
