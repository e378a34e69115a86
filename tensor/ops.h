// weft::raw: all operations, without a tape. The recorded operations are in autograd/ops.h, with
// the same names in weft::.
//
// For all: the operands of an operation must be on one device (else Device, naming both), and the
// results are on it, too. CUDA work is queued on the thread's current stream. User mistakes throw
// Shape, Dtype, Device or InvalidArgument and leave the operands unchanged.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "weft/kernels/activation.h"
#include "weft/kernels/conv.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/loss.h"
#include "weft/kernels/norm.h"
#include "weft/kernels/pooling.h"
#include "weft/kernels/reduce.h"
#include "weft/kernels/softmax.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// The running statistics of batch norm: mean and var [C], num_batches i64 []. Training updates
/// those that are defined. Evaluation needs mean and var, and params.cumulative needs
/// num_batches (else InvalidArgument).
struct RunningStats {
  Tensor mean{}, var{}, num_batches{};
};

}  // namespace weft

namespace weft::raw {

/// Throws InvalidArgument, naming all three, if an element of this dtype cannot represent the
/// number: for integers NaN or a number beyond the range (a fraction is cut off), for floating
/// dtypes a finite number that would round to infinity. bool accepts any number.
void check_holds(const char* op, double value, DType dtype);

/// The common dtype of those that are defined, as PyTorch's result_type: tensors without dimensions
/// change the dtype of those with dimensions only if their kind is higher (bool < integer <
/// floating).
DType result_type(const Tensor& a, const Tensor& b, const Tensor& c = {});
/// That of a tensor of this dtype with a number: a floating tensor keeps its own, an integer one
/// too unless the number is none, and a truth value counts as i64.
DType result_type(DType dtype, double number);

// --- Element-wise: y has the broadcast shape of the operands, and the dtype of result_type. With a
// double, a floating tensor keeps its dtype. An integer tensor keeps it if the double is a whole
// number within i64, else it becomes f32; bool becomes i64 or f32. Sums, products and powers of
// integers are modulo 2^bits, also with a number beyond their dtype. maximum, minimum, clamp of a
// floating tensor, and remainder and floor_divide of an integer one refuse such a number
// (check_holds).
/// Throws InvalidArgument if x is integer and params contains a number beyond i64; likewise unary_.
Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params = {});
/// dL/dx from dL/dy. `saved` is x or y, as the functor of op says (Saves), or undefined.
Tensor unary_backward(UnaryOp op, const Tensor& grad_y, const Tensor& saved,
                      UnaryParams params = {});
/// The same, in grad_y's memory if no other handle shares it.
Tensor unary_backward(UnaryOp op, Tensor&& grad_y, const Tensor& saved, UnaryParams params = {});
Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b);
/// dL/da, or dL/db if of_b, summed over broadcast dimensions to the operand's shape and in its
/// dtype.
Tensor binary_backward(BinaryOp op, bool of_b, const Tensor& grad_y, const Tensor& a,
                       const Tensor& b);
Tensor compare(CompareOp op, const Tensor& a, const Tensor& b);
// exp(x), add(a, b), eq(a, b) and the others of the lists: tensor/elementwise.h.
Tensor logical_not(const Tensor& x);
/// min(max(x, min), max); so max if min > max, and NaN if a bound is NaN. One bound may be left
/// out: clamp(x, 0), clamp(x, {}, 1). Throws InvalidArgument without a bound, or if no value of an
/// integer dtype lies within the bounds.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = {});
/// x where x > 0, negative_slope x elsewhere. Throws InvalidArgument for a negative slope: backward
/// keeps only the result, which would not have the sign of x then.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// x where x > 0, alpha (exp(x) - 1) elsewhere.
Tensor elu(const Tensor& x, double alpha = 1);
/// log(1 + exp(beta x)) / beta, or x where beta x > threshold. Throws InvalidArgument unless
/// beta > 0.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
/// x^2 / (2 beta) where |x| < beta, |x| - beta / 2 elsewhere. Throws InvalidArgument for beta < 0.
Tensor smooth_l1(const Tensor& x, double beta = 1);
/// condition ? a : b, broadcast. Throws Dtype unless condition is boolean.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// --- In place, without recording; return y -------------------------------------------------------
// Operands broadcast to y (else Shape). Throws Dtype if y cannot hold the kind of the result, for
// example a floating result in an integer y. Throws InvalidArgument if elements of y share memory,
// or if its strides are so unusual that a table of 2^20 positions cannot tell.
const Tensor& unary_(UnaryOp op, const Tensor& y, UnaryParams params = {});
const Tensor& binary_(BinaryOp op, const Tensor& y, const Tensor& b);       ///< y = op(y, b)
const Tensor& add_scaled_(const Tensor& y, double alpha, const Tensor& x);  ///< y += alpha x
/// y += x, where x may be on another device. Between CPU devices x is read directly, else copied
/// first.
const Tensor& add_from_afar_(const Tensor& y, const Tensor& x);
/// An integer y accepts any integer within i64, modulo 2^bits.
const Tensor& mul_(const Tensor& y, double value);
const Tensor& add_(const Tensor& y, double value);
const Tensor& sub_(const Tensor& y, double value);
/// As raw::div to the bit. Throws Dtype for an integer y.
const Tensor& div_(const Tensor& y, double value);
const Tensor& clamp_(const Tensor& y, std::optional<double> min, std::optional<double> max = {});
/// An integer y gets the number without its fraction. Throws InvalidArgument like check_holds.
const Tensor& fill_(const Tensor& y, double value);
const Tensor& zero_(const Tensor& y);
/// y = x. Converts the dtype, broadcasts, and copies between devices.
const Tensor& copy_(const Tensor& y, const Tensor& x);
// Random values from the thread's generator of y's device, in row-major order.
const Tensor& uniform_(const Tensor& y, double from = 0, double to = 1);
const Tensor& normal_(const Tensor& y, double mean = 0, double std = 1);
const Tensor& bernoulli_(const Tensor& y, double p);

// --- Views: share storage and version counter ----------------------------------------------------
/// A view if the strides of x allow it, else a copy, as torch.reshape; likewise flatten. One size
/// in `shape` may be -1.
Tensor reshape(const Tensor& x, const Shape& shape);
Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1);
Tensor unflatten(const Tensor& x, std::int64_t dim, const Shape& sizes);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
Tensor permute(const Tensor& x, const Dims& dims);
Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end,
             std::int64_t step = 1);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, std::int64_t dim);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
Tensor expand(const Tensor& x, const Shape& shape);
/// reshape that is a view, as torch.Tensor.view. Throws Shape if the strides need a copy.
Tensor view(const Tensor& x, const Shape& shape);
/// The windows of `size` elements at every `step` positions along dim, as a last dimension; dim
/// gets the length (length - size) / step + 1. As torch.Tensor.unfold. Throws Shape for a size that
/// is negative or beyond the length, InvalidArgument for a step below 1.
Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step);
/// The elements at (i, i + offset) of dim1 and dim2, as a last dimension in place of the two.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = 0,
                std::int64_t dim2 = 1);
/// Like torch.chunk: pieces of ceil(size/count), so there may be fewer than count: 5 in 4 pieces
/// gives 2,2,1. Throws InvalidArgument for a count below 1, and for more than 2^24 pieces.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);
/// Pieces of `size` (the last may be shorter), or of the given sizes, which must add up to the
/// length of dim (else Shape). Throws InvalidArgument for a size below 1, and for more than 2^24
/// pieces.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, std::int64_t dim);
/// A new tensor on the same memory, without autograd data.
Tensor alias(const Tensor& x);

// --- Copies --------------------------------------------------------------------------------------
// contiguous and to return x itself if it is already the result.
Tensor contiguous(const Tensor& x);
Tensor contiguous(const Tensor& x, MemoryFormat format);  ///< x is 4-D
Tensor clone(const Tensor& x);
Tensor flip(const Tensor& x, const Dims& dims);
Tensor to(const Tensor& x, Device device);
/// Floating to integer drops the fraction and saturates, NaN becomes 0; an integer keeps its lowest
/// bits; bool is x != 0 (element_cast in core/base/dtype.h).
Tensor to(const Tensor& x, DType dtype);
/// The same for each of several tensors of one device, on CUDA in few launches. Throws Device.
std::vector<Tensor> to(std::span<const Tensor> xs, DType dtype);
/// As torch.cat and torch.stack. Parts of several dtypes are promoted to a common one. A part [0]
/// of cat fits beside parts of any shape. Throws InvalidArgument without parts, Shape if their
/// shapes do not fit.
Tensor cat(std::span<const Tensor> parts, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> parts, std::int64_t dim = 0);

// --- Reductions: no dims means all; max, min, argmax and argmin need an element (Shape) ----------
/// sum and prod of integers are i64, all and any boolean; else the dtype is x's. Throws Dtype for
/// the mean of integers.
Tensor reduce(ReduceOp op, const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// sum (x - mean)^2 / max(n - correction, 0), as torch.var; computed in f64. Throws Dtype unless x
/// is floating. Without degrees of freedom (n <= correction) the result is infinite, or NaN where
/// all x are equal, with a warning.
Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1, bool keepdim = false);
/// sqrt(sum x^2), computed in f64. Throws Dtype unless x is floating.
Tensor norm(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// The parts of var, std and norm, which their gradients need, too. Over the n elements x of each
/// result, in f64: mean = sum x / n and squares = sum (x - mean)^2; with `centred` false mean is
/// undefined and squares = sum x^2. In them the reduced dimensions keep length 1; `shape` is the
/// shape of the result. Throws Dtype, naming `op`, unless x is floating.
struct Moments {
  Tensor mean, squares;
  std::int64_t n;
  Shape shape;
};
Moments moments(const char* op, const Tensor& x, const Dims& dims, bool keepdim,
                bool centred = true);
/// The norm of x, f64, from its uncentred moments.
Tensor length_of(const Tensor& x, const Moments& m);
/// The divisor of var: max(n - correction, 0). Warns if it is 0.
double degrees_of_freedom(const char* op, std::int64_t n, double correction);
/// (x - center) factor, rounded once to x's dtype. center and factor are f64 and broadcast to x; an
/// undefined center means 0.
Tensor scaled_deviation(const Tensor& x, const Tensor& center, const Tensor& factor);
/// i64: the first position of the extreme. A NaN counts as the extreme. Without a dim: the position
/// in the row-major order of all elements.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
/// Sums x over the dimensions that broadcasting from `shape` added or enlarged, as torch's
/// sum_to_size; integers become i64 as in sum. Returns x itself if it has this shape. Throws Shape
/// if `shape` does not broadcast to x's shape.
Tensor sum_to(const Tensor& x, const Shape& shape);

// --- Softmax over one dimension: floating; in y's memory that dimension is the innermost ---------
/// exp(x) / sum over dim of exp(x), with the largest x subtracted first.
Tensor softmax(const Tensor& x, std::int64_t dim);
/// x - log(sum over dim of exp(x)), with the largest x subtracted first.
Tensor log_softmax(const Tensor& x, std::int64_t dim);
/// dL/dx from dL/dy and y.
Tensor softmax_backward(SoftmaxOp op, const Tensor& grad_y, const Tensor& y, std::int64_t dim);

// --- Sorting over one dimension, which in the memory of the results is the innermost -------------
/// The elements in ascending or descending order, and where they were (i64), as torch.sort; any
/// dtype. A NaN is larger than all numbers; equal elements, among them -0 and 0, and NaNs, keep
/// their order.
ValuesAndIndices sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// The median over one dimension, which must have an element (Shape): of an even number the lower
/// of the two in the middle; NaN if there is one. Its index is that of the element which
/// raw::sort puts in the middle, or of the first NaN.
ValuesAndIndices median(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// Of all elements. Of none: NaN if x is floating, else Shape.
Tensor median(const Tensor& x);
/// i64, in the shape of values: how many elements of the ascending sequence are below each value,
/// or with `right` below or equal, as torch.searchsorted; for NaN all. sequence is [n], or has the
/// dimensions of values, the last of any length (else Shape). One dtype (else Dtype).
Tensor searchsorted(const Tensor& sequence, const Tensor& values, bool right = false);

// --- Counting: waits once for the device, which knows the length of the result -------------------
/// x integer [n], none negative: how often each number from 0 to the largest occurs, i64; with
/// weights [n] the sums of their weights, f32 for f32 and f64 for the other dtypes. At least
/// `minlength` long. Throws InvalidArgument for a negative number.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t minlength = 0);
/// The positions of the elements that are not 0, in row-major order: i64 [count, x.dim()].
Tensor nonzero(const Tensor& x);
/// The same as positions in the row-major order of all elements: i64 [count].
Tensor flat_nonzero(const Tensor& x);
/// The different elements of x, 1-D and ascending; each NaN counts as different. With
/// return_inverse, where each element of x is in values; with return_counts, how often each of
/// values occurs. Both i64. With a dim the same of the slices x[.., i, ..], in lexicographic order;
/// one with a NaN is different from all others. Slices are compared on the host, which copies x.
/// Throws Shape if the slices are empty.
UniqueElements unique(const Tensor& x, bool return_inverse = false, bool return_counts = false,
                      std::optional<std::int64_t> dim = {});

// --- Running sums and products: kernels/scan.h says in which order -------------------------------
/// As torch.cumsum; integers become i64. With reverse the sums run from the end. In the memory of
/// the result the dimension is the innermost.
Tensor cumsum(const Tensor& x, std::int64_t dim, bool reverse = false);
Tensor cumprod(const Tensor& x, std::int64_t dim);

// --- Attention: kernels/attention.h has the formulas ---------------------------------------------
/// q [..,L,E], k [..,S,E], v [..,S,Ev], whose leading dimensions are broadcast. Without a mask or
/// dropout, mask or kept is undefined.
struct AttentionInputs {
  Tensor q, k, v;
  Tensor mask{};        ///< boolean or floating; broadcasts to the scores [..,L,S]
  Tensor kept{};        ///< boolean [..,L,S] as the scores: the weights that dropout keeps
  bool causal = false;  ///< not together with mask
  double scale = 1;
  double keep_scale = 1;  ///< what dropout multiplies the kept weights by
};
/// y [..,L,Ev], and log_sums [..,L], which backward needs.
struct AttentionOutputs {
  Tensor y, log_sums;
};
struct AttentionWants {
  bool q = true, k = true, v = true;
};
/// With all leading dimensions. The unwanted ones are undefined.
struct AttentionGradients {
  Tensor q, k, v;
};
/// Checks the operands and returns the shape of their scores.
Shape check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                      bool causal);
AttentionOutputs scaled_dot_product_attention(const AttentionInputs& in);
/// `out`: what the forward pass returned (else InvalidArgument).
AttentionGradients scaled_dot_product_attention_backward(const Tensor& grad_y,
                                                         const AttentionInputs& in,
                                                         const AttentionOutputs& out,
                                                         const AttentionWants& wants = {});

// --- Indexing: index is i64; out of range is InvalidArgument, naming the index -------------------
// On CUDA the thread's next call that waits for a device throws it, also after a replay
// (graph::capture); until then a result read at such an index is NaN (0 for integers), and nothing
// is written there. Calls that hear of several throw the first.
/// A tensor without dimensions counts as one with a dimension of length 1. checked = false: the
/// caller knows that the index is in range.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index, bool checked = true);
const Tensor& index_add_(const Tensor& y, std::int64_t dim, const Tensor& index, const Tensor& x,
                         bool checked = true);
/// Like torch.gather; kernels/indexing.h has the formula. Likewise scatter_add_.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index, bool checked = true);
const Tensor& scatter_add_(const Tensor& y, std::int64_t dim, const Tensor& index, const Tensor& x,
                           bool checked = true);
/// y[.., index, ..] = x, or a number, where scatter_add_ adds; of equal indices the last one
/// counts.
const Tensor& scatter_(const Tensor& y, std::int64_t dim, const Tensor& index, const Tensor& x,
                       bool checked = true);
const Tensor& scatter_(const Tensor& y, std::int64_t dim, const Tensor& index, double value,
                       bool checked = true);
/// The same in a copy of x.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, double value);
/// index i64 [..], weight [n,dim] -> [..,dim]: for each entry of index, that row of weight.
/// On CUDA the gradient of an index outside [0, n) is dropped.
Tensor embedding(const Tensor& index, const Tensor& weight);
/// dL/dweight [rows,dim] from dL/dy. The row `padding` gets 0; -1: no such row.
Tensor embedding_backward(const Tensor& grad_y, const Tensor& index, std::int64_t rows,
                          std::int64_t padding);
/// i64 [..] -> i64 [.., classes]. With classes -1 it is the largest index + 1, for which CUDA is
/// waited for.
Tensor one_hot(const Tensor& index, std::int64_t classes = -1);

// --- Matrix products -----------------------------------------------------------------------------
/// [M,K] x [K,N], or [..,M,K] x [..,K,N] with broadcast batch dimensions, plus bias [N] if defined.
/// Also with vectors, as torch.matmul. One floating dtype (else Dtype).
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias = {});
/// The same with a result of out_dtype, as torch.mm: the operands' dtype, or f32 for bf16 operands,
/// without the last rounding of the sums (else Dtype).
Tensor matmul(const Tensor& a, const Tensor& b, DType out_dtype);
/// x [..,in], w [out,in], bias [out] or undefined -> then(x w^T + bias) [..,out]. One floating
/// dtype (else Dtype).
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              Activation then = Activation::none);
/// relu(linear(x, w, bias)), and for matmul_where the mask of the elements that the relu let pass:
/// u8, in an order of the kernel's own; undefined if the kernel makes none.
std::pair<Tensor, Tensor> linear_relu(const Tensor& x, const Tensor& w, const Tensor& bias);
/// y = a b of a [M,K] and b [K,N], and whether the mask of a result [M,N] was applied: then y is 0
/// where that relu was. If not, y is the plain product.
std::pair<Tensor, bool> matmul_where(const Tensor& a, const Tensor& b, const Tensor& mask);
/// {dL/dw, dL/dbias} of x [N,in] and dL/dy [N,out].
std::pair<Tensor, Tensor> linear_backward_weights(const Tensor& x, const Tensor& grad_y);

// --- Convolution, pooling: x [N,C,H,W] of any layout; results keep it if the kernel can ----------
/// `then` follows. kernels/conv.h has shapes and formulas. Throws InvalidArgument for numbers that
/// it does not allow, and Shape for images of more than kMaxPixels; so do all functions below. If x
/// has up to four channels, or one pixel, the result has channels last if the kernel can.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params,
              Activation then = Activation::none);
/// dL/dx, in the layout x_format if the kernel can. Pass the layout of x.
Tensor conv2d_backward_data(const Tensor& grad_y, const Tensor& w, const Shape& x_shape,
                            const Conv2dParams& params, MemoryFormat x_format = MemoryFormat::nchw);
/// {dL/d(y before the relu), dL/dbias, its sums} of y, a conv2d with relu; in grad_y's memory if no
/// other handle shares it. The second is undefined where the kernel of a relu leaves it to
/// conv2d_backward_weights.
std::pair<Tensor, Tensor> conv2d_relu_backward(Tensor&& grad_y, const Tensor& y);
/// {dL/dw, dL/dbias}; dL/dw is laid out as w_format, dL/dbias is undefined without with_bias.
std::pair<Tensor, Tensor> conv2d_backward_weights(const Tensor& x, const Tensor& grad_y,
                                                  const Shape& w_shape, bool with_bias,
                                                  const Conv2dParams& params,
                                                  MemoryFormat w_format = MemoryFormat::nchw);
/// {y, index i32}: the maxima and their positions; kernels/pooling.h has the details. Leave
/// params.adaptive false.
std::pair<Tensor, Tensor> max_pool2d(const Tensor& x, const Pool2dParams& params);
/// The same with windows such that y is [N,C,size[0],size[1]]. Throws Shape if H or W is 0.
std::pair<Tensor, Tensor> adaptive_max_pool2d(const Tensor& x,
                                              const std::array<std::int64_t, 2>& size);
/// The gradient of both; params.adaptive says which. It has the layout of index. An index that is
/// not a position passes no gradient on.
Tensor max_pool2d_backward(const Tensor& grad_y, const Tensor& index, const Shape& x_shape,
                           const Pool2dParams& params);
/// y has x's layout. Leave params.adaptive false.
Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params);
/// The same with windows such that y is [N,C,size[0],size[1]]. Throws Shape if H or W is 0.
Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
/// The gradient of both, in the layout of grad_y; params.adaptive says which.
Tensor avg_pool2d_backward(const Tensor& grad_y, const Shape& x_shape,
                           const AvgPool2dParams& params);

// --- Normalisation: kernels/norm.h has the formulas ----------------------------------------------
/// y, and the mean and invstd used to normalise it, which backward needs.
struct NormResult {
  Tensor y, mean, invstd;
};
/// Which gradients a backward pass computes (NormWants), and the gradients (NormGradients). The
/// others are undefined.
struct NormWants {
  bool x = true, weight = true, bias = true, addend = false;
};
struct NormGradients {
  Tensor x, weight, bias, addend;
};
/// x [N,C,H,W] of any layout; y has x's layout. weight and bias are [C] or undefined. addend has
/// x's shape, dtype and device and any layout, or is undefined. With a bf16 x, weight, bias and the
/// running statistics may be f32 or bf16. Throws Shape in training if a
/// channel has a single value, and InvalidArgument for a params.negative_slope below 0. An empty
/// batch leaves running.mean and running.var alone.
NormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const RunningStats& running, const BatchNormParams& params,
                      const Tensor& addend = {});
/// The additional arguments of batch_norm_backward if there was an activation: its slope, and y if
/// there was an addend, else bias.
struct BatchNormActivation {
  std::optional<double> negative_slope{};
  Tensor bias, y;
};
/// Without an activation, the gradient of the addend is grad_y itself. mean and invstd: those that
/// batch_norm returned (else InvalidArgument). The gradients of weight and bias have their dtype.
NormGradients batch_norm_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  const Tensor& mean, const Tensor& invstd, bool training,
                                  const NormWants& wants = {},
                                  const BatchNormActivation& activation = {});
/// x [..,normalized_shape]; weight and bias have normalized_shape or are undefined. The result's
/// mean and invstd are [..].
NormResult layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                      const Tensor& bias, double eps);
NormGradients layer_norm_backward(const Tensor& grad_y, const Tensor& x,
                                  const Shape& normalized_shape, const Tensor& weight,
                                  const Tensor& mean, const Tensor& invstd,
                                  const NormWants& wants = {});
/// x [N,C,..]; weight and bias are [C] or undefined. Each mean is that of C / groups neighbouring
/// channels of an image. The result's y is row-major, its mean and invstd are [N,groups]. Throws
/// Shape unless groups divides C.
NormResult group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight,
                      const Tensor& bias, double eps);
NormGradients group_norm_backward(const Tensor& grad_y, const Tensor& x, std::int64_t groups,
                                  const Tensor& weight, const Tensor& mean, const Tensor& invstd,
                                  const NormWants& wants = {});

// --- Losses --------------------------------------------------------------------------------------
/// loss; log_probs [N,C], the log_softmax of logits; count, f64 [], the number of targets that
/// count. Backward needs the last two.
struct CrossEntropyResult {
  Tensor loss, log_probs, count;
};
/// logits [N,C], target i64 [N]; kernels/loss.h has the formula. A target that is neither a
/// class nor ignore_index is an index out of range (above).
CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& target,
                                 const CrossEntropyParams& params);
/// On the CPU, throws for a target like cross_entropy; on CUDA that row of the gradient is NaN.
Tensor cross_entropy_backward(const Tensor& grad_loss, const Tensor& log_probs,
                              const Tensor& target, const Tensor& count,
                              const CrossEntropyParams& params);
/// (x - target)^2, or its mean or sum, as torch.nn.functional.mse_loss. x and target have one shape
/// (else Shape).
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction);
Tensor mse_loss_backward(const Tensor& grad_loss, const Tensor& x, const Tensor& target,
                         Reduction reduction);

}  // namespace weft::raw
