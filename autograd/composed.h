// Operations that are composed of others, which put them on the tape. They have no counterpart in
// weft::raw.
//
// As everywhere, operands live on one device, and user mistakes throw Shape, Dtype, Device or
// InvalidArgument.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

// --- Tests of values: boolean, without a gradient. Integers are finite numbers. ------------------
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// Whether shapes and all values are equal, as torch.equal; NaN equals nothing. Waits for the
/// device.
bool equal(const Tensor& a, const Tensor& b);
/// |a - b| <= atol + rtol |b|, element by element, as torch.isclose. Infinities are close only if
/// they are equal; two NaNs only with equal_nan. Throws Dtype unless a and b have one dtype, and
/// InvalidArgument for a negative tolerance.
Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
               bool equal_nan = false);
/// Whether isclose() holds for all elements of a and b (broadcast). Waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

// --- Reductions ----------------------------------------------------------------------------------
/// max(x, 1): the largest values along one dimension, and the first index of each (i64). A NaN
/// counts as the extreme. The gradient goes to that index alone. max(x, {1}) returns no indices and
/// shares the gradient among equal values. Throws Shape if the dimension is empty.
ValuesAndIndices max_of_dim(const Tensor& x, std::int64_t dim, bool keepdim = false);
ValuesAndIndices min_of_dim(const Tensor& x, std::int64_t dim, bool keepdim = false);
template <class Dim>
  requires(std::integral<Dim> && !std::same_as<Dim, bool>)
ValuesAndIndices max(const Tensor& x, Dim dim, bool keepdim = false) {
  return max_of_dim(x, static_cast<std::int64_t>(dim), keepdim);
}
template <class Dim>
  requires(std::integral<Dim> && !std::same_as<Dim, bool>)
ValuesAndIndices min(const Tensor& x, Dim dim, bool keepdim = false) {
  return min_of_dim(x, static_cast<std::int64_t>(dim), keepdim);
}
/// log(sum(exp(x))), with the largest x subtracted first. Integers are computed in f32.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// --- Products ------------------------------------------------------------------------------------
/// a [n], b [n] of one dtype: the sum of a * b, as torch.dot.
Tensor dot(const Tensor& a, const Tensor& b);

// --- Masks: boolean ------------------------------------------------------------------------------
/// value where the mask is true, x elsewhere; broadcast, of x's dtype. Throws InvalidArgument if
/// that cannot hold value (raw::check_holds).
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// The elements of x (broadcast with the mask) where the mask is true, 1-D, in row-major order.
/// Waits for the device.
Tensor masked_select(const Tensor& x, const Tensor& mask);

// --- Arranging -----------------------------------------------------------------------------------
/// counts[i] copies of x side by side along dimension i, as torch.Tensor.repeat. With more counts
/// than dimensions, x gets dimensions of length 1 in front. Throws Shape for fewer counts.
Tensor repeat(const Tensor& x, const Dims& counts);
/// x with its elements in reverse order along each of dims.
Tensor flip(const Tensor& x, const Dims& dims);
/// Element i moves to i + shift modulo the length of dim; without a dim, all elements move in
/// row-major order. As torch.roll.
Tensor roll(const Tensor& x, std::int64_t shift, std::optional<std::int64_t> dim = {});
/// x [..,n,m] with zeros above (tril) or below (triu) the given diagonal: 0 is the main diagonal, 1
/// is the next one above it.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
/// As torch.nn.functional.pad, mode "constant": pads holds {before, after} of the last dimension,
/// then of the second to last, and so on. A negative number removes elements; throws Shape where
/// there are fewer, and InvalidArgument if x's dtype cannot hold value (raw::check_holds).
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value = 0);

}  // namespace weft
