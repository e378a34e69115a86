#include "weft/nn/attention.h"

#include <any>
#include <limits>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/init.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

namespace {

constexpr const char* kOp = "MultiheadAttention";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The mask, whose shape must be `expected`, as a floating tensor of `shape` to be added to the
// products of query and key.
Tensor added(const char* name, const Tensor& mask, const Shape& expected, const Shape& shape,
             const Tensor& x) {
  WEFT_CHECK(mask.dtype() == DType::boolean || is_floating(mask.dtype()), Dtype, kOp, name,
             ": got ", mask.dtype(), ", expected bool or a floating dtype");
  WEFT_CHECK(mask.shape() == expected, Shape, kOp, name, ": got ", mask.shape(), ", expected ",
             expected);
  const Tensor shaped = mask.reshape(shape);
  if (mask.dtype() != DType::boolean) return shaped.to(x.dtype());
  return masked_fill(zeros(shape, {x.dtype(), x.device()}), shaped, -kInfinity);
}

// embed_dim, checked before it is multiplied and before weights of that size are allocated.
std::int64_t checked_features(std::int64_t embed_dim, std::int64_t heads) {
  WEFT_CHECK(heads > 0 && embed_dim > 0 && embed_dim % heads == 0, InvalidArgument, kOp,
             "embed_dim ", embed_dim, " must be a positive multiple of heads ", heads);
  return embed_dim;
}

}  // namespace

MultiheadAttention::MultiheadAttention(std::int64_t embed_dim, std::int64_t heads,
                                       const MultiheadAttentionOptions& options)
    : in_proj_weight(
          parameter("in_proj_weight",
                    empty({checked_mul(3, checked_features(embed_dim, heads), kOp), embed_dim}))),
      in_proj_bias(options.bias ? parameter("in_proj_bias", zeros({3 * embed_dim})) : Parameter()),
      out_proj(child("out_proj", Linear(embed_dim, embed_dim, options.bias))),
      head_size_(embed_dim / heads),
      dropout_(options.dropout),
      batch_first_(options.batch_first) {
  WEFT_CHECK(dropout_ >= 0 && dropout_ <= 1, InvalidArgument, kOp, "dropout: got ", dropout_,
             ", expected 0 to 1");
  shared_state() = AttentionHeads{heads};
  init::xavier_uniform_(in_proj_weight);
  if (options.bias) init::zeros_(out_proj.bias);
}

// [N,L,heads * size] or [L,N,heads * size] -> [N,heads,L,size]
Tensor MultiheadAttention::split_heads(const Tensor& x) const {
  const Tensor heads = x.unflatten(-1, {x.shape(-1) / head_size_, head_size_});
  return heads.permute(batch_first_ ? Dims{0, 2, 1, 3} : Dims{1, 2, 0, 3});
}

// The inverse of split_heads.
Tensor MultiheadAttention::join_heads(const Tensor& heads) const {
  return heads.permute(batch_first_ ? Dims{0, 2, 1, 3} : Dims{2, 0, 1, 3}).flatten(2);
}

// The projections; one product if all three are the same tensor.
std::array<Tensor, 3> MultiheadAttention::project(const Tensor& query, const Tensor& key,
                                                  const Tensor& value) const {
  if (query.same(key) && key.same(value)) {
    const auto parts = chunk(linear(query, in_proj_weight, in_proj_bias), 3, -1);
    return {parts[0], parts[1], parts[2]};
  }
  const auto weights = chunk(in_proj_weight, 3);
  const auto biases = in_proj_bias.defined() ? chunk(in_proj_bias, 3) : std::vector<Tensor>(3);
  return {linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
          linear(value, weights[2], biases[2])};
}

AttentionResult MultiheadAttention::forward(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const AttentionCall& call) const {
  const std::int64_t features = in_proj_weight.shape(1);
  for (const Tensor& x : {query, key, value}) {
    WEFT_CHECK((x.dim() == 2 || x.dim() == 3) && x.dim() == query.dim() && x.shape(-1) == features,
               Shape, kOp, "got query ", query.shape(), ", key ", key.shape(), ", value ",
               value.shape(), ", expected three dimensions each, or two, the last of ", features);
  }
  const int batch_dim = batch_first_ ? 0 : 1, length_dim = 1 - batch_dim;
  if (query.dim() == 2) {
    const auto batch_of_one = [&](const Tensor& x) { return x.unsqueeze(batch_dim); };
    const Tensor q = batch_of_one(query), k = key.same(query) ? q : batch_of_one(key);
    const Tensor v = value.same(query) ? q : batch_of_one(value);
    AttentionCall batched = call;
    if (call.key_padding_mask.defined()) {
      batched.key_padding_mask = call.key_padding_mask.unsqueeze(0);
    }
    AttentionResult result = forward(q, k, v, batched);
    result.output = result.output.squeeze(batch_dim);
    if (call.need_weights) result.weights = result.weights.squeeze(0);
    return result;
  }
  const std::int64_t batch = query.shape(batch_dim), length = query.shape(length_dim);
  const std::int64_t keys = key.shape(length_dim);
  const std::int64_t heads = in_proj_weight.shape(0) / 3 / head_size_;
  WEFT_CHECK(key.shape(batch_dim) == batch && value.shape() == key.shape(), Shape, kOp, "query ",
             query.shape(), ", key ", key.shape(), " and value ", value.shape(),
             " need one batch, key and value one length");

  AttentionOptions options{.dropout_p = is_training() ? dropout_ : 0};
  const auto& here = std::any_cast<const AttentionHeads&>(shared_state());
  options.dropout_part = here.part;
  for (const Tensor& of : {call.attn_mask, call.key_padding_mask}) {
    WEFT_CHECK(here.part.count == 1 || !of.defined() || !of.requires_grad(), Unsupported, kOp,
               "a mask cannot have a gradient where a rank has some of the heads");
    WEFT_CHECK(!here.exchange || !of.defined(), Unsupported, kOp,
               "after context_parallel an attention takes no mask but is_causal");
  }
  WEFT_CHECK(!here.exchange || !call.need_weights, Unsupported, kOp,
             "after context_parallel an attention returns no weights: call it with "
             ".need_weights = false");
  Tensor& mask = options.attn_mask;
  const auto add_mask = [&mask](const Tensor& more) { mask = mask.defined() ? mask + more : more; };
  if (call.attn_mask.defined()) {
    const bool of_all = call.attn_mask.dim() == 2;
    add_mask(of_all
                 ? added("attn_mask", call.attn_mask, {length, keys}, {1, 1, length, keys}, query)
                 : added("attn_mask", call.attn_mask, {batch * heads, length, keys},
                         {batch, heads, length, keys}, query));
  }
  if (call.key_padding_mask.defined()) {
    add_mask(added("key_padding_mask", call.key_padding_mask, {batch, keys}, {batch, 1, 1, keys},
                   query));
  }
  if (call.is_causal && mask.defined()) {
    const TensorOptions like(query.dtype(), query.device());
    add_mask(triu(full({length, keys}, -kInfinity, like), 1));
  } else {
    options.is_causal = call.is_causal;
  }

  auto [q, k, v] = project(query, key, value);
  for (Tensor* const x : {&q, &k, &v}) {
    *x = split_heads(*x);
    if (here.exchange) *x = here.exchange(*x, true);
  }
  AttentionResult result;
  if (call.need_weights) {
    result = attention_with_weights(q, k, v, options);
    if (call.average_attn_weights) result.weights = result.weights.mean({1});
  } else {
    result.output = scaled_dot_product_attention(q, k, v, options);
  }
  if (here.exchange) result.output = here.exchange(result.output, false);
  result.output = out_proj(join_heads(result.output));
  return result;
}

Tensor MultiheadAttention::forward(const Tensor& x, const AttentionCall& call) const {
  AttentionCall alone = call;
  alone.need_weights = false;
  return forward(x, x, x, alone).output;
}

}  // namespace weft::nn
