// Element-wise operations, with tensors and with numbers, and those in place.
#include "weft/autograd/ops.h"
#include "weft/tests/peers/calls.h"

namespace weft::peers {
namespace {

Tensor truth(bool value) { return scalar(value, DType::boolean); }

}  // namespace

void add_elementwise(Operations& table) {
#define X(value, name, ...) \
  table[#name] = [](const Call& c) -> std::vector<Tensor> { return {weft::name(c.operand(0))}; };
  WEFT_UNARY_OPS(X)
#undef X
// A number where there is no second operand.
#define X(value, name, ...)                                     \
  table[#name] = [](const Call& c) -> std::vector<Tensor> {     \
    if (c.in.size() > 1) return {weft::name(c.in[0], c.in[1])}; \
    return {weft::name(c.operand(0), c.number("value"))};       \
  };
  WEFT_BINARY_OPS(X)
  WEFT_COMPARE_OPS(X)
#undef X
  table["rsub"] = [](const Call& c) -> std::vector<Tensor> {
    return {sub(c.number("value"), c.operand(0))};
  };
  table["rdiv"] = [](const Call& c) -> std::vector<Tensor> {
    return {div(c.number("value"), c.operand(0))};
  };
  table["logical_not"] = [](const Call& c) -> std::vector<Tensor> {
    return {logical_not(c.operand(0))};
  };
  table["leaky_relu"] = [](const Call& c) -> std::vector<Tensor> {
    return {leaky_relu(c.operand(0), c.number("slope"))};
  };
  table["elu"] = [](const Call& c) -> std::vector<Tensor> {
    return {elu(c.operand(0), c.number("alpha"))};
  };
  table["softplus"] = [](const Call& c) -> std::vector<Tensor> {
    return {softplus(c.operand(0), c.number("beta"), c.number("threshold"))};
  };
  table["smooth_l1"] = [](const Call& c) -> std::vector<Tensor> {
    return {smooth_l1(c.operand(0), c.number("beta"))};
  };
  table["clamp"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {clamp(c.in[0], c.operand(1), c.operand(2))};
    return {clamp(c.operand(0), c.optional_number("low"), c.optional_number("high"))};
  };
  table["where"] = [](const Call& c) -> std::vector<Tensor> {
    return {where(c.operand(0), c.operand(1), c.operand(2))};
  };

#define X(name) \
  table[#name] = [](const Call& c) -> std::vector<Tensor> { return {name(c.operand(0))}; };
  X(isnan)
  X(isinf)
  X(isfinite)
#undef X
  table["isclose"] = [](const Call& c) -> std::vector<Tensor> {
    return {isclose(c.operand(0), c.operand(1), c.number("rtol"), c.number("atol"),
                    c.flag("equal_nan"))};
  };
  table["allclose"] = [](const Call& c) -> std::vector<Tensor> {
    return {truth(allclose(c.operand(0), c.operand(1), c.number("rtol"), c.number("atol"),
                           c.flag("equal_nan")))};
  };
  table["equal"] = [](const Call& c) -> std::vector<Tensor> {
    return {truth(equal(c.operand(0), c.operand(1)))};
  };

  table["fmod"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {fmod(c.in[0], c.in[1])};
    return {fmod(c.operand(0), c.number("value"))};
  };
  table["addcmul"] = [](const Call& c) -> std::vector<Tensor> {
    return {addcmul(c.operand(0), c.operand(1), c.operand(2), c.number("value"))};
  };
  table["addcdiv"] = [](const Call& c) -> std::vector<Tensor> {
    return {addcdiv(c.operand(0), c.operand(1), c.operand(2), c.number("value"))};
  };
  table["clamp_min"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {clamp_min(c.in[0], c.in[1])};
    return {clamp_min(c.operand(0), c.number("value"))};
  };
  table["clamp_max"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {clamp_max(c.in[0], c.in[1])};
    return {clamp_max(c.operand(0), c.number("value"))};
  };

#define X(name) \
  table[#name "_"] = [](const Call& c) -> std::vector<Tensor> { return {c.operand(0).name##_()}; };
  WEFT_IN_PLACE_METHODS(X)
#undef X
  table["clamp_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {c.in[0].clamp_(c.operand(1), c.operand(2))};
    return {c.operand(0).clamp_(c.optional_number("low"), c.optional_number("high"))};
  };
  table["clamp_min_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {c.in[0].clamp_min_(c.in[1])};
    return {c.operand(0).clamp_min_(c.number("value"))};
  };
  table["clamp_max_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {c.in[0].clamp_max_(c.in[1])};
    return {c.operand(0).clamp_max_(c.number("value"))};
  };
  table["masked_fill_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 2) return {c.in[0].masked_fill_(c.in[1], c.in[2])};
    return {c.operand(0).masked_fill_(c.operand(1), c.number("value"))};
  };
  table["addcmul_"] = [](const Call& c) -> std::vector<Tensor> {
    return {c.operand(0).addcmul_(c.operand(1), c.operand(2), c.number("value"))};
  };
  table["addcdiv_"] = [](const Call& c) -> std::vector<Tensor> {
    return {c.operand(0).addcdiv_(c.operand(1), c.operand(2), c.number("value"))};
  };
  table["add_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.has("value")) return {c.operand(0).add_(c.number("value"))};
    return {c.operand(0).add_(c.operand(1), c.number("alpha", 1))};
  };
  table["sub_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.has("value")) return {c.operand(0).sub_(c.number("value"))};
    return {c.operand(0).sub_(c.operand(1), c.number("alpha", 1))};
  };
  table["mul_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.in.size() > 1) return {c.in[0].mul_(c.in[1])};
    return {c.operand(0).mul_(c.number("value"))};
  };
  table["div_"] = [](const Call& c) -> std::vector<Tensor> {
    if (c.has("value")) return {c.operand(0).div_(c.number("value"))};
    return {c.operand(0).div_(c.operand(1))};
  };
  table["copy_"] = [](const Call& c) -> std::vector<Tensor> {
    return {c.operand(0).copy_(c.operand(1))};
  };
  table["fill_"] = [](const Call& c) -> std::vector<Tensor> {
    return {c.operand(0).fill_(c.number("value"))};
  };
  table["zero_"] = [](const Call& c) -> std::vector<Tensor> { return {c.operand(0).zero_()}; };
}

}  // namespace weft::peers
