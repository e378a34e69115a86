#include "weft/autograd/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/by_parts.h"
#include "weft/autograd/copies.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_probability;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

constexpr const char* kAttention = "scaled_dot_product_attention";

using Attend = AttentionResult (*)(const Tensor&, const Tensor&, const Tensor&,
                                   const AttentionOptions&);

// attend() of the operands, which autocast may convert to bf16.
AttentionResult in_autocast(Attend attend, const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionOptions& options) {
  constexpr auto policy = CastPolicy::lower_precision;
  if (!autocasts(policy, q, k, v, options.attn_mask)) return attend(q, k, v, options);
  AttentionOptions cast = options;
  cast.attn_mask = autocast(policy, options.attn_mask);
  return attend(autocast(policy, q), autocast(policy, k), autocast(policy, v), cast);
}

double scale_of(const Tensor& q, const AttentionOptions& options) {
  const auto features = static_cast<double>(std::max<std::int64_t>(q.shape(-1), 1));
  return options.scale.value_or(1 / std::sqrt(features));
}

// What a mask adds to the scores, in their dtype. A query whose keys are all masked gets no mask,
// so that its softmax is finite. `blind` [..,L,1] marks it: its result must become 0.
struct Masked {
  Tensor bias, blind;
};

Masked masked(const Tensor& mask, DType dtype) {
  Tensor rows = mask.dim() == 0 ? mask.reshape({1}) : mask;
  if (rows.dtype() != DType::boolean) rows = rows.to(dtype);
  const Tensor closed =
      rows.dtype() == DType::boolean ? logical_not(rows) : eq(rows.detach(), -kInfinity);
  const Tensor blind = all(closed, {-1}, true);
  if (rows.dtype() == DType::boolean) {
    const Tensor none = zeros(rows.shape(), {dtype, rows.device()});
    const Tensor masks = logical_and(closed, logical_not(blind));
    return {masked_fill(none, masks, -kInfinity), blind};
  }
  return {masked_fill(rows, blind, 0), blind};
}

// By single operations, which also give the weights [..,L,S]. `drop` applies dropout to the
// weights.
template <class Drop>
AttentionResult composed(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionOptions& options, const Drop& drop) {
  raw::check_attention(q, k, v, options.attn_mask, options.is_causal);
  const std::int64_t length = q.shape(-2), keys = k.shape(-2);
  const double scale = scale_of(q, options);
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
    scores.add_(triu(full({length, keys}, -kInfinity, like), 1));
  } else if (options.attn_mask.defined()) {
    const Masked mask = masked(options.attn_mask, scores.dtype());
    scores.add_(mask.bias);
    blind = mask.blind;
  }
  const Tensor weights = drop(softmax(scores, -1)).to(v.dtype());
  AttentionResult result{matmul(weights, v), weights};
  if (blind.defined()) {
    result.output = masked_fill(result.output, blind, 0);
    result.weights = masked_fill(weights, blind, 0);
  }
  return result;
}

AttentionResult composed(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionOptions& options) {
  return composed(q, k, v, options, [&](const Tensor& weights) {
    return dropout(weights, options.dropout_p, true, options.dropout_part);
  });
}

class AttentionNode final : public DifferentiableNode {
 public:
  AttentionNode(const raw::AttentionInputs& in, const raw::AttentionOutputs& out)
      : DifferentiableNode(kAttention),
        causal_(in.causal),
        scale_(in.scale),
        keep_scale_(in.keep_scale) {
    add_input(in.q);
    add_input(in.k);
    add_input(in.v);
    q_ = save(in.q);
    k_ = save(in.k);
    v_ = save(in.v);
    if (in.mask.defined()) mask_ = save(in.mask);
    if (in.kept.defined()) kept_ = save(in.kept);
    y_ = save_output(out.y);
    log_sums_ = save(out.log_sums);
  }
  void apply(Gradients& grads) override {
    const auto saved = [this](const SavedTensor& x) {
      return x.defined() ? x.get(*this) : Tensor();
    };
    const raw::AttentionInputs in{q_.get(*this), k_.get(*this), v_.get(*this), saved(mask_),
                                  saved(kept_),  causal_,       scale_,        keep_scale_};
    if (autograd::creates_graph()) return by_parts(grads, in);
    raw::AttentionGradients values = raw::scaled_dot_product_attention_backward(
        grads.y(), in, {y_.get(*this), log_sums_.get(*this)},
        {grads.wants(0), grads.wants(1), grads.wants(2)});
    if (values.q.defined()) grads.set(0, std::move(values.q));
    if (values.k.defined()) grads.set(1, std::move(values.k));
    if (values.v.defined()) grads.set(2, std::move(values.v));
  }
  void describe(autograd::Description& d) const override {
    if (kept_.defined()) return d.op.clear();  // dropout
    d.ints["causal"] = {causal_};
    d.numbers["scale"] = scale_;
    d.set("mask", *this, mask_);
  }

 private:
  void by_parts(Gradients& grads, const raw::AttentionInputs& in) const {
    const AttentionOptions options{.attn_mask = in.mask, .is_causal = causal_, .scale = scale_};
    const auto attend = [&](std::span<const Tensor> x) {
      return composed(x[0], x[1], x[2], options,
                      [&](const Tensor& weights) {
                        return in.kept.defined()
                                   ? weights * raw::to(in.kept, weights.dtype()) * keep_scale_
                                   : weights;
                      })
          .output;
    };
    const std::vector<Tensor> values =
        autograd::gradients_by_parts(grads, std::array{in.q, in.k, in.v}, attend);
    for (std::size_t i = 0; i < values.size(); ++i) grads.set(static_cast<int>(i), values[i]);
  }
  void release_saved() override {
    for (SavedTensor* x : {&q_, &k_, &v_, &mask_, &kept_, &y_, &log_sums_}) x->reset();
  }

  bool causal_;
  double scale_, keep_scale_;
  SavedTensor q_, k_, v_, mask_, kept_, y_, log_sums_;
};

// x with these leading dimensions, so that the tape sums over those it lacks.
Tensor with_leading(const Tensor& x, const Shape& lead) {
  Shape shape = lead;
  shape.push_back(x.shape(-2));
  shape.push_back(x.shape(-1));
  return x.shape() == shape ? x : x.expand(shape);
}

Shape leading(std::span<const std::int64_t> shape) { return Dims(shape.first(shape.size() - 2)); }

// The weights that dropout keeps, by the draws of dropout(weights, p).
Tensor draw_kept(const Shape& scores, double p, const DrawnPart& part, Device device) {
  const Tensor kept = empty(scores, {DType::boolean, device});
  raw::bernoulli_(kept, 1 - p, part);
  return kept;
}

AttentionResult fused(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options) {
  // The kernel has no gradient of the mask.
  const bool is_choice = options.attn_mask.defined() && options.attn_mask.dtype() == DType::boolean;
  if (!is_choice && recording(options.attn_mask)) return composed(q, k, v, options);
  const Shape scores = raw::check_attention(q, k, v, options.attn_mask, options.is_causal);
  const double p = options.dropout_p;
  check_probability("dropout", p);
  raw::AttentionInputs in{q, k, v, options.attn_mask};
  in.causal = options.is_causal;
  in.scale = scale_of(q, options);
  if (p > 0) in.kept = draw_kept(scores, p, options.dropout_part, q.device());
  if (p > 0 && p < 1) in.keep_scale = 1 / (1 - p);
  if (!recording(q, k, v)) return {raw::scaled_dot_product_attention(in).y, {}};
  const Shape lead = broadcast_shapes(leading(scores), leading(v.shape()), kAttention);
  in.q = with_leading(q, lead);
  in.k = with_leading(k, lead);
  in.v = with_leading(v, lead);
  const raw::AttentionOutputs out = raw::scaled_dot_product_attention(in);
  return {record<AttentionNode>(out.y, in, out), {}};
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  return in_autocast(fused, q, k, v, options).output;
}

AttentionResult attention_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options) {
  return in_autocast(composed, q, k, v, options);
}

}  // namespace weft
