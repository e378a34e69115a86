// Normalisation: batch norm over the channels of images, with what often follows it, and layer norm
// over rows.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/core/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

// Both compute, over the n elements x that share a mean,
//   mean = sum x / n,  var = sum (x - mean)^2 / n,  invstd = 1 / sqrt(var + eps)
//   y = (x - mean) invstd weight + bias
// and backward, with d = x - mean and g = grad_y (times weight where weight varies within a mean),
//   grad_x = weight invstd (g - sum g / n - d invstd^2 sum(g d) / n)
//   grad_weight = sum grad_y d invstd,  grad_bias = sum grad_y
// The sums run in f64 over x - shift, shift being one of the n values: since (shift - mean)^2 is at
// most n var, the variance's cancellation costs no more than a factor n of f64's roundoff, however
// large the mean. f32, f64, bf16; mean and invstd are of the type these are computed in (f32, f64,
// f32). Where a view may be empty it means: no weight (1), no bias (0), gradient not wanted.

// Batch norm may go on: y = act((x - mean) invstd weight + bias + addend), act(v) = v > 0 ? v :
// negative_slope v. Then g above is grad_y where v > 0 and negative_slope grad_y elsewhere (also at
// 0 and NaN), and is the addend's gradient. Backward finds v's sign in y, which has it since
// negative_slope >= 0, or without an addend in x, by the very operations of forward. Every step
// rounds to x's dtype, so that the values are those of three operations one after the other.

struct BatchNormParams {
  double eps = 1e-5;
  /// Normalise with the batch's own statistics; otherwise with the running ones.
  bool training = true;
  /// running = (1 - momentum) running + momentum batch
  double momentum = 0.1;
  /// momentum = 1 / num_batches instead: the running statistics are averages over all batches.
  bool cumulative = false;
  /// Of the activation, 0 or more; 0 is relu, also for the sign of zero. Without a value there is
  /// none.
  std::optional<double> negative_slope{};
};

/// x [N,C,H,W] nchw or nhwc, y of x's layout; all others [C], dense, of x's dtype but for mean and
/// invstd. N H W > 0; > 1 where running_var is updated.
struct BatchNormArgs {
  View x, weight, bias;  ///< weight, bias may be empty
  View running_mean;     ///< updated when training, unless empty
  View running_var;      ///< its update takes the unbiased variance, sum (x - mean)^2 / (n - 1)
  View num_batches;      ///< i64 scalar, plus 1 when training, before it is used; may be empty
  View y, mean, invstd;  ///< written, also in evaluation
  View addend;           ///< of x's shape and layout; may be empty
};

/// x, y, grad_y, grad_x, grad_addend of one layout; mean and invstd are forward's.
struct BatchNormGradArgs {
  View grad_y, x, weight, mean, invstd;
  View grad_x, grad_weight, grad_bias;  ///< overwritten; each may be empty
  View bias, y;  ///< for the activation: y where there was an addend, else bias, which may be empty
  View grad_addend;  ///< overwritten; may be empty, and is where there is no activation
};

/// x, y, grad_y, grad_x [rows,n] dense, weight and bias [n] dense, mean and invstd [rows] dense.
struct LayerNormArgs {
  double eps = 1e-5;
  View x, weight, bias;  ///< weight, bias may be empty
  View y, mean, invstd;
};
struct LayerNormGradArgs {
  View grad_y, x, weight, mean, invstd;
  View grad_x, grad_weight, grad_bias;  ///< overwritten; each may be empty
};

struct NormKernels {
  /// For both passes.
  std::size_t (*batch_norm_workspace_bytes)(const View& x);
  void (*batch_norm)(const Stream&, const BatchNormParams&, const BatchNormArgs&, void* workspace);
  /// In evaluation mean and invstd are constants: grad_x = weight invstd grad_y.
  void (*batch_norm_backward)(const Stream&, const BatchNormParams&, const BatchNormGradArgs&,
                              void* workspace);
  void (*layer_norm)(const Stream&, const LayerNormArgs&);
  std::size_t (*layer_norm_backward_workspace_bytes)(const View& x);
  void (*layer_norm_backward)(const Stream&, const LayerNormGradArgs&, void* workspace);
};

}  // namespace weft
