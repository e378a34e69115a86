// Attention (Vaswani et al., "Attention Is All You Need", 2017), recorded on the tape.
#pragma once

#include <optional>
#include <tuple>

#include "weft/autograd/dropout.h"
#include "weft/tensor/tensor.h"

namespace weft {

struct AttentionOptions {
  /// Broadcasts to [..,L,S]. bool: true where the query may attend to the key (the opposite of
  /// nn::MultiheadAttention, as in PyTorch). floating: added to the scaled products.
  Tensor attn_mask{};
  /// Dropout of the weights. It has no training flag: pass 0 in evaluation.
  double dropout_p = 0;
  DrawnPart dropout_part = {};  ///< which part of the weights these are
  /// Query i attends to keys 0 to i. Together with attn_mask it throws InvalidArgument.
  bool is_causal = false;
  std::optional<double> scale{};  ///< 1 / sqrt(E) by default, 1 if E is 0
};

/// softmax(scale q k^T + mask) v: q [..,L,E], k [..,S,E], v [..,S,Ev] -> [..,L,Ev], as
/// torch.nn.functional.scaled_dot_product_attention. The leading dimensions, usually
/// [batch, heads], are broadcast. A query whose attn_mask excludes all keys gets zeros. Under
/// autocast everything is bf16. The memory, also for backward, is linear in L and S; dropout adds
/// a byte for each of the L S weights, a floating attn_mask of another dtype than q (for bf16: than
/// f32) is converted, and one that requires a gradient makes it attention_with_weights, which
/// stores the weights. Backward needs q, k, v, attn_mask and the result as they were. Throws Shape,
/// Dtype, InvalidArgument.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

struct AttentionResult {
  Tensor output;   ///< [..,L,Ev]
  Tensor weights;  ///< [..,L,S]: the softmax after dropout; a row without keys is 0
  auto tensors() { return std::tie(output, weights); }
};
/// The same, and also returns the weights that v was multiplied by.
AttentionResult attention_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options = {});

}  // namespace weft
