// Operators, and arithmetic that is composed of the operations in elementwise.h.
#pragma once

#include "weft/autograd/elementwise.h"

namespace weft {

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, double b) { return remainder(a, b); }
inline const Tensor& operator+=(const Tensor& a, const Tensor& b) { return a.add_(b); }
inline const Tensor& operator+=(const Tensor& a, double b) { return a.add_(b); }
inline const Tensor& operator-=(const Tensor& a, const Tensor& b) { return a.sub_(b); }
inline const Tensor& operator-=(const Tensor& a, double b) { return a.sub_(b); }
inline const Tensor& operator*=(const Tensor& a, const Tensor& b) { return a.mul_(b); }
inline const Tensor& operator*=(const Tensor& a, double b) { return a.mul_(b); }
inline const Tensor& operator/=(const Tensor& a, const Tensor& b) { return a.div_(b); }
inline const Tensor& operator/=(const Tensor& a, double b) { return a.div_(b); }
// x[0] += y writes into x, while x[mask] is a new tensor.
inline const Tensor& operator+=(const Tensor&& a, const Tensor& b) { return a.target().add_(b); }
inline const Tensor& operator+=(const Tensor&& a, double b) { return a.target().add_(b); }
inline const Tensor& operator-=(const Tensor&& a, const Tensor& b) { return a.target().sub_(b); }
inline const Tensor& operator-=(const Tensor&& a, double b) { return a.target().sub_(b); }
inline const Tensor& operator*=(const Tensor&& a, const Tensor& b) { return a.target().mul_(b); }
inline const Tensor& operator*=(const Tensor&& a, double b) { return a.target().mul_(b); }
inline const Tensor& operator/=(const Tensor&& a, const Tensor& b) { return a.target().div_(b); }
inline const Tensor& operator/=(const Tensor&& a, double b) { return a.target().div_(b); }

// Element by element, as in PyTorch: the result is a boolean tensor, which no `if` takes. Whether
// all elements are equal says equal(a, b), and whether it is one tensor a.same(b).
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator==(const Tensor& a, double b) { return eq(a, b); }
inline Tensor operator==(double a, const Tensor& b) { return eq(b, a); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator!=(const Tensor& a, double b) { return ne(a, b); }
inline Tensor operator!=(double a, const Tensor& b) { return ne(b, a); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<(const Tensor& a, double b) { return lt(a, b); }
inline Tensor operator<(double a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator<=(const Tensor& a, double b) { return le(a, b); }
inline Tensor operator<=(double a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>(const Tensor& a, double b) { return gt(a, b); }
inline Tensor operator>(double a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator>=(const Tensor& a, double b) { return ge(a, b); }
inline Tensor operator>=(double a, const Tensor& b) { return le(b, a); }

/// Of boolean tensors, as &, |, ^ and ~ of masks in PyTorch; else they throw Dtype.
Tensor operator&(const Tensor& a, const Tensor& b);
Tensor operator|(const Tensor& a, const Tensor& b);
Tensor operator^(const Tensor& a, const Tensor& b);
Tensor operator~(const Tensor& a);

/// A number has the dtype of the tensor.
Tensor where(const Tensor& condition, const Tensor& a, double b);
Tensor where(const Tensor& condition, double a, const Tensor& b);

/// The remainder of a / b rounded towards 0, which has the sign of a, as torch.fmod and C's fmod.
/// The gradient of b is -trunc(a / b). Throws InvalidArgument for integers if a divisor is 0.
Tensor fmod(const Tensor& a, const Tensor& b);
Tensor fmod(const Tensor& a, double b);
/// min(max(x, min), max), broadcast, of the dtype of raw::result_type, as torch.clamp with tensors:
/// max where min is larger, NaN where one of them is. One bound may be undefined: clamp(x, min,
/// {}). x has the gradient where it lies between the bounds or on one, else the bound that was
/// taken has it; none where x < min = max.
Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max);
Tensor clamp_min(const Tensor& x, double min);
Tensor clamp_min(const Tensor& x, const Tensor& min);
Tensor clamp_max(const Tensor& x, double max);
Tensor clamp_max(const Tensor& x, const Tensor& max);
/// x + value a b, broadcast.
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);
/// x + value a / b, broadcast. Throws Dtype if a and b are both integers.
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);

}  // namespace weft
