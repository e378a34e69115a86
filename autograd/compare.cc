// Choices between two tensors, and tests of values.
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::kInfinity;
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

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor y = raw::where(condition, a, b);
  return recording(a, b) ? record<WhereNode>(std::move(y), condition, a, b) : y;
}

namespace {

Tensor all_alike(const Tensor& x, bool value) {
  return full(x.shape(), value, {DType::boolean, x.device()});
}

}  // namespace

Tensor isnan(const Tensor& x) {
  check_defined("isnan", "x", x);
  return is_floating(x.dtype()) ? raw::ne(x, x) : all_alike(x, false);
}
Tensor isinf(const Tensor& x) {
  check_defined("isinf", "x", x);
  return is_floating(x.dtype()) ? raw::eq(raw::abs(x), kInfinity) : all_alike(x, false);
}
Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", "x", x);
  return is_floating(x.dtype()) ? raw::lt(raw::abs(x), kInfinity) : all_alike(x, true);
}

bool equal(const Tensor& a, const Tensor& b) {
  check_defined("equal", "a", a);
  check_defined("equal", "b", b);
  return a.shape() == b.shape() && raw::all(raw::eq(a, b)).item<bool>();
}

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  WEFT_CHECK(rtol >= 0 && atol >= 0, InvalidArgument, "isclose",
             "tolerances must not be negative: rtol ", rtol, ", atol ", atol);
  const Tensor same = raw::eq(a, b);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, "isclose", "dtype: a is ", a.dtype(), ", b is ",
             b.dtype());
  // Integers are subtracted in f64, where their difference does not overflow.
  const auto number = [](const Tensor& x) {
    return is_floating(x.dtype()) ? x : raw::to(x, DType::f64);
  };
  const Tensor x = number(a), y = number(b);
  const Tensor difference = raw::abs(raw::sub(x, y));
  const Tensor allowed = raw::add(raw::abs(raw::mul(y, rtol)), atol);
  const Tensor near =
      raw::logical_and(raw::le(difference, allowed), raw::lt(difference, kInfinity));
  const Tensor close = raw::logical_or(same, near);
  return equal_nan ? raw::logical_or(close, raw::logical_and(isnan(a), isnan(b))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  return raw::all(isclose(a, b, rtol, atol, equal_nan)).item<bool>();
}

}  // namespace weft
