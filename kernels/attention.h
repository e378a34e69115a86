// Attention over blocks of keys, without the matrix of all weights.
#pragma once

#include <cstddef>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

// For each query i, over the keys j that it sees,
//   s_ij = scale q_i k_j + mask_ij,  log_sum_i = log sum_j exp(s_ij),  p_ij = exp(s_ij - log_sum_i)
//   y_i = sum_j d_ij v_j,  d_ij = p_ij, or with dropout keep_scale p_ij where kept_ij, else 0
// and backward, with g_ij = grad_y_i v_j (with dropout times keep_scale where kept_ij, else 0),
//   grad_s_ij = p_ij (g_ij - y_i grad_y_i)
//   grad_q_i = scale sum_j grad_s_ij k_j,  grad_k_j = scale sum_i grad_s_ij q_i
//   grad_v_j = sum_i d_ij grad_y_i
// Forward keeps a running maximum and sum (Milakov and Gimelshein, "Online normalizer calculation
// for softmax", 2018, arXiv:1805.02867). Backward computes the weights again from log_sums (Dao et
// al., "FlashAttention", 2022, arXiv:2205.14135; Dao, "FlashAttention-2", 2023, arXiv:2307.08691).
// So the memory is linear in the numbers of queries and keys, but for mask and kept.
//
// A query sees no key if there are no keys or its row of the mask hides all: then y and its part
// of all gradients are 0, and its log_sum is +infinity. Otherwise infinite and NaN scores have the
// effects that softmax gives them. Hidden keys and values must be finite, as must be q and grad_y
// of a query that sees no key: whether they are multiplied by 0 or left out is not said. Only
// forward leaves out a key that causal hides, whatever it is.

/// One floating dtype, in which q, k, v have last stride 1 (or length 1) and any other strides.
/// Sums and log_sums: f32 for f32 and bf16, f64 for f64. All sizes may be 0.
struct AttentionArgs {
  View q, k, v;  ///< [A,B,L,E], [A,B,S,E], [A,B,S,Ev]
  /// [A,B,L,S] of any strides, or empty: boolean, true where the query sees the key, or of the
  /// dtype of the sums: is added to the scores, and -infinity hides the key.
  View mask;
  View kept;            ///< boolean [A,B,L,S] with last stride 1, or empty: no dropout
  bool causal = false;  ///< query i sees keys 0 to i; not together with mask
  double scale = 1;
  double keep_scale = 1;
};

/// The outputs are dense: y [A,B,L,Ev], log_sums [A,B,L].
struct AttentionGradArgs {
  View grad_y, y, log_sums;     ///< grad_y dense; y and log_sums are those of forward
  View grad_q, grad_k, grad_v;  ///< overwritten, dense; each may be empty
};

/// workspace: as many bytes as the function beside it says for this call, null for none.
struct AttentionKernels {
  std::size_t (*workspace_bytes)(const AttentionArgs&);
  void (*forward)(const Stream&, const AttentionArgs&, const View& y, const View& log_sums,
                  void* workspace);
  std::size_t (*backward_workspace_bytes)(const AttentionArgs&);
  void (*backward)(const Stream&, const AttentionArgs&, const AttentionGradArgs&, void* workspace);
};

}  // namespace weft
