// Batch normalisation.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "weft/autograd/norm.h"
#include "weft/nn/module.h"
#include "weft/nn/then.h"

namespace weft::nn {

/// PyTorch's defaults.
struct BatchNormOptions {
  double eps = 1e-5;
  /// running = (1 - momentum) running + momentum batch. Without a value: the average over all
  /// batches.
  std::optional<double> momentum = 0.1;
  bool affine = true;  ///< with weight and bias
  bool track_running_stats = true;
};

namespace detail {

/// Base of BatchNorm1d and BatchNorm2d: y = (x - mean) / sqrt(var + eps) * weight + bias. In
/// training, mean and (biased) variance of each channel are those of the batch, and running_mean
/// and running_var are updated, the latter with the unbiased variance. In evaluation they are the
/// running statistics, or the batch's if these are not tracked. The second forward of a checkpoint
/// (autograd/checkpoint.h) does not update the running statistics, so a batch counts once. weight
/// [C] and running_var [C] start as 1, bias [C] and running_mean [C] as 0; num_batches_tracked is
/// an i64 scalar. With a second argument, an addition or activation follows (BatchNormEpilogue).
/// Throws InvalidArgument for channels < 1; Shape for another number of channels, and where the
/// statistics of a batch would come from a single value per channel.
template <class Self>
class BatchNorm : public Module<Self> {
 public:
  Parameter weight, bias;                                    ///< undefined without affine
  Parameter running_mean, running_var, num_batches_tracked;  ///< undefined when not tracked

 protected:
  BatchNorm(const char* name, std::int64_t channels, const BatchNormOptions& options);
  /// x [N,C,H,W]
  Tensor normalized(const Tensor& x, const BatchNormEpilogue& then) const;

 private:
  BatchNormParams params_;
};

}  // namespace detail

/// x [N,C,H,W] -> [N,C,H,W] in x's layout. The statistics are over N, H and W.
class BatchNorm2d : public detail::BatchNorm<BatchNorm2d> {
 public:
  explicit BatchNorm2d(std::int64_t channels, const BatchNormOptions& options = {})
      : BatchNorm("BatchNorm2d", channels, options) {}
  Tensor forward(const Tensor& x, const BatchNormEpilogue& then = {}) const;
};

/// x [N,C] or [N,C,L] -> the same shape. The statistics are over N and L. Throws Shape for other
/// dimensions.
class BatchNorm1d : public detail::BatchNorm<BatchNorm1d> {
 public:
  explicit BatchNorm1d(std::int64_t channels, const BatchNormOptions& options = {})
      : BatchNorm("BatchNorm1d", channels, options) {}
  Tensor forward(const Tensor& x, const BatchNormEpilogue& then = {}) const;
};

/// The signature of weft::batch_norm, for a function that replaces it.
using BatchNormFunction = std::function<Tensor(
    const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStats& running,
    const BatchNormParams& params, const BatchNormEpilogue& then)>;

/// Makes every BatchNorm1d and BatchNorm2d of `module`, at any depth, call `training` with x
/// [N,C,H,W] while it is in training mode, and puts `prefix` before its type's name. Parameters,
/// buffers, names, modes and evaluation stay as they are. Later clones do the same.
void replace_batch_norms(ModuleBase& module, const std::string& prefix,
                         const BatchNormFunction& training);

}  // namespace weft::nn
