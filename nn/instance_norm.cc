#include "weft/nn/instance_norm.h"

#include "weft/autograd/checkpoint.h"
#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

InstanceNorm2d::InstanceNorm2d(std::int64_t channels, const InstanceNormOptions& options)
    : channels_(channels), eps_(options.eps), momentum_(options.momentum.value_or(0)) {
  WEFT_CHECK(channels > 0, InvalidArgument, "InstanceNorm2d", "channels: got ", channels,
             ", expected 1 or more");
  if (options.affine) {
    weight = parameter("weight", ones({channels}));
    bias = parameter("bias", zeros({channels}));
  }
  if (options.track_running_stats) {
    running_mean = buffer("running_mean", zeros({channels}));
    running_var = buffer("running_var", ones({channels}));
    num_batches_tracked = buffer("num_batches_tracked", zeros({}, DType::i64));
  }
  set_description(weft::detail::concat(
      channels, ", eps=", detail::repr(options.eps),
      ", momentum=", options.momentum ? detail::repr(*options.momentum) : "None",
      ", affine=", detail::repr(options.affine),
      ", track_running_stats=", detail::repr(options.track_running_stats)));
}

void InstanceNorm2d::update_running(const Tensor& x) const {
  if (momentum_ == 0 || x.numel() == 0) return;
  const std::int64_t n = x.shape(2) * x.shape(3);
  WEFT_CHECK(n > 1, Shape, "InstanceNorm2d", "input: got ", x.shape(),
             ", expected more than one pixel an image for the running variance");
  const raw::Moments of_image = raw::moments("InstanceNorm2d", x, {2, 3}, false);
  const auto average = [&](const Tensor& running, const Tensor& each, double factor) {
    raw::mul_(running, 1 - momentum_);
    raw::add_scaled_(running, momentum_ * factor,
                     raw::to(raw::mean(each, {0, 2, 3}), running.dtype()));
  };
  average(running_mean, of_image.mean, 1);
  average(running_var, of_image.squares, 1 / static_cast<double>(n - 1));
}

Tensor InstanceNorm2d::forward(const Tensor& x) const {
  if (x.dim() == 3) return forward(x.unsqueeze(0)).squeeze(0);
  WEFT_CHECK(x.dim() == 4 && x.shape(1) == channels_, Shape, "InstanceNorm2d", "input: got ",
             x.shape(), ", expected [N,", channels_, ",H,W]");
  if (running_mean.defined() && !is_training()) {
    return batch_norm(x, weight, bias, {running_mean, running_var, {}},
                      {.eps = eps_, .training = false});
  }
  const Tensor y = group_norm(x, channels_, weight, bias, eps_);
  if (running_mean.defined() && !autograd::recomputing()) update_running(x);
  return y;
}

}  // namespace weft::nn
