#include "weft/autograd/arithmetic.h"

#include <cmath>
#include <limits>

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
using autograd::Operand;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// |a| modulo |b|, which no rounding changes, with the sign of a, also of -0. One of x and y may be
// integer: it gets the other's dtype first, since the smallest integer has no absolute value.
Tensor floating_fmod(const Tensor& x, const Tensor& y) {
  const Tensor a = is_floating(x.dtype()) ? x : raw::to(x, y.dtype());
  const Tensor b = is_floating(y.dtype()) ? y : raw::to(y, x.dtype());
  const Tensor size = raw::remainder(raw::abs(a), raw::abs(b));
  const Tensor of_others = raw::where(raw::lt(a, 0.0), raw::neg(size), size);
  const Tensor of_zero = raw::mul(a, raw::add(size, 1.0));  // the zero, or NaN
  return raw::where(raw::eq(a, 0.0), of_zero, of_others);
}

// |a| need not exist for an integer, but remainder has the sign of b, and is off by b at most.
Tensor integer_fmod(const Tensor& a, const Tensor& b) {
  const Tensor rest = raw::remainder(a, b);
  const Tensor differs = raw::logical_xor(raw::lt(a, 0.0), raw::lt(b, 0.0));
  return raw::where(raw::logical_and(differs, raw::ne(rest, 0.0)), raw::sub(rest, b), rest);
}

class FmodNode final : public DifferentiableNode {
 public:
  FmodNode(const Tensor& a, const Tensor& b) : DifferentiableNode("fmod"), a_info_(a), b_info_(b) {
    add_input(a);
    add_input(b);
    if (!needs(1)) return;
    a_ = save(a);
    b_ = save(b);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, a_info_.fit(grads.y()));
    if (!grads.wants(1)) return;
    const Tensor times = raw::trunc(raw::div(a_.get(*this), b_.get(*this)));
    grads.set(1, b_info_.fit(neg(mul(grads.y(), times))));
  }

 private:
  void release_saved() override {
    a_.reset();
    b_.reset();
  }
  Operand a_info_, b_info_;
  SavedTensor a_, b_;
};

}  // namespace

Tensor fmod(const Tensor& a, const Tensor& b) {
  check_defined("fmod", "a", a);
  check_defined("fmod", "b", b);
  const bool floating = is_floating(a.dtype()) || is_floating(b.dtype());
  Tensor y = floating ? floating_fmod(a, b) : integer_fmod(a, b);
  return recording(a, b) ? record<FmodNode>(std::move(y), a, b) : y;
}
Tensor fmod(const Tensor& a, double b) {
  check_defined("fmod", "a", a);
  // An integer that a's dtype holds keeps that dtype.
  const auto divisor = [&](DType dtype) { return fmod(a, scalar(b, {dtype, a.device()})); };
  if (is_floating(a.dtype())) return divisor(a.dtype());
  if (std::trunc(b) != b || b < -0x1p63 || b >= 0x1p63) return divisor(DType::f32);
  const bool held = a.dtype() == DType::i32  ? b >= -0x1p31 && b < 0x1p31
                    : a.dtype() == DType::u8 ? b >= 0 && b < 256
                                             : false;
  return divisor(held ? a.dtype() : DType::i64);
}

namespace {

const Tensor& mask(const char* op, const Tensor& x) {
  check_defined(op, "the mask", x);
  WEFT_CHECK(x.dtype() == DType::boolean, Dtype, op, "of masks, got ", x.dtype(),
             "; weft has no operations of bits");
  return x;
}
Tensor number_like(const char* op, double value, const Tensor& x) {
  check_defined(op, "the tensor", x);
  raw::check_holds(op, value, x.dtype());
  return scalar(value, {x.dtype(), x.device()});
}

}  // namespace

Tensor operator&(const Tensor& a, const Tensor& b) {
  return logical_and(mask("&", a), mask("&", b));
}
Tensor operator|(const Tensor& a, const Tensor& b) {
  return logical_or(mask("|", a), mask("|", b));
}
Tensor operator^(const Tensor& a, const Tensor& b) {
  return logical_xor(mask("^", a), mask("^", b));
}
Tensor operator~(const Tensor& a) { return logical_not(mask("~", a)); }

Tensor where(const Tensor& condition, const Tensor& a, double b) {
  return where(condition, a, number_like("where", b, a));
}
Tensor where(const Tensor& condition, double a, const Tensor& b) {
  return where(condition, number_like("where", a, b), b);
}

Tensor clamp_min(const Tensor& x, double min) { return clamp(x, min); }
Tensor clamp_max(const Tensor& x, double max) { return clamp(x, {}, max); }
Tensor clamp_min(const Tensor& x, const Tensor& min) {
  check_defined("clamp_min", "min", min);
  return clamp(x, min, Tensor());
}
Tensor clamp_max(const Tensor& x, const Tensor& max) {
  check_defined("clamp_max", "max", max);
  return clamp(x, Tensor(), max);
}

namespace {

// x + value f(a, b). bf16 is rounded once, at the end.
template <class F>
Tensor plus(const Tensor& x, const Tensor& a, const Tensor& b, double value, F f) {
  const auto is_bf16 = [](const Tensor& t) { return t.dtype() == DType::bf16; };
  if (is_bf16(x) && is_bf16(a) && is_bf16(b)) {
    const auto wide = [](const Tensor& t) { return t.to(DType::f32); };
    return plus(wide(x), wide(a), wide(b), value, f).to(DType::bf16);
  }
  const Tensor y = f(a, b);
  return add(x, value == 1 ? y : mul(y, value));
}

}  // namespace

Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  check_defined("addcmul", "x", x);
  check_defined("addcmul", "a", a);
  check_defined("addcmul", "b", b);
  return plus(x, a, b, value, [](const Tensor& s, const Tensor& t) { return mul(s, t); });
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  check_defined("addcdiv", "x", x);
  check_defined("addcdiv", "a", a);
  check_defined("addcdiv", "b", b);
  return plus(x, a, b, value, [](const Tensor& s, const Tensor& t) {
    return autograd::addcdiv_quotient("addcdiv", s, t);
  });
}

Tensor autograd::addcdiv_quotient(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, "a", a);
  check_defined(op, "b", b);
  WEFT_CHECK(is_floating(a.dtype()) || is_floating(b.dtype()), Dtype, op, "got a of ", a.dtype(),
             " and b of ", b.dtype(), "; divide integers after to(dtype)");
  return div(a, b);
}

bool autograd::divides_gradient(const Tensor& x, double b) {
  if (!recording(x) || b == 0) return false;
  constexpr double kMostOfF32 = std::numeric_limits<float>::max();
  return std::abs(1 / b) >
         (x.dtype() == DType::f64 ? std::numeric_limits<double>::max() : kMostOfF32);
}

}  // namespace weft
