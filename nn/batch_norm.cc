#include "weft/nn/batch_norm.h"

#include <any>
#include <typeinfo>

#include "weft/autograd/checkpoint.h"
#include "weft/core/error.h"
#include "weft/nn/repr.h"

namespace weft::nn {

BatchNorm2d::BatchNorm2d(std::int64_t channels, const BatchNormOptions& options) {
  WEFT_CHECK(channels > 0, InvalidArgument, "BatchNorm2d", "channels must be positive, got ",
             channels);
  params_.eps = options.eps;
  params_.cumulative = !options.momentum && options.track_running_stats;
  params_.momentum = options.momentum.value_or(0);
  if (options.affine) {
    weight = parameter("weight", ones({channels}));
    bias = parameter("bias", zeros({channels}));
  }
  if (options.track_running_stats) {
    running_mean = buffer("running_mean", zeros({channels}));
    running_var = buffer("running_var", ones({channels}));
    num_batches_tracked = buffer("num_batches_tracked", zeros({}, DType::i64));
  }
  shared_state() = BatchNormFunction();
  set_description(weft::detail::concat(
      channels, ", eps=", detail::repr(options.eps),
      ", momentum=", options.momentum ? detail::repr(*options.momentum) : "None",
      ", affine=", detail::repr(options.affine),
      ", track_running_stats=", detail::repr(options.track_running_stats)));
}

Tensor BatchNorm2d::forward(const Tensor& x, const BatchNormEpilogue& then) {
  BatchNormParams params = params_;
  params.training = is_training() || !running_mean.defined();
  RunningStats running{running_mean, running_var, num_batches_tracked};
  if (params.training && autograd::recomputing()) {  // the first forward counted this batch
    params.cumulative = false;
    running = {};
  }
  if (is_training()) {
    const auto& replaced = std::any_cast<const BatchNormFunction&>(shared_state());
    if (replaced) return replaced(x, weight, bias, running, params, then);
  }
  return batch_norm(x, weight, bias, running, params, then);
}

void replace_batch_norms(ModuleBase& module, const std::string& type_name,
                         const BatchNormFunction& training) {
  module.apply([&](ModuleBase& m) {
    if (m.shared_state().type() != typeid(BatchNormFunction)) return;
    m.shared_state() = training;
    m.set_type_name(type_name);
  });
}

}  // namespace weft::nn
