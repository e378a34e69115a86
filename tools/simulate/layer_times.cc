#include "weft/tools/simulate/layer_times.h"

#include <algorithm>

#include "weft/autograd/autograd.h"
#include "weft/core/error.h"
#include "weft/tensor/ops.h"
#include "weft/tools/simulate/clock.h"

namespace weft::simulator {
namespace {

using autograd::DeferredGradients;

// Without history; collects a gradient if it is to.
Tensor leaf_of(const Tensor& x, bool collects) {
  const Tensor leaf = raw::alias(x);
  if (collects) leaf.set_requires_grad();
  return leaf;
}

}  // namespace

double median(Times times) {
  WEFT_CHECK(!times.empty(), InvalidArgument, "simulate", "nothing was timed");
  const auto place = times.begin() + (std::ssize(times) - 1) / 2;
  std::ranges::nth_element(times, place);
  return *place;
}

LayerTimes::LayerTimes(const Program& program, std::int64_t rows)
    : program_(program), batch_(program.batch(rows)), layers_(program.layers.size()) {
  for (const nn::AnyModule& layer : program.layers) {
    leaves_.push_back(DeferredGradients::leaves(layer.parameters()));
  }
}

void LayerTimes::pass() {
  const std::size_t count = layers_.size();
  std::vector<Tensor> inputs, outputs;
  Tensor x = batch_.first;
  for (std::size_t i = 0; i < count; ++i) {
    inputs.push_back(leaf_of(x, i > 0));
    layers_[i].forward.push_back(
        computing_seconds_of([&] { outputs.push_back(program_.layers[i](inputs[i])); }));
    x = raw::alias(outputs[i]);
  }
  const Tensor last = leaf_of(x, true);
  loss_.push_back(computing_seconds_of([&] { program_.loss(last, batch_.second).backward(); }));
  Tensor grad = last.grad();
  for (std::size_t i = count; i-- > 0;) {
    DeferredGradients of_weights;
    layers_[i].input.push_back(computing_seconds_of([&] {
      const DeferredGradients::Scope putting_off(of_weights, leaves_[i]);
      if (outputs[i].requires_grad()) outputs[i].backward(grad);
    }));
    layers_[i].weight.push_back(computing_seconds_of([&] { of_weights.run(); }));
    outputs.pop_back();
    if (i > 0) grad = inputs[i].grad();
    inputs.pop_back();
  }
  for (const Tensor& p : program_.layers.parameters()) autograd::zero_grad(p);
}

void LayerTimes::forget() {
  loss_.clear();
  for (OfLayer& each : layers_) each = {};
}

StepOf::StepOf(const Program& program, Device device)
    : program_(&program), device_(device), model_(nn::replicate(program.layers, device)) {
  optimizer_ = program.make_optimizer(model_.parameters());
}

std::pair<Tensor, Tensor> StepOf::batch(std::int64_t rows) const {
  const auto [x, target] = program_->batch(rows);
  return {raw::to(x, device_), raw::to(target, device_)};
}

void StepOf::run(const std::pair<Tensor, Tensor>& batch, StepTimes& into) {
  optimizer_->zero_grad();
  Tensor y;
  into.forward.push_back(computing_seconds_of([&] { y = model_(batch.first); }));
  into.backward.push_back(
      computing_seconds_of([&] { program_->loss(y, batch.second).backward(); }));
  into.optimizer.push_back(computing_seconds_of([&] { optimizer_->step(); }));
}

}  // namespace weft::simulator
