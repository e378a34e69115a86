// Reductions, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "weft/tensor/ops.h"

namespace weft {

/// With a dtype, of x.to(dtype), as in PyTorch; likewise prod.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
           std::optional<DType> dtype = {});
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
            std::optional<DType> dtype = {});
/// The gradient is shared equally among all positions of the extreme, as torch.amax and torch.amin.
/// Where that is a NaN, all gradients are NaN; without dims the NaNs share it, as in torch.max(x).
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// The square root of var(x, dims, correction); where it is 0, its gradient is 0. After `using
/// namespace weft` write weft::std(x) or x.std(), since `std` alone is ambiguous. Throws Dtype
/// unless x is floating.
Tensor std(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// var(x, 0, 1) is no list of two dimensions: write var(x, {0, 1}), or var(x, {0}, 1). In PyTorch's
/// older form, var(x, 0, unbiased), false is correction 0 and true is 1.
Tensor var(const Tensor& x, std::integral auto, Integer auto, bool keepdim = false) = delete;
Tensor std(const Tensor& x, std::integral auto, Integer auto, bool keepdim = false) = delete;
Tensor norm(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// (sum |x|^p)^(1/p), as torch.linalg.vector_norm: the largest |x| for infinity, the smallest for
/// -infinity, and the number of elements that are not 0 for 0. Throws Dtype unless x is floating,
/// and Shape for a negative or infinite p if a dimension to be reduced is empty.
/// The gradient is 0 where the norm is 0, and for p < 1 also where x is.
Tensor p_norm(const Tensor& x, double p, const Dims& dims = {}, bool keepdim = false);
/// norm(x, 1) is p_norm, and norm(x, {1}) the length along dimension 1.
template <class P>
  requires(std::integral<P> || std::floating_point<P>)
Tensor norm(const Tensor& x, P p, const Dims& dims = {}, bool keepdim = false) {
  return p_norm(x, static_cast<double>(p), dims, keepdim);
}
template <class P, std::integral Dim>
  requires(std::integral<P> || std::floating_point<P>)
Tensor norm(const Tensor& x, P p, Dim dim, bool keepdim = false) {
  return p_norm(x, static_cast<double>(p), dim, keepdim);
}
/// max and min over dims; without dims over all, where a NaN makes all gradients NaN.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// {std, mean} and {var, mean}: auto [std, mean] = std_mean(x, 1).
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Dims& dims = {}, double correction = 1,
                                   bool keepdim = false);
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Dims& dims = {}, double correction = 1,
                                   bool keepdim = false);

// Boolean and integer results have no gradient.
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);

/// max(x, 1): the largest values along one dimension, and the first index of each (i64). A NaN
/// counts as the extreme. The gradient goes to that index alone. max(x, {1}) returns no indices and
/// shares the gradient among equal values. Throws Shape if the dimension is empty.
ValuesAndIndices max_of_dim(const Tensor& x, std::int64_t dim, bool keepdim = false);
ValuesAndIndices min_of_dim(const Tensor& x, std::int64_t dim, bool keepdim = false);
template <Integer Dim>
ValuesAndIndices max(const Tensor& x, Dim dim, bool keepdim = false) {
  return max_of_dim(x, static_cast<std::int64_t>(dim), keepdim);
}
template <Integer Dim>
ValuesAndIndices min(const Tensor& x, Dim dim, bool keepdim = false) {
  return min_of_dim(x, static_cast<std::int64_t>(dim), keepdim);
}
/// log(sum(exp(x))), with the largest x subtracted first. Integers are computed in f32.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

}  // namespace weft
