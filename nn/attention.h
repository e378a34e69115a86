// Attention with several heads.
#pragma once

#include <array>

#include "weft/nn/linear.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct MultiheadAttentionOptions {
  double dropout = 0;        ///< of the weights, in training
  bool bias = true;          ///< of all four projections
  bool batch_first = false;  ///< [N,L,E] in place of [L,N,E]
};

/// What a call takes beside its tensors. A bool mask is true where a key is *not* to be looked at,
/// a floating one is added to the products.
struct AttentionCall {
  Tensor key_padding_mask{};  ///< [N,S]; [S] without a batch
  Tensor attn_mask{};         ///< [L,S], or [N heads,L,S]
  /// Query i looks at keys 0 to i. PyTorch wants the same as attn_mask beside it, which does no
  /// harm.
  bool is_causal = false;
  bool need_weights = true;          ///< of three tensors; of one there are none
  bool average_attn_weights = true;  ///< over the heads
};

/// y = concat(head_1, ..) out_proj, each head being scaled_dot_product_attention of its part of the
/// projections of query [L,N,E], key [S,N,E] and value [S,N,E]; y [L,N,E]. With batch_first N comes
/// first; without a batch there is no N. L, S: lengths; E: embed_dim, a multiple of heads.
///
///   auto [y, weights] = attention(query, key, value, {.key_padding_mask = mask});
///   Tensor y = attention(x, {.is_causal = true});        // x attends to itself
///
/// weights: [N,L,S] averaged over the heads, else [N,heads,L,S], after dropout; undefined with
/// need_weights = false, which is faster. A query that may look at no key counts as having found
/// zeros, where PyTorch answers NaN if it needs weights.
///
/// in_proj_weight [3E,E] and in_proj_bias [3E] hold those of query, key and value; out_proj is a
/// Linear. They start as PyTorch's, bit for bit: xavier_uniform_, biases 0. Throws InvalidArgument
/// for a number of heads that does not divide embed_dim, and Shape.
class MultiheadAttention : public Module<MultiheadAttention> {
 public:
  MultiheadAttention(std::int64_t embed_dim, std::int64_t heads,
                     const MultiheadAttentionOptions& options = {});

  AttentionResult forward(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionCall& call = {});
  Tensor forward(const Tensor& x, const AttentionCall& call = {});

  // As every module's, with the types spelled out, so that a call may have its options in braces.
  AttentionResult operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                             const AttentionCall& call = {}) {
    return Module::operator()(query, key, value, call);
  }
  Tensor operator()(const Tensor& x, const AttentionCall& call = {}) {
    return Module::operator()(x, call);
  }

  Parameter in_proj_weight, in_proj_bias;  ///< the second undefined without bias
  Linear out_proj;

 private:
  Tensor split_heads(const Tensor& x) const;
  Tensor join_heads(const Tensor& heads) const;
  std::array<Tensor, 3> project(const Tensor& query, const Tensor& key, const Tensor& value) const;

  std::int64_t heads_;
  double dropout_;
  bool batch_first_;
};

}  // namespace weft::nn
