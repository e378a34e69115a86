#include "weft/nn/batch_norm.h"

#include <any>

#include "weft/autograd/checkpoint.h"
#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

namespace {

// Shared by all handles of a module.
struct State {
  std::string type;
  BatchNormFunction training;  // empty: weft::batch_norm
};

}  // namespace

template <class Self>
detail::BatchNorm<Self>::BatchNorm(const char* name, std::int64_t channels,
                                   const BatchNormOptions& options) {
  WEFT_CHECK(channels > 0, InvalidArgument, name, "channels must be positive, got ", channels);
  params_.eps = options.eps;
  params_.cumulative = !options.momentum && options.track_running_stats;
  params_.momentum = options.momentum.value_or(0);
  if (options.affine) {
    weight = this->parameter("weight", ones({channels}));
    bias = this->parameter("bias", zeros({channels}));
  }
  if (options.track_running_stats) {
    running_mean = this->buffer("running_mean", zeros({channels}));
    running_var = this->buffer("running_var", ones({channels}));
    num_batches_tracked = this->buffer("num_batches_tracked", zeros({}, DType::i64));
  }
  this->shared_state() = State{name, {}};
  this->set_description(weft::detail::concat(
      channels, ", eps=", repr(options.eps), ", momentum=",
      options.momentum ? repr(*options.momentum) : "None", ", affine=", repr(options.affine),
      ", track_running_stats=", repr(options.track_running_stats)));
}

template <class Self>
Tensor detail::BatchNorm<Self>::normalized(const Tensor& x, const BatchNormEpilogue& then) const {
  BatchNormParams params = params_;
  params.training = this->is_training() || !running_mean.defined();
  RunningStats running{running_mean, running_var, num_batches_tracked};
  if (params.training && autograd::recomputing()) {  // the first forward has counted this batch
    params.cumulative = false;
    running = {};
  }
  if (this->is_training()) {
    const auto& replaced = std::any_cast<const State&>(this->shared_state()).training;
    if (replaced) return replaced(x, weight, bias, running, params, then);
  }
  return batch_norm(x, weight, bias, running, params, then);
}

template class detail::BatchNorm<BatchNorm1d>;
template class detail::BatchNorm<BatchNorm2d>;

Tensor BatchNorm2d::forward(const Tensor& x, const BatchNormEpilogue& then) const {
  WEFT_CHECK(x.dim() == 4, Shape, "BatchNorm2d", "input: got ", x.shape(), ", expected [N,C,H,W]");
  return normalized(x, then);
}

Tensor BatchNorm1d::forward(const Tensor& x, const BatchNormEpilogue& then) const {
  WEFT_CHECK(x.dim() == 2 || x.dim() == 3, Shape, "BatchNorm1d", "input: got ", x.shape(),
             ", expected [N,C] or [N,C,L]");
  // A sequence is treated as an image that is one pixel wide.
  const auto image = [&](const Tensor& t) {
    return t.reshape({x.shape(0), x.shape(1), x.dim() == 3 ? x.shape(2) : 1, 1});
  };
  BatchNormEpilogue of_image = then;
  if (then.add.defined()) of_image.add = image(then.add);
  return normalized(image(x), of_image).reshape(x.shape());
}

void replace_batch_norms(ModuleBase& module, const std::string& prefix,
                         const BatchNormFunction& training) {
  module.apply([&](ModuleBase& m) {
    State* state = std::any_cast<State>(&m.shared_state());
    if (!state) return;
    state->training = training;
    m.set_type_name(prefix + state->type);
  });
}

}  // namespace weft::nn
