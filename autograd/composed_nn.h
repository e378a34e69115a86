// Operations of neural networks (torch.nn.functional) that are composed of others, as in
// autograd/composed.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

/// Sets each element of x to 0 with probability p and divides the others by 1 - p. Returns x itself
/// if training is false or p is 0. The mask takes one number per element, in row-major order, from
/// the thread's generator of x's device. Throws InvalidArgument for p outside [0, 1].
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

/// x [N,C,..]: sets each whole channel of each image to 0 with probability p and divides the others
/// by 1 - p. Otherwise as dropout. Throws Shape below 3 dimensions.
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);

// --- Normalisation
/// x / max(|x|_p, eps), with the norm over dimension `dim`; p may be infinite. Throws
/// InvalidArgument for p < 1, Dtype unless x is floating.
Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);
/// x [N,C,..]: the channels of each image form `groups` groups of C / groups neighbouring channels.
/// Each group becomes (group - its mean) / sqrt(its biased variance + eps). Then each channel is
/// multiplied by weight [C], and bias [C] is added, where they are defined (Wu and He, "Group
/// Normalization", 2018). Throws Shape unless groups divides C, Dtype unless weight and bias have
/// x's dtype; with a bf16 x they may be f32.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

// --- Convolution
struct Conv1dParams {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
/// x [N,C,L], w [K,C/groups,R], bias [K] or undefined -> [N,K,Lo]: a conv2d of images of one row.
/// kernels/conv.h has the formula of Lo.
Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv1dParams& params = {});

// --- Images of another size
struct InterpolateOptions {
  Dims size{};                         ///< of the result: {height, width}, or one for both
  std::vector<double> scale_factor{};  ///< instead of size: Ho = floor(H scale_factor)
  std::string mode = "nearest";        ///< or "bilinear"
  /// Bilinear only. true: the centres of the corner pixels keep their places; false: the outer
  /// corners of these pixels do.
  bool align_corners = false;
};

/// x [N,C,H,W] -> [N,C,Ho,Wo], as torch.nn.functional.interpolate, with scale = scale_factor or
/// Ho / H. nearest: pixel i of the result is pixel floor(i / scale) of x. bilinear: it is the
/// weighted mean of the four pixels around (i + 1/2) / scale - 1/2, or around
/// i (H - 1) / (Ho - 1) with align_corners. Throws Shape, Dtype, and InvalidArgument unless exactly
/// one of size and scale_factor is given and the sides of the result have 1 to kMaxPixels.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

// --- Attention (Vaswani et al., "Attention Is All You Need", 2017)
struct AttentionOptions {
  /// Broadcasts to [..,L,S]. bool: true where the query may attend to the key (the opposite of
  /// nn::MultiheadAttention, as in PyTorch). floating: added to the scaled products.
  Tensor attn_mask{};
  /// Dropout of the weights. It has no training flag: pass 0 in evaluation.
  double dropout_p = 0;
  /// Query i attends to keys 0 to i. Together with attn_mask it throws InvalidArgument.
  bool is_causal = false;
  std::optional<double> scale{};  ///< 1 / sqrt(E) by default
};

/// softmax(scale q k^T + mask) v: q [..,L,E], k [..,S,E], v [..,S,Ev] -> [..,L,Ev], as
/// torch.nn.functional.scaled_dot_product_attention. The leading dimensions, usually
/// [batch, heads], are broadcast. A query whose attn_mask excludes all keys gets zeros. Under
/// autocast everything is bf16. Throws Shape, Dtype, InvalidArgument.
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
