#include <string_view>

#include "weft/onnx/operation.h"

namespace weft::onnx {
namespace {

constexpr std::int64_t kKeep = 1;

// x reduced over the dimensions, which stay with the size 1. Without dimensions: x.
std::string reduced(Operation& o, const char* type, const std::string& x) {
  const Ints& dims = o.ints("dims");
  if (dims.empty()) return std::string_view(type) == "ReduceL2" ? o.node("Abs", {x}) : x;
  // The dimensions of ReduceSum are an operand, those of the others an attribute, up to opset 17.
  if (std::string_view(type) == "ReduceSum") {
    return o.node(type, {x, o.ints_constant(dims)}, {{"keepdims", kKeep}});
  }
  return o.node(type, {x}, {{"axes", dims}, {"keepdims", kKeep}});
}

// Reshapes y to the result's shape, which may lack the reduced dimensions of size 1.
Names finished(Operation& o, const std::string& y) {
  Value kept = o.operand(0);
  for (const std::int64_t d : o.ints("dims")) kept.shape[d] = kept.other[d] = 1;
  return {o.reshape(y, kept, o.result())};
}

Rule reduction(const char* type) {
  return [type](Operation& o) -> Names { return finished(o, reduced(o, type, o.in())); };
}

// The sum of (x - mean)^2 over the divisor, which need not be the number of elements.
std::string variance(Operation& o) {
  const std::string x = o.in();
  const std::string deviation = o.node("Sub", {x, reduced(o, "ReduceMean", x)});
  const std::string squares = o.node("Mul", {deviation, deviation});
  return o.node("Div", {reduced(o, "ReduceSum", squares), o.constant(o.number("divisor"))});
}

Names var(Operation& o) { return finished(o, variance(o)); }
Names std(Operation& o) { return finished(o, o.node("Sqrt", {variance(o)})); }

Rule softmax(const char* type) {
  return [type](Operation& o) -> Names {
    return {o.node(type, {o.in()}, {{"axis", o.integer("dim")}})};
  };
}

Names cumsum(Operation& o) {
  return {o.node("CumSum", {o.in(), o.ints_constant({o.integer("dim")})})};
}

// all and any are the minimum and the maximum of zeros and ones.
Rule choice(const char* type) {
  return [type](Operation& o) -> Names {
    const std::string x = o.cast(o.cast(o.operand(0).name, DType::boolean), DType::i32);
    return finished(o, o.cast(reduced(o, type, x), DType::boolean));
  };
}

}  // namespace

const Rules& reduction_rules() {
  static const Rules& rules = *new Rules{
      {"sum", reduction("ReduceSum")},
      {"mean", reduction("ReduceMean")},
      {"prod", reduction("ReduceProd")},
      {"max", in_i32(reduction("ReduceMax"))},
      {"min", in_i32(reduction("ReduceMin"))},
      {"norm", reduction("ReduceL2")},
      {"var", var},
      {"std", std},
      {"softmax", softmax("Softmax")},
      {"log_softmax", softmax("LogSoftmax")},
      {"cumsum", cumsum},
      {"all", choice("ReduceMin")},
      {"any", choice("ReduceMax")},
  };
  return rules;
}

}  // namespace weft::onnx
