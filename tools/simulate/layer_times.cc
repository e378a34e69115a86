#include "weft/tools/simulate/layer_times.h"

#include <algorithm>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tools/simulate/clock.h"

namespace weft::simulator {
namespace {

using autograd::DeferredGradients;

// An alias of x without autograd history; collects a gradient if `collects`.
Tensor leaf_of(const Tensor& x, bool collects) {
  const Tensor leaf = raw::alias(x);
  if (collects) leaf.set_requires_grad();
  return leaf;
}

}  // namespace

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

std::vector<double> LayerTimes::seconds() const {
  std::vector<double> all;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    all.push_back(forward(i) + backward_input(i) + backward_weight(i));
  }
  return all;
}

void LayerTimes::forget() {
  loss_.clear();
  for (OfLayer& each : layers_) each = {};
}

StepOf::StepOf(const Program& program, Device device, std::size_t begin, std::size_t end)
    : program_(&program),
      device_(device),
      begin_(begin),
      end_(end),
      model_(nn::replicate(program.layers.slice(begin, end), device)) {
  const std::vector<Tensor> parameters = model_.parameters();
  if (!parameters.empty()) optimizer_ = program.make_optimizer(parameters);
}

StepOf::StepOf(const Program& program, Device device)
    : StepOf(program, device, 0, program.layers.size()) {}

std::pair<Tensor, Tensor> StepOf::batch(std::int64_t rows) const {
  const NoGrad no_grad;
  auto [x, target] = program_->batch(rows);
  x = program_->layers.slice(0, begin_)(x);
  if (!is_last()) target = ones_like(program_->layers.slice(begin_, end_)(x));
  return {raw::to(x, device_), raw::to(target, device_)};
}

void StepOf::run(const std::pair<Tensor, Tensor>& batch, StepTimes& into, int micro_batches) {
  if (optimizer_) optimizer_->zero_grad();
  for (int i = 0; i < micro_batches; ++i) {
    const Tensor x = leaf_of(batch.first, !is_first());
    Tensor y;
    (i == 0 ? into.forward : into.further_forward).push_back(computing_seconds_of([&] {
      y = model_(x);
    }));
    (i == 0 ? into.backward : into.further_backward).push_back(computing_seconds_of([&] {
      if (is_last()) {
        program_->loss(y, batch.second).backward();
      } else if (y.requires_grad()) {
        y.backward(batch.second);
      }
    }));
  }
  into.optimizer.push_back(computing_seconds_of([&] {
    if (optimizer_) optimizer_->step();
  }));
}

StepMemory memory_of_steps(const Program& program, std::int64_t rows) {
  const Device device = thread_state().device;
  const auto in_use = [&] { return static_cast<double>(memory_stats(device).in_use_bytes); };
  const auto of_owner = [&](MemoryOwner owner) {
    return static_cast<double>(
        memory_stats(device).in_use_by_owner[static_cast<std::size_t>(owner)]);
  };
  StepMemory memory;
  const double parameters = of_owner(MemoryOwner::parameters),
               state = of_owner(MemoryOwner::optimizer);
  StepOf step(program, device);
  memory.parameters = of_owner(MemoryOwner::parameters) - parameters;
  const std::pair<Tensor, Tensor> batch = step.batch(rows);
  StepTimes times;
  // From the second step on the optimiser's state exists, and the sizes of workspaces are known.
  for (int i = 0; i < 2; ++i) step.run(batch, times, 2);
  memory.state = of_owner(MemoryOwner::optimizer) - state;
  const auto peak = [&](int micro_batches) {
    step.clear();
    const double before = in_use();
    reset_peak_memory(device);
    step.run(batch, times, micro_batches);
    return static_cast<double>(memory_stats(device).peak_in_use_bytes) - before;
  };
  memory.plain = peak(1);
  const double with_gradients = in_use();
  step.clear();
  const double gradients = with_gradients - in_use();
  memory.further = peak(2) - gradients;

  Tensor x = batch.first;
  std::vector<Tensor> outputs;
  for (nn::AnyModule layer : program.layers) {
    const double before = in_use();
    outputs.push_back(layer(x));
    memory.kept.push_back(in_use() - before);
    x = outputs.back();
  }
  return memory;
}

}  // namespace weft::simulator
