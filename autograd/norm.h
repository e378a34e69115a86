// Normalisation, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/tensor/ops.h"

namespace weft {

/// An addition and an activation in the same pass as batch norm: y = act(normalised x + add), with
/// act(v) = v where v > 0 and negative_slope v elsewhere. The values are those of separate
/// operations.
struct BatchNormEpilogue {
  Tensor add{};                            ///< of x's shape, dtype and device, or undefined
  std::optional<double> negative_slope{};  ///< >= 0; 0 is relu; no value: no activation
};
/// Also x [N,C] and [N,C,..], whose statistics are over all dimensions but C. Running statistics
/// are constants for the gradient. For an activation, the tape keeps more: y if there is an
/// addition, else weight and a copy of bias.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const RunningStats& running, const BatchNormParams& params = {},
                  const BatchNormEpilogue& then = {});
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

/// x / max(|x|_p, eps), with p_norm over dimension `dim`. Throws Dtype unless x is floating.
Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);
/// x [N,C,..]: the channels of each image form `groups` groups of C / groups neighbouring channels.
/// Each group becomes (group - its mean) / sqrt(its biased variance + eps). Then each channel is
/// multiplied by weight [C], and bias [C] is added, where they are defined (Wu and He, "Group
/// Normalization", 2018). Throws Shape unless groups divides C, Dtype unless weight and bias have
/// x's dtype; with a bf16 x they may be f32.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace weft
