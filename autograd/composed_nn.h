// Operations of neural networks made of others (torch.nn.functional), recorded by those, as in
// autograd/composed.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

/// x with each element 0 with probability p, else divided by 1 - p; x itself where training is
/// false or p is 0. The mask takes one number per element, in row-major order, from the thread's
/// generator of x's device. Throws InvalidArgument for p outside [0, 1].
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

/// x [N,C,..] with each channel of each image 0 with probability p, all of it, else divided by
/// 1 - p; otherwise as dropout. Throws Shape below 3 dimensions.
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);

// --- Normalisation
/// x / max(|x|_p, eps), the norm being over dimension `dim`. Throws InvalidArgument for p < 1; p
/// may be infinite.
Tensor normalize(const Tensor& x, double p = 2, int dim = 1, double eps = 1e-12);
/// x [N,C,..]: each of the `groups` runs of C / groups channels of each image less its mean and
/// divided by sqrt(its biased variance + eps), then weight [C] times, plus bias [C], where they are
/// defined (Wu and He, "Group Normalization", 2018). Throws Shape unless groups divides C.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

// --- Convolution
struct Conv1dParams {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
/// x [N,C,L], w [K,C/groups,R], bias [K] or undefined -> [N,K,Lo]: conv2d of images of one row.
Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv1dParams& params = {});

// --- Images of another size
struct InterpolateOptions {
  Dims size{};                         ///< of the result: {height, width}, or one number for both
  std::vector<double> scale_factor{};  ///< in place of size: H becomes floor(H scale_factor)
  std::string mode = "nearest";        ///< or "bilinear"
  /// Bilinear: the centres of the corner pixels stay where they are, else the corners themselves.
  bool align_corners = false;
};

/// x [N,C,H,W] -> [N,C,Ho,Wo]. nearest: pixel i is pixel floor(i / scale). bilinear: the weighted
/// mean of the four pixels around (i + 1/2) / scale - 1/2, or i (H - 1) / (Ho - 1) with
/// align_corners. scale: scale_factor, or Ho / H. Throws Shape, and InvalidArgument unless there is
/// one of size and scale_factor, both positive.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

// --- Attention (Vaswani et al., "Attention Is All You Need", 2017)
struct AttentionOptions {
  /// Broadcasts to [..,L,S]. bool: true where the query may look at the key (nn::MultiheadAttention
  /// has it the other way round, as PyTorch); floating: added to the products.
  Tensor attn_mask{};
  /// Of the weights; also in evaluation, so pass 0 there.
  double dropout_p = 0;
  /// Query i looks at keys 0 to i. Not together with attn_mask (InvalidArgument).
  bool is_causal = false;
  std::optional<double> scale{};  ///< 1 / sqrt(E) by default
};

/// softmax(scale q k^T + mask) v: q [..,L,E], k [..,S,E], v [..,S,Ev] -> [..,L,Ev]. What stands in
/// front is broadcast: [batch, heads] as a rule. A query whose mask leaves it no key gets zeros.
/// Under autocast all in bf16. Throws Shape, Dtype, InvalidArgument.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

struct AttentionResult {
  Tensor output;   ///< [..,L,Ev]
  Tensor weights;  ///< [..,L,S], each row a distribution over the keys, or zeros
  auto tensors() { return std::tie(output, weights); }
};
/// Also the weights that v was averaged with, after dropout.
AttentionResult attention_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options = {});

}  // namespace weft
