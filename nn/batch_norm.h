// Batch normalisation.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct BatchNormOptions {
  double eps = 1e-5;
  /// running = (1 - momentum) running + momentum batch; without a value the average of all batches.
  std::optional<double> momentum = 0.1;
  bool affine = true;  ///< with weight and bias
  bool track_running_stats = true;
};

/// What a batch norm does in the same pass over memory, with the values of the separate calls:
///   bn(conv(x), nn::then_relu())               relu(bn(conv(x)))
///   bn(conv(x), nn::then_leaky_relu(0.2))      leaky_relu(bn(conv(x)), 0.2)
///   bn(conv(x), nn::then_add_relu(identity))   relu(bn(conv(x)) + identity)
inline BatchNormEpilogue then_relu() { return {.add = {}, .negative_slope = 0}; }
inline BatchNormEpilogue then_leaky_relu(double negative_slope = 0.01) {
  return {.add = {}, .negative_slope = negative_slope};
}
/// identity: of bn's shape, dtype and device.
inline BatchNormEpilogue then_add_relu(Tensor identity) {
  return {.add = std::move(identity), .negative_slope = 0};
}

namespace detail {

/// What BatchNorm1d and BatchNorm2d are: y = (x - mean) / sqrt(var + eps) * weight + bias.
/// Training: mean and (biased) variance of each channel over the batch; running_mean and
/// running_var, with the unbiased variance, follow. Evaluation: the running ones, or the batch's
/// when they are not tracked. The second forward of a checkpoint (autograd/checkpoint.h) leaves the
/// running ones alone: a batch counts once. weight [C] starts as 1, bias as 0, running_mean as 0,
/// running_var as 1; num_batches_tracked is an i64 scalar. Throws Shape for another number of
/// channels, and when the batch's statistics are wanted of a single value per channel. With a
/// second argument y goes on through an addition or activation (BatchNormEpilogue).
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

/// Of x [N,C,H,W] -> [N,C,H,W] in x's layout, over N, H and W.
class BatchNorm2d : public detail::BatchNorm<BatchNorm2d> {
 public:
  explicit BatchNorm2d(std::int64_t channels, const BatchNormOptions& options = {})
      : BatchNorm("BatchNorm2d", channels, options) {}
  Tensor forward(const Tensor& x, const BatchNormEpilogue& then = {}) {
    return normalized(x, then);
  }
};

/// Of x [N,C] or [N,C,L] -> the same, over N and L.
class BatchNorm1d : public detail::BatchNorm<BatchNorm1d> {
 public:
  explicit BatchNorm1d(std::int64_t channels, const BatchNormOptions& options = {})
      : BatchNorm("BatchNorm1d", channels, options) {}
  Tensor forward(const Tensor& x, const BatchNormEpilogue& then = {});
};

/// weft::batch_norm, or what takes its place.
using BatchNormFunction = std::function<Tensor(
    const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStats& running,
    const BatchNormParams& params, const BatchNormEpilogue& then)>;

/// From now on every BatchNorm1d and BatchNorm2d of `module`, at any depth, computes by `training`
/// while it is in training mode, of x [N,C,H,W], and has the prefix before its type's name. All
/// else stays: parameters, buffers, names, modes, evaluation. Clones made later do the same.
void replace_batch_norms(ModuleBase& module, const std::string& prefix,
                         const BatchNormFunction& training);

}  // namespace weft::nn
