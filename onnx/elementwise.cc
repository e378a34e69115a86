#include <cmath>
#include <numbers>

#include "weft/onnx/operation.h"

namespace weft::onnx {
namespace {

using std::numbers::pi;
using std::numbers::sqrt2;

// One node with the same operands.
Rule same(const char* type) {
  return [type](Operation& o) -> Names {
    Names inputs;
    for (std::size_t i = 0; i < o.operands(); ++i) inputs.push_back(o.in(i));
    return {o.node(type, inputs)};
  };
}
// One node with a number as its second, or first, operand.
Rule with_number(const char* type) {
  return
      [type](Operation& o) -> Names { return {o.node(type, {o.in(), o.constant(o.number("a"))})}; };
}
Rule number_with(const char* type) {
  return
      [type](Operation& o) -> Names { return {o.node(type, {o.constant(o.number("a")), o.in()})}; };
}

// x / 2 times 1 + f
Names half_of(Operation& o, const std::string& x, const std::string& f) {
  const std::string half = o.node("Mul", {x, o.constant(0.5)});
  return {o.node("Mul", {half, o.node("Add", {f, o.constant(1)})})};
}

Names gelu(Operation& o) {
  const std::string x = o.in();
  return half_of(o, x, o.node("Erf", {o.node("Mul", {x, o.constant(1 / sqrt2)})}));
}

Names gelu_tanh(Operation& o) {
  const std::string x = o.in();
  const std::string cube = o.node("Mul", {x, o.node("Mul", {x, x})});
  const std::string sum = o.node("Add", {x, o.node("Mul", {cube, o.constant(0.044715)})});
  return half_of(o, x, o.node("Tanh", {o.node("Mul", {sum, o.constant(std::sqrt(2 / pi))})}));
}

Names log_sigmoid(Operation& o) {
  return {o.node("Neg", {o.node("Softplus", {o.node("Neg", {o.in()})})})};
}

Names softplus(Operation& o) {
  const std::string x = o.in(), scaled = o.node("Mul", {x, o.constant(o.number("a"))});
  const std::string y = o.node("Div", {o.node("Softplus", {scaled}), o.constant(o.number("a"))});
  return {o.node("Where", {o.node("Greater", {scaled, o.constant(o.number("b"))}), x, y})};
}

Names trunc(Operation& o) {
  const std::string x = o.in(), size = o.node("Floor", {o.node("Abs", {x})});
  return {o.node("Mul", {o.node("Sign", {x}), size})};
}

Names clamp(Operation& o) {
  const auto bound = [&](const char* name) {
    const double value = o.number(name);
    return std::isinf(value) ? std::string() : o.constant(value);
  };
  return {o.node("Clip", {o.in(), bound("a"), bound("b")})};
}

// a - b floor(a / b): the rest has the sign of b. ONNX's Mod takes floating numbers only with C's
// rule, by which it has the sign of a.
Names remainder(Operation& o) {
  const std::string a = o.in(0), b = o.in(1);
  const std::string times = o.node("Floor", {o.node("Div", {a, b})});
  return {o.node("Sub", {a, o.node("Mul", {b, times})})};
}

// y += alpha b
Names add_scaled(Operation& o) {
  const double alpha = o.number("alpha");
  if (alpha == -1) return {o.node("Sub", {o.in(0), o.in(1)})};
  const std::string b = alpha == 1 ? o.in(1) : o.node("Mul", {o.in(1), o.constant(alpha)});
  return {o.node("Add", {o.in(0), b})};
}

// y = factor y + addend
Names scale(Operation& o) {
  const double factor = o.number("factor"), addend = o.number("addend");
  std::string y = o.in();
  if (factor != 1) y = o.node("Mul", {y, o.constant(factor)});
  return {addend != 0 ? o.node("Add", {y, o.constant(addend)}) : y};
}

// y = b, or y = a number
Names overwrite(Operation& o) {
  return {o.expand(o.operands() > 1 ? o.in(1) : o.constant(o.number("value")), o.result())};
}

Names where(Operation& o) {
  return {o.node("Where", {o.tensor("condition").name, o.in(0), o.in(1)})};
}

}  // namespace

const Rules& elementwise_rules() {
  static const Rules& rules = *new Rules{
      {"abs", same("Abs")},
      {"neg", same("Neg")},
      {"sign", same("Sign")},
      {"sqrt", same("Sqrt")},
      {"reciprocal", same("Reciprocal")},
      {"exp", same("Exp")},
      {"log", same("Log")},
      {"erf", same("Erf")},
      {"tan", same("Tan")},
      {"sin", same("Sin")},
      {"cos", same("Cos")},
      {"tanh", same("Tanh")},
      {"sigmoid", same("Sigmoid")},
      {"relu", same("Relu")},
      {"floor", same("Floor")},
      {"ceil", same("Ceil")},
      {"round", same("Round")},
      {"add", same("Add")},
      {"sub", same("Sub")},
      {"mul", same("Mul")},
      {"div", same("Div")},
      {"pow", same("Pow")},
      {"maximum", same("Max")},
      {"minimum", same("Min")},
      {"mul_", same("Mul")},
      {"div_", same("Div")},
      {"square", [](Operation& o) -> Names { return {o.node("Mul", {o.in(), o.in()})}; }},
      {"rsqrt",
       [](Operation& o) -> Names { return {o.node("Reciprocal", {o.node("Sqrt", {o.in()})})}; }},
      {"log1p",
       [](Operation& o) -> Names {
         return {o.node("Log", {o.node("Add", {o.in(), o.constant(1)})})};
       }},
      {"expm1",
       [](Operation& o) -> Names {
         return {o.node("Sub", {o.node("Exp", {o.in()}), o.constant(1)})};
       }},
      {"silu",
       [](Operation& o) -> Names {
         return {o.node("Mul", {o.in(), o.node("Sigmoid", {o.in()})})};
       }},
      {"gelu", gelu},
      {"gelu_tanh", gelu_tanh},
      {"log_sigmoid", log_sigmoid},
      {"trunc", trunc},
      {"add_scalar", with_number("Add")},
      {"mul_scalar", with_number("Mul")},
      {"pow_scalar", with_number("Pow")},
      {"rsub_scalar", number_with("Sub")},
      {"rdiv_scalar", number_with("Div")},
      {"leaky_relu",
       [](Operation& o) -> Names {
         return {o.node("LeakyRelu", {o.in()}, {{"alpha", o.number("a")}})};
       }},
      {"elu",
       [](Operation& o) -> Names { return {o.node("Elu", {o.in()}, {{"alpha", o.number("a")}})}; }},
      {"softplus", softplus},
      {"clamp", clamp},
      {"remainder", remainder},
      {"floor_divide",
       [](Operation& o) -> Names {
         return {o.node("Floor", {o.node("Div", {o.in(0), o.in(1)})})};
       }},
      {"fmod",
       [](Operation& o) -> Names {
         return {o.node("Mod", {o.in(0), o.in(1)}, {{"fmod", std::int64_t{1}}})};
       }},
      {"add_scaled_", add_scaled},
      {"scale_", scale},
      {"overwrite_", overwrite},
      {"where", where},
  };
  return rules;
}

}  // namespace weft::onnx
