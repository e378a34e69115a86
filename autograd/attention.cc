#include "weft/autograd/attention.h"

#include <cmath>

#include "weft/autograd/autocast.h"
#include "weft/autograd/copies.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/softmax.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::kInfinity;

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

// What a mask adds to the scores, in their dtype. A query whose keys are all masked gets no mask,
// so that its softmax is finite. `blind` [..,L,1] marks it: its result must become 0.
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
  // In bf16 scores would lose up to 1/256 of their size, which exp turns into relative errors of
  // weights: they stay f32 until the weights are computed. q times a power of two is exact.
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
