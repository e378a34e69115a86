// Normalisation: batch norm over the channels of images, with an optional addition and activation
// in the same pass, and group norm over groups of channels of one image, of which layer norm is a
// case.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

// Both compute, over the n elements x that share one mean,
//   mean = sum x / n,  var = sum (x - mean)^2 / n,  invstd = 1 / sqrt(var + eps)
//   y = (x - mean) invstd weight + bias
// and backward, with d = x - mean and g = grad_y (times weight where weight varies within a mean),
//   grad_x = weight invstd (g - sum g / n - d invstd^2 sum(g d) / n)
//   grad_weight = sum grad_y d invstd,  grad_bias = sum grad_y
// The sums run in f64 over x - shift, where shift is one of the n values. Since (shift - mean)^2 is
// at most n var, the cancellation in the variance costs at most a factor n of the rounding error of
// f64, however large the mean is. On CUDA, if x is not f64, a thread of batch norm sums in f32: 32
// values less one near their mean, in backward a thousand products at most; these sums are added in
// f64. Group norm there adds up runs of 32 terms in f32: squares of differences from the mean,
// whose own sum is compensated. Dtypes of x: f32, f64, bf16, which are computed in f32, f64, f32;
// mean and invstd have that dtype. An empty view means: no weight (1), no bias (0), or a gradient
// that is not wanted.

// Batch norm may also compute y = act((x - mean) invstd weight + bias + addend), with
// act(v) = v > 0 ? v : negative_slope v. Then g above is grad_y where v > 0 and negative_slope
// grad_y elsewhere (at 0, too, and at NaN, where relu passes grad_y on), and g is the gradient of
// the addend. Backward needs the sign of v. With an addend it takes the sign of y, which is the
// same since negative_slope >= 0. Without one it computes v from x again, by the same operations as
// forward. Every step rounds to x's dtype, so the values are those of three separate operations,
// also for bf16 images with parameters in f32.

/// The same arguments as torch.nn.functional.batch_norm, and an activation.
struct BatchNormParams {
  double eps = 1e-5;
  /// true: normalise with the statistics of the batch; false: with the running ones.
  bool training = true;
  /// running = (1 - momentum) running + momentum batch
  double momentum = 0.1;
  /// Use 1 / num_batches as momentum: the running statistics are averages over all batches.
  bool cumulative = false;
  /// Slope of the activation, 0 or more. 0 is relu, also in the sign of a zero. No value: no
  /// activation.
  std::optional<double> negative_slope{};
};

/// x [N,C,H,W] nchw or nhwc; y and addend have x's shape, layout and dtype. All others are [C] and
/// dense, and have the dtype in which x is computed. N H W > 0, and > 1 if running_var is updated.
struct BatchNormArgs {
  View x, weight, bias;  ///< weight, bias may be empty
  View running_mean;     ///< updated when training, unless empty
  View running_var;      ///< likewise, with the unbiased variance sum (x - mean)^2 / (n - 1)
  View num_batches;      ///< i64 scalar; training adds 1 before it is used; may be empty
  View y, mean, invstd;  ///< written, also in evaluation
  View addend;           ///< may be empty
};

/// x, y, grad_y, grad_x, grad_addend have one layout and x's dtype, the others the dtype in which x
/// is computed; mean and invstd are those of forward.
struct BatchNormGradArgs {
  View grad_y, x, weight, mean, invstd;
  View grad_x, grad_weight, grad_bias;  ///< overwritten; each may be empty
  View bias, y;  ///< for the activation: y if there was an addend, else bias, which may be empty
  View grad_addend;  ///< overwritten; may be empty; is empty without an activation
};

/// x, y, grad_y, grad_x [N,C,S] dense and not empty, weight and bias [C] dense, mean and invstd
/// [N,groups] dense; all but these have x's dtype. Of each image, C / groups neighbouring channels
/// share a mean. Layer norm of rows of n elements is x [rows,n,1] in one group.
struct GroupNormArgs {
  double eps = 1e-5;
  std::int64_t groups = 1;  ///< divides C
  View x, weight, bias;     ///< weight, bias may be empty
  View y, mean, invstd;
};
struct GroupNormGradArgs {
  std::int64_t groups = 1;
  View grad_y, x, weight, mean, invstd;
  View grad_x, grad_weight, grad_bias;  ///< overwritten; each may be empty
};

struct NormKernels {
  /// Workspace of batch_norm and of batch_norm_backward.
  std::size_t (*batch_norm_workspace_bytes)(const View& x);
  void (*batch_norm)(const Stream&, const BatchNormParams&, const BatchNormArgs&, void* workspace);
  /// In evaluation mean and invstd are constants: grad_x = weight invstd grad_y.
  void (*batch_norm_backward)(const Stream&, const BatchNormParams&, const BatchNormGradArgs&,
                              void* workspace);
  void (*group_norm)(const Stream&, const GroupNormArgs&);
  std::size_t (*group_norm_backward_workspace_bytes)(const View& x);
  void (*group_norm_backward)(const Stream&, const GroupNormGradArgs&, void* workspace);
};

}  // namespace weft
