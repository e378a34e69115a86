// Choices between two tensors, comparisons and tests of values.
#include <array>
#include <utility>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::observed;
using autograd::Operand;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class WhereNode final : public DifferentiableNode {
 public:
  WhereNode(const Tensor& condition, const Tensor& a, const Tensor& b)
      : DifferentiableNode("where"), a_(a), b_(b) {
    add_input(a);
    add_input(b);
    condition_ = save(condition);
  }

  void apply(Gradients& grads) override {
    const Tensor zero = scalar(0, {grads.y().dtype(), grads.y().device()});
    const Tensor& condition = condition_.get(*this);
    if (grads.wants(0)) grads.set(0, a_.fit(where(condition, grads.y(), zero)));
    if (grads.wants(1)) grads.set(1, b_.fit(where(condition, zero, grads.y())));
  }
  void describe(autograd::Description& d) const override { d.set("condition", *this, condition_); }

 private:
  void release_saved() override { condition_.reset(); }

  Operand a_, b_;
  SavedTensor condition_;
};

// As PyTorch's clamp_backward and clamp_backward_min_max (torch/csrc/autograd/FunctionsManual.cpp),
// also where operands are equal, or max is below min.
class ClampNode final : public DifferentiableNode {
 public:
  ClampNode(const Tensor& x, const Tensor& min, const Tensor& max)
      : DifferentiableNode("clamp"),
        operands_{Operand(x), Operand(min.defined() ? min : x), Operand(max.defined() ? max : x)} {
    for (const Tensor* operand : {&x, &min, &max}) add_input(*operand);
    x_ = save(x);
    if (min.defined()) min_ = save(min);
    if (max.defined()) max_ = save(max);
  }

  void apply(Gradients& grads) override {
    const Tensor zero = scalar(0, {grads.y().dtype(), grads.y().device()});
    const auto give = [&](int input, const Tensor& chosen) {
      grads.set(input, operands_[std::size_t(input)].fit(where(chosen, grads.y(), zero)));
    };
    const Tensor x = x_.get(*this);
    const Tensor min = min_.defined() ? min_.get(*this) : Tensor();
    const Tensor max = max_.defined() ? max_.get(*this) : Tensor();
    if (!max.defined()) {
      if (grads.wants(0)) give(0, raw::ge(x, min));
      if (grads.wants(1)) give(1, raw::lt(x, min));
      return;
    }
    if (!min.defined()) {
      if (grads.wants(0)) give(0, raw::le(x, max));
      if (grads.wants(2)) give(2, raw::gt(x, max));
      return;
    }
    if (grads.wants(0)) give(0, raw::logical_and(raw::ge(x, min), raw::le(x, max)));
    if (grads.wants(1)) give(1, raw::logical_and(raw::lt(x, min), raw::lt(min, max)));
    if (grads.wants(2)) give(2, raw::logical_or(raw::gt(x, max), raw::lt(max, min)));
  }
  void describe(autograd::Description& d) const override { d.op.clear(); }

 private:
  void release_saved() override {
    x_.reset();
    min_.reset();
    max_.reset();
  }

  std::array<Operand, 3> operands_;
  SavedTensor x_, min_, max_;
};

}  // namespace

Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max) {
  check_defined("clamp", "x", x);
  WEFT_CHECK(min.defined() || max.defined(), InvalidArgument, "clamp", "needs a bound");
  Shape shape = x.shape();
  const auto check = [&](const char* name, const Tensor& bound) {
    if (!bound.defined()) return;
    WEFT_CHECK(bound.device() == x.device(), Device, "clamp", "x is on ", x.device(), ", ", name,
               " on ", bound.device());
    shape = broadcast_shapes(shape, bound.shape(), "clamp");
  };
  check("min", min);
  check("max", max);
  // Of all at once: x and a bound without dimensions may have a dtype that rounds the bound, which
  // the other bound's dtype holds.
  const DType dtype = raw::result_type(x, min, max);
  const auto cast = [&](const Tensor& t) {
    return t.defined() && t.dtype() != dtype ? t.to(dtype) : t;
  };
  const Tensor own = cast(x), low = cast(min), high = cast(max);
  Tensor y = low.defined() ? raw::maximum(own, low) : own;
  if (high.defined()) y = raw::minimum(y, high);
  return recording(own, low, high) ? record<ClampNode>(std::move(y), own, low, high) : y;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor y = raw::where(condition, a, b);
  return recording(a, b, condition) ? record<WhereNode>(std::move(y), condition, a, b) : y;
}

#define X(value, name, ...)                                    \
  Tensor name(const Tensor& a, const Tensor& b) {              \
    return observed(#name, {}, raw::name(a, b), a, b);         \
  }                                                            \
  Tensor name(const Tensor& a, double b) {                     \
    return observed(#name, {.number = b}, raw::name(a, b), a); \
  }
WEFT_COMPARE_OPS(X)
#undef X
Tensor logical_not(const Tensor& x) { return observed("logical_not", {}, raw::logical_not(x), x); }

namespace {

Tensor all_alike(const Tensor& x, bool value) {
  return full(x.shape(), value, {DType::boolean, x.device()});
}

}  // namespace

Tensor isnan(const Tensor& x) {
  check_defined("isnan", "x", x);
  return observed("isnan", {}, is_floating(x.dtype()) ? raw::ne(x, x) : all_alike(x, false), x);
}
Tensor isinf(const Tensor& x) {
  check_defined("isinf", "x", x);
  Tensor y = is_floating(x.dtype()) ? raw::eq(raw::abs(x), kInfinity) : all_alike(x, false);
  return observed("isinf", {}, std::move(y), x);
}
Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", "x", x);
  Tensor y = is_floating(x.dtype()) ? raw::lt(raw::abs(x), kInfinity) : all_alike(x, true);
  return observed("isfinite", {}, std::move(y), x);
}

bool equal(const Tensor& a, const Tensor& b) {
  check_defined("equal", "a", a);
  check_defined("equal", "b", b);
  return a.shape() == b.shape() && raw::all(raw::eq(a, b)).item<bool>();
}

namespace {

// |a - b| of integers, in f64. They are subtracted before, since f64 does not tell large ones from
// their neighbours; a difference that is too large for i64 wraps around to a negative one.
Tensor integer_distance(const Tensor& a, const Tensor& b) {
  const Tensor x = raw::to(a, DType::i64), y = raw::to(b, DType::i64);
  const Tensor distance = raw::sub(raw::maximum(x, y), raw::minimum(x, y));
  const Tensor number = raw::to(distance, DType::f64);
  return raw::where(raw::lt(distance, 0.0), raw::add(number, 0x1p64), number);
}

}  // namespace

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  WEFT_CHECK(rtol >= 0 && atol >= 0, InvalidArgument, "isclose",
             "tolerances must not be negative: rtol ", rtol, ", atol ", atol);
  const Tensor same = raw::eq(a, b);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, "isclose", "dtype: a is ", a.dtype(), ", b is ",
             b.dtype());
  const bool floating = is_floating(a.dtype());
  const Tensor difference = floating ? raw::abs(raw::sub(a, b)) : integer_distance(a, b);
  const Tensor size = floating ? b : raw::to(b, DType::f64);
  const Tensor allowed = raw::add(raw::abs(raw::mul(size, rtol)), atol);
  const Tensor near =
      raw::logical_and(raw::le(difference, allowed), raw::lt(difference, kInfinity));
  const Tensor close = raw::logical_or(same, near);
  if (!equal_nan) return observed("isclose", {}, close, a, b);
  const Tensor both_nan = raw::logical_and(isnan(a), isnan(b));
  return observed("isclose", {}, raw::logical_or(close, both_nan), a, b);
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  return raw::all(isclose(a, b, rtol, atol, equal_nan)).item<bool>();
}

}  // namespace weft
