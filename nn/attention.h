// Multi-head attention.
#pragma once

#include <array>
#include <functional>

#include "weft/autograd/attention.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct MultiheadAttentionOptions {
  double dropout = 0;        ///< of the attention weights, in training
  bool bias = true;          ///< of all four projections
  bool batch_first = false;  ///< [N,L,E] instead of [L,N,E]
};

/// Options of one call. A bool mask is true where a key must *not* be used; a floating mask is
/// added to the products of query and key.
struct AttentionCall {
  Tensor key_padding_mask{};  ///< [N,S]; [S] without a batch
  Tensor attn_mask{};         ///< [L,S], or [N * heads,L,S]
  /// Query i attends to keys 0 to i only. PyTorch also wants the same mask as attn_mask; giving
  /// both does no harm.
  bool is_causal = false;
  bool need_weights = true;          ///< only attention(query, key, value) returns them
  bool average_attn_weights = true;  ///< over the heads
};

/// The heads of a MultiheadAttention, and which of them it computes.
struct AttentionHeads {
  std::int64_t all = 1;
  DrawnPart part = {.dim = -3};
  /// For ranks that have parts of the sequences. Before attending it turns all heads
  /// [N,heads,l,size] of this rank's elements into some heads of all elements; after attending it
  /// does the reverse.
  std::function<Tensor(const Tensor& heads, bool before)> exchange = {};
};

/// y = concat(head_1, ..) out_proj. Each head is scaled_dot_product_attention of its part of the
/// projected query [L,N,E], key [S,N,E] and value [S,N,E]; y is [L,N,E]. With batch_first N comes
/// first; without a batch there is no N. N: batch; L, S: lengths; E: embed_dim, a multiple of
/// heads. As torch.nn.MultiheadAttention.
///
///   auto [y, weights] = attention(query, key, value, {.key_padding_mask = mask});
///   Tensor y = attention(x, {.is_causal = true});        // x attends to itself
///
/// weights: after dropout, [N,L,S] averaged over the heads, or [N,heads,L,S] without averaging.
/// They are undefined with need_weights = false, which is faster. The heads give zeros for a query
/// whose masks leave it no key; PyTorch gives NaN for it when it returns weights.
///
/// in_proj_weight [3E,E] and in_proj_bias [3E] hold the projections of query, key and value;
/// out_proj is a Linear. The initial values are PyTorch's, bit for bit: xavier_uniform_ for
/// in_proj_weight, a Linear's for out_proj.weight, 0 for the biases. Throws InvalidArgument for a
/// number of heads that does not divide embed_dim and for a dropout outside [0, 1], Shape, and
/// Dtype for a mask that is neither bool nor floating.
///
/// If in_proj_weight and in_proj_bias are replaced by those of fewer heads, it computes these
/// heads; shared_state(), an AttentionHeads, says which.
class MultiheadAttention : public Module<MultiheadAttention> {
 public:
  MultiheadAttention(std::int64_t embed_dim, std::int64_t heads,
                     const MultiheadAttentionOptions& options = {});

  AttentionResult forward(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionCall& call = {}) const;
  Tensor forward(const Tensor& x, const AttentionCall& call = {}) const;

  // Like every module's operator(), but with explicit types, so that the options can be given in
  // braces.
  AttentionResult operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                             const AttentionCall& call = {}) const {
    return Module::operator()(query, key, value, call);
  }
  Tensor operator()(const Tensor& x, const AttentionCall& call = {}) const {
    return Module::operator()(x, call);
  }

  Parameter in_proj_weight, in_proj_bias;  ///< in_proj_bias: undefined without bias
  Linear out_proj;

 private:
  Tensor split_heads(const Tensor& x) const;
  Tensor join_heads(const Tensor& heads) const;
  std::array<Tensor, 3> project(const Tensor& query, const Tensor& key, const Tensor& value) const;

  std::int64_t head_size_;
  double dropout_;
  bool batch_first_;
};

}  // namespace weft::nn
