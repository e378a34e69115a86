// The operations that users call: those of weft::raw, recorded on the tape if gradients are enabled
// and an operand requires one. tensor/ops.h has their formulas, shapes and errors.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "weft/autograd/composed.h"
#include "weft/autograd/composed_nn.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"

namespace weft {

#define WEFT_DECLARE(value, name, ...) Tensor name(const Tensor& x);
WEFT_UNARY_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE
/// Works in place if nobody else holds x and the tape does not need it: relu(conv(x)) needs no new
/// memory.
Tensor relu(Tensor&& x);
/// As raw::leaky_relu; the second form works in place as relu does.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
Tensor leaky_relu(Tensor&& x, double negative_slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
Tensor smooth_l1(const Tensor& x, double beta = 1);

#define WEFT_DECLARE(value, name, ...)           \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, double b);
WEFT_BINARY_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE
Tensor sub(double a, const Tensor& b);
Tensor div(double a, const Tensor& b);

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
inline const Tensor& operator-=(const Tensor& a, const Tensor& b) { return a.sub_(b); }
inline const Tensor& operator*=(const Tensor& a, const Tensor& b) { return a.mul_(b); }
inline const Tensor& operator/=(const Tensor& a, const Tensor& b) { return a.div_(b); }

// Not recorded: boolean and integer results never require a gradient.
#define WEFT_USING(value, name, ...) using raw::name;
WEFT_COMPARE_OPS(WEFT_USING)
#undef WEFT_USING
using raw::all;
using raw::any;
using raw::argmax;
using raw::argmin;
using raw::logical_not;
using raw::one_hot;

/// As raw::clamp. clamp(x, 0) has only a lower bound, clamp(x, {}, 1) only an upper one.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = {});
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, std::int64_t dim);
Tensor cat(std::span<const Tensor> parts, std::int64_t dim = 0);
Tensor cat(std::initializer_list<Tensor> parts, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> parts, std::int64_t dim = 0);
Tensor stack(std::initializer_list<Tensor> parts, std::int64_t dim = 0);
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// The gradient is shared equally among all positions of the extreme, as torch.amax and torch.amin.
/// Where that is a NaN, all gradients are NaN; without dims the NaNs share it, as in torch.max(x).
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// The square root of var(x, dims, correction); where it is 0, its gradient is 0. After `using
/// namespace weft` write weft::std(x) or x.std(), since `std` alone is ambiguous. Throws Dtype
/// unless x is floating.
Tensor std(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
Tensor norm(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
/// As raw::embedding. The row padding_idx of weight gets no gradient; a negative padding_idx counts
/// from the end. Throws InvalidArgument for a padding_idx that is no row.
Tensor embedding(const Tensor& index, const Tensor& weight,
                 std::optional<std::int64_t> padding_idx = {});

Tensor matmul(const Tensor& a, const Tensor& b);
/// As raw::matmul with out_dtype; in backward the gradient is rounded to the operands' dtype.
/// Autocast leaves the operands as they are. No vectors (else Shape).
Tensor matmul(const Tensor& a, const Tensor& b, DType out_dtype);
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {});
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv2dParams& params = {});
/// As conv2d with params.transposed = true.
Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
                        Conv2dParams params = {});
Tensor max_pool2d(const Tensor& x, const Pool2dParams& params);
Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params);
Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
/// An addition and an activation in the same pass as batch norm: y = act(normalised x + add), with
/// act(v) = v where v > 0 and negative_slope v elsewhere. The values are those of separate
/// operations.
struct BatchNormEpilogue {
  Tensor add{};                            ///< of x's shape, dtype and device, or undefined
  std::optional<double> negative_slope{};  ///< >= 0; 0 is relu; no value: no activation
};
/// Running statistics are constants for the gradient. For an activation, the tape keeps more: y if
/// there is an addition, else weight and a copy of bias.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const RunningStats& running, const BatchNormParams& params = {},
                  const BatchNormEpilogue& then = {});
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// logits [N,C] or [N,C,d1,...], target i64 [N] or [N,d1,...], as
/// torch.nn.functional.cross_entropy.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyParams& params = {});
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

}  // namespace weft
