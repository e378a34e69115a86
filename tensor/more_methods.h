// Methods of Tensor that write in place, and those that the library itself hardly calls.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include "weft/core/base/shape.h"

namespace weft {

class Tensor;

// clang-format off: the lists read as tables
#define WEFT_IN_PLACE_METHODS(X)                                                        \
  X(neg) X(abs) X(sign) X(square) X(sqrt) X(rsqrt) X(reciprocal) X(exp) X(log) X(log1p) \
  X(expm1) X(erf) X(tan) X(sin) X(cos) X(tanh) X(sigmoid) X(relu) X(floor) X(ceil)      \
  X(round) X(trunc)
// clang-format on

/// The base of Tensor, for which alone it is made. Each method is as the function of the same name
/// in the headers of autograd/ops.h, and those whose names end in _ write its result into the
/// tensor. All record. They live here to keep tensor.h, which is read by everyone, short.
class MoreMethods {
 public:
  // In place: writes bump the version counter. Return *this. A tensor keeps its shape and its
  // dtype: throw Shape if the result has another shape, Dtype if the tensor cannot hold its kind,
  // as an integer one a fraction. A leaf that requires a gradient is not written to
  // (InvalidArgument), unless under NoGrad.
  const Tensor& add_(const Tensor& other, double alpha = 1) const;
  const Tensor& add_(double value) const;
  const Tensor& sub_(const Tensor& other, double alpha = 1) const;
  const Tensor& sub_(double value) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& mul_(double value) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& div_(double value) const;
  const Tensor& copy_(const Tensor& other) const;
  const Tensor& fill_(double value) const;
  const Tensor& zero_() const;
  const Tensor& scatter_(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  const Tensor& scatter_(std::int64_t dim, const Tensor& index, double value) const;
  // exp_(), sqrt_(), ...
#define WEFT_DECLARE(name) const Tensor& name##_() const;
  WEFT_IN_PLACE_METHODS(WEFT_DECLARE)
#undef WEFT_DECLARE
  /// The target of x[0] += y. Throws InvalidArgument if nobody else holds its memory, as that of
  /// x[mask], so that the sum would be lost.
  const Tensor& target() const;
  const Tensor& clamp_(std::optional<double> min, std::optional<double> max = {}) const;
  const Tensor& clamp_(const Tensor& min, const Tensor& max) const;
  const Tensor& clamp_min_(double min) const;
  const Tensor& clamp_min_(const Tensor& min) const;
  const Tensor& clamp_max_(double max) const;
  const Tensor& clamp_max_(const Tensor& max) const;
  const Tensor& masked_fill_(const Tensor& mask, double value) const;
  const Tensor& masked_fill_(const Tensor& mask, const Tensor& value) const;
  const Tensor& addcmul_(const Tensor& a, const Tensor& b, double value = 1) const;
  const Tensor& addcdiv_(const Tensor& a, const Tensor& b, double value = 1) const;

  // Element by element.
  Tensor masked_fill(const Tensor& mask, double value) const;
  Tensor masked_fill(const Tensor& mask, const Tensor& value) const;
  Tensor clamp(std::optional<double> min, std::optional<double> max = {}) const;
  Tensor clamp(const Tensor& min, const Tensor& max) const;
  Tensor clamp_min(double min) const;
  Tensor clamp_min(const Tensor& min) const;
  Tensor clamp_max(double max) const;
  Tensor clamp_max(const Tensor& max) const;
  Tensor fmod(const Tensor& other) const;
  Tensor fmod(double other) const;
  Tensor addcmul(const Tensor& a, const Tensor& b, double value = 1) const;
  Tensor addcdiv(const Tensor& a, const Tensor& b, double value = 1) const;

  // Reductions.
  Tensor amax(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor amin(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor norm(const Dims& dims = {}, OnlyBool keepdim = false) const;
  /// A number is the order of the norm, as in PyTorch: x.norm(1) is the sum of |x|, and x.norm(2,
  /// 1) the length along dimension 1, as is x.norm({1}).
  template <class P>
    requires(std::integral<P> || std::floating_point<P>)
  Tensor norm(P p, const Dims& dims = {}, bool keepdim = false) const;
  template <class P, std::integral Dim>
    requires(std::integral<P> || std::floating_point<P>)
  Tensor norm(P p, Dim dim, bool keepdim = false) const;

  // Selecting and arranging.
  /// reshape, for which the strides must allow a view (else Shape).
  Tensor view(const Shape& shape) const;
  Tensor unfold(std::int64_t dim, std::int64_t size, std::int64_t step) const;
  Tensor diagonal(std::int64_t offset = 0, std::int64_t dim1 = 0, std::int64_t dim2 = 1) const;
  Tensor diag(std::int64_t diagonal = 0) const;
  std::vector<Tensor> unbind(std::int64_t dim = 0) const;
  Tensor repeat_interleave(std::int64_t repeats, std::optional<std::int64_t> dim = {}) const;
  Tensor repeat_interleave(const Tensor& repeats, std::optional<std::int64_t> dim = {}) const;
  Tensor outer(const Tensor& other) const;

 protected:
  MoreMethods() = default;
  /// For x[0] = y: copy_ and fill_, of which somebody must see the result (else InvalidArgument).
  const Tensor& assign(const Tensor& y) const;
  const Tensor& assign(double y) const;

 private:
  const Tensor& self() const;
  Tensor p_norm(double p, const Dims& dims, bool keepdim) const;
};

}  // namespace weft
