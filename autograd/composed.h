// Operations made of others, recorded by those: they have no twin in weft::raw.
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
/// Whether shapes and all values agree; NaN agrees with nothing. Waits for the device.
bool equal(const Tensor& a, const Tensor& b);
/// |a - b| <= atol + rtol |b|, element by element; infinities must agree, NaN does with equal_nan.
Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
               bool equal_nan = false);
/// Whether all elements of a and b (broadcast) are close. Waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

// --- Reductions ----------------------------------------------------------------------------------
/// max(x, 1): the largest values of one dimension and where each is found first; a NaN counts as
/// the largest, and the gradient goes to that place. max(x, {1}) is the other one, without indices.
ValuesAndIndices max_of_dim(const Tensor& x, int dim, bool keepdim = false);
ValuesAndIndices min_of_dim(const Tensor& x, int dim, bool keepdim = false);
template <class Dim>
  requires(std::integral<Dim> && !std::same_as<Dim, bool>)
ValuesAndIndices max(const Tensor& x, Dim dim, bool keepdim = false) {
  return max_of_dim(x, static_cast<int>(dim), keepdim);
}
template <class Dim>
  requires(std::integral<Dim> && !std::same_as<Dim, bool>)
ValuesAndIndices min(const Tensor& x, Dim dim, bool keepdim = false) {
  return min_of_dim(x, static_cast<int>(dim), keepdim);
}
/// The square root of var(x, dims, correction); gradient 0 where that is 0. Behind `using namespace
/// weft` the free function is weft::std, since std alone is the standard library: or x.std().
Tensor std(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// log(sum(exp(x))) with the largest x taken off first. Integers are computed in f32.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// --- Products ------------------------------------------------------------------------------------
/// a [n], b [n] of one dtype: the sum of a * b.
Tensor dot(const Tensor& a, const Tensor& b);

// --- Masks: boolean ------------------------------------------------------------------------------
/// value where the mask holds, x elsewhere; broadcast, of x's dtype.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// The elements of x (broadcast with the mask) where the mask holds, in row-major order. Waits for
/// the device.
Tensor masked_select(const Tensor& x, const Tensor& mask);

// --- Arranging -----------------------------------------------------------------------------------
/// x beside itself: counts[i] times along each dimension; counts beyond x's dimensions go in front.
Tensor repeat(const Tensor& x, const Dims& counts);
/// The order of elements reversed along each of dims.
Tensor flip(const Tensor& x, const Dims& dims);
/// Element i goes to i + shift, around the end; without a dim in the row-major order of all.
Tensor roll(const Tensor& x, std::int64_t shift, std::optional<int> dim = {});
/// x [..,n,m] with zeros above (tril), or below (triu), the given diagonal: 0 the main one, 1 the
/// one above.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
/// F.pad of mode constant: pads [before, after] of the last dimension, of the one before, ...; a
/// negative number takes elements away.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value = 0);

}  // namespace weft
