#include <cmath>
#include <numbers>

#include "weft/onnx/operation.h"

namespace weft::onnx {
namespace {

using std::numbers::pi;
using std::numbers::sqrt2;

// An operation that is one ONNX node with the same operands.
Rule same(const char* type) {
  return [type](Operation& o) -> Names {
    Names inputs;
    for (std::size_t i = 0; i < o.operands(); ++i) inputs.push_back(o.in(i));
    return {o.node(type, inputs)};
  };
}
// An operation with a number, which becomes the second, or first, operand of one node.
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

// Few runtimes have Relu for integers.
Names relu(Operation& o) {
  if (!is_floating(o.result().dtype)) return {o.node("Max", {o.in(), o.constant(0)})};
  return {o.node("Relu", {o.in()})};
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
  if (!is_floating(o.result().dtype)) return {o.in()};
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

// For floating numbers ONNX's Mod follows C's fmod.
struct Rest {
  std::string value;    // fmod(a, b), which has the sign of a
  std::string differs;  // whether it is not 0 and has not the sign of b
};
Rest rest_of(Operation& o, const std::string& a, const std::string& b) {
  const std::string rest = o.node("Mod", {a, b}, {{"fmod", std::int64_t{1}}});
  const std::string zero = o.constant(0);
  const std::string differs =
      o.node("Xor", {o.node("Less", {rest, zero}), o.node("Less", {b, zero})});
  const std::string is_rest = o.node("Not", {o.node("Equal", {rest, zero})});
  return {rest, o.node("And", {differs, is_rest})};
}

// It has the sign of b: where that of fmod differs, b is added.
std::string remainder(Operation& o) {
  const std::string a = o.in(0), b = o.in(1);
  if (!is_floating(o.result().dtype)) return o.node("Mod", {a, b});
  const Rest rest = rest_of(o, a, b);
  return o.node("Where", {rest.differs, o.node("Add", {rest.value, b}), rest.value});
}

// As floor_quotient() in kernels/arithmetic.h: a / b may be rounded up to the next integer.
Names floor_divide(Operation& o) {
  const std::string a = o.in(0), b = o.in(1);
  if (!is_floating(o.result().dtype)) {
    return {o.node("Div", {o.node("Sub", {a, remainder(o)}), b})};
  }
  const Rest rest = rest_of(o, a, b);
  const std::string zero = o.constant(0), one = o.constant(1);
  const std::string up = o.node("Div", {o.node("Sub", {a, rest.value}), b});
  const std::string q = o.node("Where", {rest.differs, o.node("Sub", {up, one}), up});
  const std::string whole = o.node("Floor", {q});
  const std::string above = o.node("Greater", {o.node("Sub", {q, whole}), o.constant(0.5)});
  const std::string y = o.node("Where", {above, o.node("Add", {whole, one}), whole});
  return {o.node("Where", {o.node("Equal", {b, zero}), o.node("Div", {a, b}), y})};
}

// Rounding leaves an integer as it is, and ONNX's nodes take floating numbers only.
Rule rounded(const char* type) {
  return [type](Operation& o) -> Names {
    return {is_floating(o.result().dtype) ? o.node(type, {o.in()}) : o.in()};
  };
}

// --- Comparisons ---------------------------------------------------------------------------------
std::string cast_to(Operation& o, std::size_t i, DType dtype) {
  const Value& x = o.operand(i);
  return x.dtype == dtype ? x.name : o.cast(x.name, dtype);
}

// A dtype that holds the values of both operands exactly, and that ONNX runtimes can compare.
DType compared_type(Operation& o) {
  const DType a = o.operand(0).dtype;
  DType common = a;
  if (o.operands() == 1) {
    const double b = o.number("a");
    const bool whole = std::trunc(b) == b && std::abs(b) < 0x1p63;
    if (!is_floating(a)) common = whole ? DType::i64 : DType::f64;
  } else if (const DType b = o.operand(1).dtype; a != b) {
    if (is_floating(a) && is_floating(b)) o.refuse("it compares two floating dtypes");
    common = is_floating(a) ? a : is_floating(b) ? b : DType::i64;
  }
  if (common == DType::bf16) return DType::f32;
  return common == DType::boolean || common == DType::u8 ? DType::i64 : common;
}

Rule comparison(const char* type, bool negated = false) {
  return [=](Operation& o) -> Names {
    const DType dtype = compared_type(o);
    const std::string a = cast_to(o, 0, dtype);
    const std::string b =
        o.operands() > 1 ? cast_to(o, 1, dtype) : o.constant(o.number("a"), dtype);
    const std::string y = o.node(type, {a, b});
    return {negated ? o.node("Not", {y}) : y};
  };
}

Rule logical(const char* type) {
  return [type](Operation& o) -> Names {
    const std::string a = cast_to(o, 0, DType::boolean);
    const std::string b = o.operands() > 1 ? cast_to(o, 1, DType::boolean)
                                           : o.constant(o.number("a"), DType::boolean);
    return {o.node(type, {a, b})};
  };
}

Names logical_not(Operation& o) { return {o.node("Not", {cast_to(o, 0, DType::boolean)})}; }

// The operand in a dtype that the runtimes' IsNaN and IsInf take. Integers become f32: they stay
// finite.
std::string tested(Operation& o) {
  return cast_to(o, 0, o.operand(0).dtype == DType::f64 ? DType::f64 : DType::f32);
}
Rule test(const char* type) {
  return [type](Operation& o) -> Names { return {o.node(type, {tested(o)})}; };
}
Names isfinite(Operation& o) {
  const std::string x = tested(o);
  return {o.node("Not", {o.node("Or", {o.node("IsNaN", {x}), o.node("IsInf", {x})})})};
}

// y += alpha b
Names add_scaled(Operation& o) {
  const double alpha = o.number("alpha");
  if (alpha == -1) return {o.node("Sub", {o.in(0), o.in(1)})};
  const std::string b = alpha == 1 ? o.in(1) : o.node("Mul", {o.in(1), o.constant(alpha)});
  return {o.node("Add", {o.in(0), b})};
}

// x a, or x / b, which a product with the inverse of b may miss by a rounding.
Names mul_scalar(Operation& o) {
  const double divisor = o.number("b");
  if (divisor != 0) return {o.node("Div", {o.in(), o.constant(divisor)})};
  return {o.node("Mul", {o.in(), o.constant(o.number("a"))})};
}

// y = factor y + addend, or y = y / divisor
Names scale(Operation& o) {
  const double divisor = o.number("divisor");
  if (divisor != 0) return {o.node("Div", {o.in(), o.constant(divisor)})};
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
      {"abs", in_i32(same("Abs"))},
      {"neg", in_i32(same("Neg"))},
      {"sign", in_i32(same("Sign"))},
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
      {"relu", in_i32(relu)},
      {"floor", rounded("Floor")},
      {"ceil", rounded("Ceil")},
      {"round", rounded("Round")},
      {"add", in_i32(same("Add"))},
      {"sub", same("Sub")},
      {"mul", in_i32(same("Mul"))},
      {"div", same("Div")},
      {"pow", in_i32(same("Pow"))},
      {"maximum", in_i32(same("Max"))},
      {"minimum", in_i32(same("Min"))},
      {"mul_", in_i32(same("Mul"))},
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
      {"add_scalar", in_i32(with_number("Add"))},
      {"mul_scalar", in_i32(mul_scalar)},
      {"pow_scalar", in_i32(with_number("Pow"))},
      {"rsub_scalar", in_i32(number_with("Sub"))},
      {"rdiv_scalar", number_with("Div")},
      {"leaky_relu",
       [](Operation& o) -> Names {
         return {o.node("LeakyRelu", {o.in()}, {{"alpha", o.number("a")}})};
       }},
      {"elu",
       [](Operation& o) -> Names { return {o.node("Elu", {o.in()}, {{"alpha", o.number("a")}})}; }},
      {"softplus", softplus},
      {"clamp", in_i32(clamp)},
      {"remainder", [](Operation& o) -> Names { return {remainder(o)}; }},
      {"floor_divide", floor_divide},
      {"eq", comparison("Equal")},
      {"ne", comparison("Equal", true)},
      {"lt", comparison("Less")},
      {"le", comparison("LessOrEqual")},
      {"gt", comparison("Greater")},
      {"ge", comparison("GreaterOrEqual")},
      {"logical_and", logical("And")},
      {"logical_or", logical("Or")},
      {"logical_xor", logical("Xor")},
      {"logical_not", logical_not},
      {"isnan", test("IsNaN")},
      {"isinf", test("IsInf")},
      {"isfinite", isfinite},
      {"fmod",
       [](Operation& o) -> Names {
         return {o.node("Mod", {o.in(0), o.in(1)}, {{"fmod", std::int64_t{1}}})};
       }},
      {"add_scaled_", in_i32(add_scaled)},
      {"scale_", in_i32(scale)},
      {"overwrite_", overwrite},
      {"where", in_i32(where)},
  };
  return rules;
}

}  // namespace weft::onnx
