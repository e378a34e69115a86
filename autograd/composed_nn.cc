#include "weft/autograd/composed_nn.h"

#include <cmath>

#include "weft/autograd/autocast.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::kInfinity;

namespace {

void check_probability(const char* op, double p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, op, "p: got ", p, ", expected 0 to 1");
}

// x times a mask that is drawn here: 0 with probability p, else 1 / (1 - p).
Tensor drop(const Tensor& x, const Tensor& mask, double p) {
  raw::bernoulli_(mask, 1 - p);
  if (p < 1) raw::mul_(mask, 1 / (1 - p));
  return mul(x, mask);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  check_defined("dropout", "x", x);
  check_probability("dropout", p);
  return !training || p == 0 ? x : drop(x, empty_like(x), p);
}

Tensor dropout2d(const Tensor& x, double p, bool training) {
  check_defined("dropout2d", "x", x);
  check_probability("dropout2d", p);
  WEFT_CHECK(x.dim() >= 3, Shape, "dropout2d", "x: got ", x.shape(), ", expected [N,C,..]");
  if (!training || p == 0) return x;
  Shape channels = Shape::filled(x.dim(), 1);
  for (const int d : {0, 1}) channels[d] = x.shape(d);
  return drop(x, empty(channels, {x.dtype(), x.device()}), p);
}

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  const char* op = "normalize";
  check_defined(op, "x", x);
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(p >= 1, InvalidArgument, op, "p: got ", p, ", expected 1 or more");
  constexpr auto policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x)) return normalize(autocast(policy, x), p, dim, eps);
  // bf16 is rounded once, at the end.
  if (x.dtype() == DType::bf16) return normalize(x.to(DType::f32), p, dim, eps).to(DType::bf16);
  const auto length = [&] {
    if (p == 2) return norm(x, {dim}, true);
    if (p == 1) return sum(abs(x), {dim}, true);
    if (p == kInfinity) return max(abs(x), {dim}, true);
    if (x.numel() == 0) return sum(abs(x), {dim}, true);
    // Of x over its largest part, since powers of x itself leave the range. The length grows as x
    // does, so that part may count as a constant for the gradient.
    const Tensor size = abs(x);
    Tensor largest = raw::max(size.detach(), {dim}, true);
    const Tensor has_none = raw::logical_or(raw::eq(largest, 0.0), raw::eq(largest, kInfinity));
    largest = masked_fill(largest, has_none, 1);
    const Tensor total = sum(pow(size / largest, p), {dim}, true);
    // The root has no slope at 0: its gradient there goes to a constant instead.
    const Tensor is_zero = raw::eq(total.detach(), 0.0);
    return masked_fill(pow(masked_fill(total, is_zero, 1), 1 / p) * largest, is_zero, 0);
  };
  return x / clamp(length(), eps);
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const char* op = "group_norm";
  constexpr auto policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x, weight, bias)) {
    return group_norm(autocast(policy, x), groups, autocast(policy, weight), autocast(policy, bias),
                      eps);
  }
  check_defined(op, "x", x);
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(x.dim() >= 2, Shape, op, "x: got ", x.shape(), ", expected [N,C,..]");
  const std::int64_t batch = x.shape(0), channels = x.shape(1);
  WEFT_CHECK(groups > 0 && channels % groups == 0, Shape, op, "groups ", groups,
             " do not divide the channels of ", x.shape());
  Shape per_channel = Shape::filled(x.dim() - 1, 1);
  per_channel[0] = channels;
  for (const auto& [name, p] : {std::pair("weight", &weight), std::pair("bias", &bias)}) {
    WEFT_CHECK(!p->defined() || p->shape() == Shape{channels}, Shape, op, name, ": got ",
               p->shape(), ", expected [", channels, "]");
    const bool mixed = x.dtype() == DType::bf16 && p->defined() && p->dtype() == DType::f32;
    WEFT_CHECK(!p->defined() || p->dtype() == x.dtype() || mixed, Dtype, op, "dtype: x is ",
               x.dtype(), ", ", name, " is ", p->dtype(), "; convert one with to(dtype)");
  }
  std::int64_t size = channels / groups;
  for (int d = 2; d < x.dim(); ++d) size *= x.shape(d);
  Tensor y = layer_norm(x.reshape({checked_mul(batch, groups, op), size}), {size}, {}, {}, eps)
                 .reshape(x.shape());
  if (weight.defined()) y = y * weight.reshape(per_channel);
  if (bias.defined()) y = y + bias.reshape(per_channel);
  return y.to(x.dtype());
}

Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv1dParams& params) {
  check_defined("conv1d", "x", x);
  check_defined("conv1d", "w", w);
  WEFT_CHECK(x.dim() == 3 && w.dim() == 3, Shape, "conv1d",
             "needs x [N,C,L] and w [K,C/groups,R], got ", x.shape(), " and ", w.shape());
  const Conv2dParams of_rows{.stride = {1, params.stride},
                             .padding = {0, params.padding},
                             .dilation = {1, params.dilation},
                             .groups = params.groups};
  return conv2d(x.unsqueeze(2), w.unsqueeze(2), bias, of_rows).squeeze(2);
}

namespace {

constexpr const char* kInterpolate = "interpolate";

// What each position along one dimension is the sum of: weights[k] times position index[k].
struct Taps {
  std::vector<Tensor> index, weights;  // i64 [out]; of the computed dtype, none for one tap
};

Tensor resample(const Tensor& x, std::int64_t dim, const Taps& taps) {
  Tensor y;
  for (std::size_t k = 0; k < taps.index.size(); ++k) {
    Tensor part = raw::index_select(x, dim, taps.index[k], false);
    if (k < taps.weights.size()) raw::binary_(BinaryOp::mul, part, taps.weights[k]);
    y = y.defined() ? raw::add(y, part) : part;
  }
  return y;
}

// The gradient of resample, to a tensor of `length` positions.
Tensor gather_back(const Tensor& grad, std::int64_t dim, const Taps& taps, std::int64_t length) {
  Shape shape = grad.shape();
  shape[dim] = length;
  const Tensor x = zeros(shape, {grad.dtype(), grad.device()});
  for (std::size_t k = 0; k < taps.index.size(); ++k) {
    const Tensor part = k < taps.weights.size() ? raw::mul(grad, taps.weights[k]) : grad;
    raw::index_add_(x, dim, taps.index[k], part, false);
  }
  return x;
}

// Positions are computed in the dtype of the pixels, as PyTorch does; so their roundings agree.
Taps taps_of(const Tensor& x, std::int64_t dim, std::int64_t out, double per_pixel, bool bilinear,
             bool align_corners) {
  const double last = static_cast<double>(x.shape(dim)) - 1;
  const TensorOptions like(x.dtype(), x.device());
  Tensor at = arange(0, static_cast<double>(out), 1, like);
  if (bilinear && !align_corners) {
    at = raw::clamp(raw::sub(raw::mul(raw::add(at, 0.5), per_pixel), 0.5), 0);
  } else {
    at = raw::mul(at, per_pixel);
  }
  const Tensor low = raw::clamp(raw::floor(at), {}, last);
  const auto index = [](const Tensor& t) { return raw::to(t, DType::i64); };
  if (!bilinear) return {{index(low)}, {}};
  const Tensor high = raw::clamp(raw::add(low, 1), {}, last);
  Shape along = Shape::filled(x.dim(), 1);
  along[dim] = out;
  const Tensor share = raw::reshape(raw::clamp(raw::sub(at, low), 0, 1), along);
  return {{index(low), index(high)}, {raw::sub(1, share), share}};
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  const char* op = kInterpolate;
  check_defined(op, "x", x);
  if (autocasts(CastPolicy::f32_on_cuda, x)) {
    return interpolate(autocast(CastPolicy::f32_on_cuda, x), options);
  }
  const bool bilinear = options.mode == "bilinear";
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(x.dim() == 4 && x.shape(2) > 0 && x.shape(3) > 0, Shape, op, "x: got ", x.shape(),
             ", expected [N,C,H,W] with pixels");
  WEFT_CHECK(bilinear || options.mode == "nearest", InvalidArgument, op, "mode: got '",
             options.mode, "', expected 'nearest' or 'bilinear'");
  WEFT_CHECK(bilinear || !options.align_corners, InvalidArgument, op,
             "align_corners belongs to mode 'bilinear'");
  const auto& scales = options.scale_factor;
  const std::size_t sizes = static_cast<std::size_t>(options.size.size());
  WEFT_CHECK((sizes == 0) != scales.empty() && sizes <= 2 && scales.size() <= 2, InvalidArgument,
             op, "needs size or scale_factor, of one or two numbers");
  if (x.dtype() == DType::bf16) return interpolate(x.to(DType::f32), options).to(DType::bf16);

  Tensor y = x;
  for (const int axis : {0, 1}) {
    const int dim = 2 + axis;
    const std::int64_t in = x.shape(dim);
    const double scale = scales.empty() ? 0 : scales[scales.size() == 1 ? 0 : axis];
    const double length = scales.empty() ? static_cast<double>(options.size[sizes == 1 ? 0 : axis])
                                         : std::floor(static_cast<double>(in) * scale);
    WEFT_CHECK(length > 0 && length <= static_cast<double>(kMaxPixels), InvalidArgument, op,
               "a side of the result needs 1 to ", kMaxPixels, " pixels: size ", options.size,
               ", scale_factor ", scale, " of x ", x.shape());
    const auto out = static_cast<std::int64_t>(length);
    // How far the next pixel of the result is in x.
    double step = scales.empty() ? static_cast<double>(in) / static_cast<double>(out) : 1 / scale;
    if (options.align_corners) {
      step = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
    }
    const Taps taps = taps_of(y, dim, out, step, bilinear, options.align_corners);
    y = autograd::record_linear(op, resample(y, dim, taps), y, [dim, in, taps](const Tensor& grad) {
      return gather_back(grad, dim, taps, in);
    });
  }
  return y;
}

namespace {

constexpr const char* kAttention = "scaled_dot_product_attention";

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options) {
  const char* op = kAttention;
  check_defined(op, "q", q);
  check_defined(op, "k", k);
  check_defined(op, "v", v);
  WEFT_CHECK(is_floating(q.dtype()), Dtype, op, "q: got ", q.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(k.dtype() == q.dtype() && v.dtype() == q.dtype(), Dtype, op, "dtypes: q is ",
             q.dtype(), ", k ", k.dtype(), ", v ", v.dtype());
  WEFT_CHECK(q.dim() >= 2 && k.dim() >= 2 && v.dim() >= 2, Shape, op,
             "needs q [..,L,E], k [..,S,E], v [..,S,Ev], got ", q.shape(), ", ", k.shape(), ", ",
             v.shape());
  WEFT_CHECK(q.shape(-1) == k.shape(-1) && k.shape(-2) == v.shape(-2), Shape, op, "q ", q.shape(),
             " and k ", k.shape(), " need one last dimension, k and v ", v.shape(),
             " one before it");
  const Tensor& mask = options.attn_mask;
  WEFT_CHECK(!mask.defined() || !options.is_causal, InvalidArgument, op,
             "is_causal is a mask of its own: give either that or attn_mask");
  WEFT_CHECK(!mask.defined() || mask.dtype() == DType::boolean || is_floating(mask.dtype()), Dtype,
             op, "attn_mask: got ", mask.dtype(), ", expected bool or a floating dtype");
}

// What a mask adds to the scores, in their dtype. A query that may look at no key is not masked at
// all, which leaves its softmax finite, and is named in `blind` [..,L,1]: its result is to be 0.
struct Masked {
  Tensor bias, blind;
};

Masked masked(const Tensor& mask, DType dtype) {
  const Tensor rows = mask.dim() == 0 ? mask.reshape({1}) : mask;
  const Tensor closed =
      rows.dtype() == DType::boolean ? raw::logical_not(rows) : raw::eq(rows.detach(), -kInfinity);
  const Tensor blind = raw::all(closed, {-1}, true);
  if (rows.dtype() == DType::boolean) {
    const Tensor none = zeros(rows.shape(), {dtype, rows.device()});
    const Tensor masks = raw::logical_and(closed, raw::logical_not(blind));
    return {masked_fill(none, masks, -kInfinity), blind};
  }
  return {masked_fill(rows, blind, 0).to(dtype), blind};
}

// scores + bias, in scores' memory.
Tensor add_bias(const Tensor& scores, const Tensor& bias) {
  WEFT_CHECK(broadcast_shapes(scores.shape(), bias.shape(), kAttention) == scores.shape(), Shape,
             kAttention, "attn_mask: got ", bias.shape(), ", which does not broadcast to ",
             scores.shape());
  return scores.add_(bias);
}

AttentionResult attend(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& options, bool with_weights) {
  if (autocasts(CastPolicy::lower_precision, q, k, v, options.attn_mask)) {
    AttentionOptions cast = options;
    cast.attn_mask = autocast(CastPolicy::lower_precision, options.attn_mask);
    const auto lower = [](const Tensor& x) { return autocast(CastPolicy::lower_precision, x); };
    return attend(lower(q), lower(k), lower(v), cast, with_weights);
  }
  check_attention(q, k, v, options);
  const std::int64_t length = q.shape(-2), keys = k.shape(-2), features = q.shape(-1);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(features)));
  // bf16 would round scores by up to 1/256 of their size, and a weight by that power of e: they
  // stay f32 until the weights are there. q times a power of two is exact.
  const DType compute = q.dtype() == DType::bf16 ? DType::f32 : q.dtype();
  int exponent = 0;
  const bool scale_q = compute == q.dtype() || std::abs(std::frexp(scale, &exponent)) == 0.5;
  Tensor scores = matmul(scale_q ? q * scale : q, k.transpose(-2, -1), compute);
  if (!scale_q) scores.mul_(scale);
  Tensor blind;
  if (options.is_causal) {
    const TensorOptions like(scores.dtype(), scores.device());
    scores = add_bias(scores, triu(full({length, keys}, -kInfinity, like), 1));
  } else if (options.attn_mask.defined()) {
    const Masked mask = masked(options.attn_mask, scores.dtype());
    scores = add_bias(scores, mask.bias);
    blind = mask.blind;
  }
  const Tensor weights = dropout(softmax(scores, -1), options.dropout_p).to(v.dtype());
  AttentionResult result{matmul(weights, v), {}};
  if (with_weights) result.weights = weights;
  if (blind.defined()) {
    result.output = masked_fill(result.output, blind, 0);
    if (with_weights) result.weights = masked_fill(weights, blind, 0);
  }
  return result;
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  return attend(q, k, v, options, false).output;
}

AttentionResult attention_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options) {
  return attend(q, k, v, options, true);
}

}  // namespace weft
