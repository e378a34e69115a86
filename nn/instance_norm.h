// Instance normalisation.
#pragma once

#include <optional>

#include "weft/autograd/norm.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct InstanceNormOptions {
  double eps = 1e-5;
  /// running = (1 - momentum) running + momentum input. Without a value nothing is averaged, as in
  /// PyTorch: the running statistics stay.
  std::optional<double> momentum = 0.1;
  bool affine = false;  ///< with weight and bias
  bool track_running_stats = false;
};

/// x [N,C,H,W] or [C,H,W] -> the same shape: each channel of each image is normalised over its
/// pixels, as by group_norm with a group for each channel (Ulyanov et al., arXiv 1607.08022). With
/// track_running_stats training averages the mean and the unbiased variance over the images of a
/// batch into the running ones, by which evaluation normalises; a recomputed forward
/// (autograd/checkpoint.h) does not. num_batches_tracked exists only for state dicts, and stays 0.
/// Throws Shape for another number of channels, and for images of one pixel where the running
/// variance is updated; InvalidArgument for fewer channels than one.
class InstanceNorm2d : public Module<InstanceNorm2d> {
 public:
  explicit InstanceNorm2d(std::int64_t channels, const InstanceNormOptions& options = {});
  Tensor forward(const Tensor& x) const;

  Parameter weight, bias;                                    ///< undefined without affine
  Parameter running_mean, running_var, num_batches_tracked;  ///< undefined when not tracked

 private:
  void update_running(const Tensor& x) const;

  std::int64_t channels_;
  double eps_, momentum_;
};

}  // namespace weft::nn
