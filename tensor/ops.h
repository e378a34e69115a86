// weft::raw: every operation without a tape. The recording twins, under the same names in weft::,
// are in autograd/ops.h.
//
// Common to all: operands of an operation live on one device (else a Device error naming both);
// results are new tensors there. Work on CUDA is queued on the thread's current stream. User
// mistakes throw Shape, Dtype, Device or InvalidArgument and leave their operands as they were.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "weft/kernels/conv.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/loss.h"
#include "weft/kernels/norm.h"
#include "weft/kernels/pooling.h"
#include "weft/kernels/reduce.h"
#include "weft/kernels/softmax.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// Of batch norm: mean, var [C] and num_batches (i64 []), updated in training; any may be undefined
/// then.
struct RunningStats {
  Tensor mean, var, num_batches;
};

}  // namespace weft

namespace weft::raw {

// --- Element-wise: y has the broadcast shape of the operands, and the dtype that PyTorch's
// result_type gives: promoted, a tensor without dimensions changing only the kind (bool, integer,
// floating) of one with some. A whole double leaves integers integers.
Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params = {});
Tensor unary_backward(UnaryOp op, const Tensor& grad_y, const Tensor& saved,
                      UnaryParams params = {});
/// In place when nobody else holds grad_y.
Tensor unary_backward(UnaryOp op, Tensor&& grad_y, const Tensor& saved, UnaryParams params = {});
Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b);
/// dL/da or dL/db, already summed to the operand's own shape.
Tensor binary_backward(BinaryOp op, bool of_b, const Tensor& grad_y, const Tensor& a,
                       const Tensor& b);
Tensor compare(CompareOp op, const Tensor& a, const Tensor& b);

// exp(x), sqrt(x), ...: integers are computed in f32 where the operation is not closed over them;
// floor, ceil and round leave them as they are.
#define X(value, name, ...) Tensor name(const Tensor& x);
WEFT_UNARY_OPS(X)
#undef X
// add(a, b), maximum(a, b), ... The power of integers is one, modulo 2^bits; pow(a, b) with a
// double b < 0 is InvalidArgument for them, with a tensor b of them the inverse is rounded towards
// 0. remainder has the sign of b and floor_divide rounds down, as % and // in Python; of integers
// by 0 they are InvalidArgument, for which CUDA is waited for.
#define X(value, name, ...)                      \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, double b);
WEFT_BINARY_OPS(X)
#undef X
Tensor sub(double a, const Tensor& b);
Tensor div(double a, const Tensor& b);
// eq(a, b), lt(a, b), ...: boolean
#define X(value, name, ...)                      \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, double b);
WEFT_COMPARE_OPS(X)
#undef X
Tensor logical_not(const Tensor& x);
/// max where min > max, NaN where a bound is NaN.
/// One of the bounds may be left out: clamp(x, 0), clamp(x, {}, 1). Throws InvalidArgument without
/// any.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = {});
/// x where x > 0, negative_slope x elsewhere. Throws InvalidArgument for a slope below 0, where the
/// result would no longer tell the sign of x, which is all that backward keeps.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// x where x > 0, alpha (exp(x) - 1) elsewhere.
Tensor elu(const Tensor& x, double alpha = 1);
/// log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. Throws InvalidArgument
/// unless beta > 0.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
/// x^2 / (2 beta) where |x| < beta, |x| - beta / 2 elsewhere. Throws InvalidArgument for beta < 0.
Tensor smooth_l1(const Tensor& x, double beta = 1);
/// condition ? a : b, broadcast; condition is boolean.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// --- In place, without recording; return y -------------------------------------------------------
const Tensor& unary_(UnaryOp op, const Tensor& y, UnaryParams params = {});
const Tensor& binary_(BinaryOp op, const Tensor& y, const Tensor& b);       ///< y = op(y, b)
const Tensor& add_scaled_(const Tensor& y, double alpha, const Tensor& x);  ///< y += alpha x
/// y += x, which may be on another device: read there, if both are CPUs, else copied first.
const Tensor& add_from_afar_(const Tensor& y, const Tensor& x);
const Tensor& mul_(const Tensor& y, double value);
const Tensor& add_(const Tensor& y, double value);
const Tensor& fill_(const Tensor& y, double value);
const Tensor& zero_(const Tensor& y);
/// Converts dtype, broadcasts, crosses devices.
const Tensor& copy_(const Tensor& y, const Tensor& x);
const Tensor& uniform_(const Tensor& y, double from = 0, double to = 1);
const Tensor& normal_(const Tensor& y, double mean = 0, double std = 1);
const Tensor& bernoulli_(const Tensor& y, double p);

// --- Views: share storage and version counter ----------------------------------------------------
Tensor reshape(const Tensor& x, const Shape& shape);
Tensor flatten(const Tensor& x, int start_dim = 0, int end_dim = -1);
Tensor unflatten(const Tensor& x, int dim, const Shape& sizes);
Tensor transpose(const Tensor& x, int dim0, int dim1);
Tensor permute(const Tensor& x, const Dims& dims);
Tensor slice(const Tensor& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step = 1);
Tensor select(const Tensor& x, int dim, std::int64_t index);
Tensor narrow(const Tensor& x, int dim, std::int64_t start, std::int64_t length);
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, int dim);
Tensor unsqueeze(const Tensor& x, int dim);
Tensor expand(const Tensor& x, const Shape& shape);
/// torch's chunk: pieces of ceil(size/count), so perhaps fewer than count: chunk(5,4) = 2,2,1.
std::vector<Tensor> chunk(const Tensor& x, int count, int dim = 0);
/// Pieces of `size` (the last may be shorter), or of the given sizes, which must add up.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0);
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, int dim);
/// A fresh handle on the same memory, without autograd metadata.
Tensor alias(const Tensor& x);

// --- Copies --------------------------------------------------------------------------------------
Tensor contiguous(const Tensor& x);
Tensor contiguous(const Tensor& x, MemoryFormat format);  ///< 4-D
Tensor clone(const Tensor& x);
Tensor to(const Tensor& x, Device device);
Tensor to(const Tensor& x, DType dtype);
Tensor cat(std::span<const Tensor> parts, int dim = 0);
Tensor stack(std::span<const Tensor> parts, int dim = 0);

// --- Reductions: no dims means all; max, min, argmax and argmin need an element (Shape) ----------
Tensor reduce(ReduceOp op, const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// sum (x - mean)^2 / (n - correction)
Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// sqrt(sum x^2)
Tensor norm(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// i64, the first position of the extreme, a NaN counting as one; without a dim in the row-major
/// order of all elements.
Tensor argmax(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);
/// Sums x over the dimensions that broadcasting added, back to `shape`.
Tensor sum_to(const Tensor& x, const Shape& shape);

// --- Softmax over one dimension: floating; y lies in memory with that dimension innermost --------
/// exp(x) / sum over dim of exp(x), computed with the largest x taken off first.
Tensor softmax(const Tensor& x, int dim);
/// x - log(sum over dim of exp(x)), likewise.
Tensor log_softmax(const Tensor& x, int dim);
/// dL/dx from dL/dy and y.
Tensor softmax_backward(SoftmaxOp op, const Tensor& grad_y, const Tensor& y, int dim);

// --- Indexing: index is i64; out of range is InvalidArgument, naming the index -------------------
/// Of a tensor without dimensions, dimension 0 or -1 has length 1.
/// checked = false: the caller knows the index to be in range, and CUDA is not waited for to see.
Tensor index_select(const Tensor& x, int dim, const Tensor& index, bool checked = true);
const Tensor& index_add_(const Tensor& y, int dim, const Tensor& index, const Tensor& x,
                         bool checked = true);
Tensor gather(const Tensor& x, int dim, const Tensor& index, bool checked = true);
const Tensor& scatter_add_(const Tensor& y, int dim, const Tensor& index, const Tensor& x,
                           bool checked = true);
/// index i64 [..], weight [n,dim] -> [..,dim]: row index of weight for each entry. As for the
/// targets of cross_entropy, an index that is no row is InvalidArgument on the CPU; on CUDA, where
/// nobody can look without stopping the queue, it gives NaN and takes no gradient.
Tensor embedding(const Tensor& index, const Tensor& weight);
/// dL/dweight [rows,dim] from dL/dy; the row `padding` (-1: none) gets 0.
Tensor embedding_backward(const Tensor& grad_y, const Tensor& index, std::int64_t rows,
                          std::int64_t padding);
/// i64 [..] -> i64 [.., classes]; classes -1: the largest index + 1.
Tensor one_hot(const Tensor& index, std::int64_t classes = -1);

// --- Matrix products -----------------------------------------------------------------------------
/// [M,K] x [K,N], or [..,M,K] x [..,K,N] with broadcast batch dimensions; bias [N] is added.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias = {});
/// x [..,in], w [out,in], bias [out] or undefined -> x w^T + bias [..,out].
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {});

// --- Convolution, pooling: x [N,C,H,W] of any layout; results keep it where the kernel can -------
/// The result of an image of up to four channels, or of one pixel, has channels last.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params);
/// dL/dx in the layout x_format, which is x's.
Tensor conv2d_backward_data(const Tensor& grad_y, const Tensor& w, const Shape& x_shape,
                            const Conv2dParams& params, MemoryFormat x_format = MemoryFormat::nchw);
/// {dL/dw, dL/dbias or undefined}
std::pair<Tensor, Tensor> conv2d_backward_weights(const Tensor& x, const Tensor& grad_y,
                                                  const Shape& w_shape, bool with_bias,
                                                  const Conv2dParams& params);
/// {y, index i32}
std::pair<Tensor, Tensor> max_pool2d(const Tensor& x, const Pool2dParams& params);
/// -> [N,C,size[0],size[1]], whatever H and W are, which must not be 0.
std::pair<Tensor, Tensor> adaptive_max_pool2d(const Tensor& x,
                                              const std::array<std::int64_t, 2>& size);
/// Of both: params.adaptive says of which.
Tensor max_pool2d_backward(const Tensor& grad_y, const Tensor& index, const Shape& x_shape,
                           const Pool2dParams& params);
/// y in x's layout; params.adaptive is set by adaptive_avg_pool2d.
Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params);
/// -> [N,C,size[0],size[1]], whatever H and W are.
Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
/// Of both; the layout is grad_y's.
Tensor avg_pool2d_backward(const Tensor& grad_y, const Shape& x_shape,
                           const AvgPool2dParams& params);

// --- Normalisation: kernels/norm.h has the formulas ----------------------------------------------
struct NormResult {
  Tensor y, mean, invstd;
};
/// Which gradients a backward pass computes, and they; the others are undefined.
struct NormWants {
  bool x = true, weight = true, bias = true, addend = false;
};
struct NormGradients {
  Tensor x, weight, bias, addend;
};
/// x [N,C,H,W] of any layout, y of x's; weight, bias [C] or undefined; addend of x's shape, dtype
/// and device, any layout, or undefined. Throws Shape in training when a channel has a single
/// value, and InvalidArgument for a negative slope below 0. A batch of none leaves running.mean and
/// running.var alone.
NormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const RunningStats& running, const BatchNormParams& params,
                      const Tensor& addend = {});
/// What backward of batch_norm with an activation needs beside the rest: y where there was an
/// addend, else bias.
struct BatchNormActivation {
  std::optional<double> negative_slope{};
  Tensor bias, y;
};
/// The addend's gradient is grad_y itself where there is no activation.
NormGradients batch_norm_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  const Tensor& mean, const Tensor& invstd, bool training,
                                  const NormWants& wants = {},
                                  const BatchNormActivation& activation = {});
/// x [..,normalized_shape]; weight, bias of normalized_shape or undefined; mean, invstd [..].
NormResult layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                      const Tensor& bias, double eps);
NormGradients layer_norm_backward(const Tensor& grad_y, const Tensor& x,
                                  const Shape& normalized_shape, const Tensor& weight,
                                  const Tensor& mean, const Tensor& invstd,
                                  const NormWants& wants = {});

// --- Losses --------------------------------------------------------------------------------------
struct CrossEntropyResult {
  Tensor loss, log_probs, count;
};
/// logits [N,C], target i64 [N]
CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& target,
                                 const CrossEntropyParams& params);
Tensor cross_entropy_backward(const Tensor& grad_loss, const Tensor& log_probs,
                              const Tensor& target, const Tensor& count,
                              const CrossEntropyParams& params);
/// Reduction none is (x - target)^2.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction);
Tensor mse_loss_backward(const Tensor& grad_loss, const Tensor& x, const Tensor& target,
                         Reduction reduction);

}  // namespace weft::raw
