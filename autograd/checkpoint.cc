#include "weft/autograd/checkpoint.h"

#include <cstring>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/session.h"
#include "weft/core/error.h"
#include "weft/core/rng.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

static_assert(std::is_trivially_copyable_v<Generator>);

Tensor bytes_of(const Generator& generator) {
  Tensor bytes = empty({sizeof generator}, {DType::u8, Device()});
  std::memcpy(bytes.raw_data(), &generator, sizeof generator);
  return bytes;
}

}  // namespace

CheckpointNode::Settings::Settings(const ThreadState& state)
    : deterministic(state.deterministic),
      autocast(state.autocast),
      allow_tf32_conv(state.allow_tf32_conv),
      allow_tf32_matmul(state.allow_tf32_matmul),
      num_threads(state.num_threads),
      device(state.device) {}

void CheckpointNode::Settings::put_into(ThreadState& state) const {
  state.deterministic = deterministic;
  state.autocast = autocast;
  state.allow_tf32_conv = allow_tf32_conv;
  state.allow_tf32_matmul = allow_tf32_matmul;
  state.num_threads = num_threads;
  state.device = device;
}

CheckpointNode::CheckpointNode(std::span<const Tensor> inputs)
    : Node("checkpoint"), settings_(thread_state()), generator_(bytes_of(default_generator())) {
  set_nests();
  inputs_.reserve(inputs.size());
  for (const Tensor& x : inputs) {
    add_input(x);
    inputs_.push_back(x.defined() ? save(x) : SavedTensor());
  }
}

void CheckpointNode::finish(std::span<Tensor> outputs, std::span<const Tensor> inputs) {
  set_outputs(static_cast<int>(outputs.size()));
  bool on_tape = recording_any(inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Tensor& y = outputs[i];
    if (!y.defined() || !is_floating(y.dtype())) continue;
    // A result that is an input, or the result of something else, keeps that history to itself.
    if (meta_of(y)) y = raw::alias(y);
    for (const Tensor& x : inputs) {
      if (y.same(x)) y = raw::alias(y);
    }
    if (!std::exchange(on_tape, true)) {
      // What it depends on when only parameters inside require a gradient: a leaf where it runs.
      add_input(empty({0}, {y.dtype(), y.device()}).set_requires_grad());
    }
    attach(y, intrusive_ptr<Node>(this), static_cast<int>(i));
    for (const Tensor& x : inputs) {
      if (x.defined()) mark_view(y, x);
    }
  }
}

void CheckpointNode::apply(Gradients& grads) {
  if (freed()) throw_freed();
  Tensors inputs;
  inputs.reserve(inputs_.size());
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    // An undefined tensor may be an input: an optional operand that was not given.
    inputs.push_back(inputs_[i].defined() ? raw::alias(inputs_[i].get(*this)) : Tensor());
    if (needs(static_cast<int>(i))) inputs.back().set_requires_grad();
  }

  Tensors outputs, of_outputs;
  {
    Generator generator;
    std::memcpy(&generator, generator_.raw_data(), sizeof generator);
    ThreadState state = thread_state();
    settings_.put_into(state);
    state.grad_enabled = true;
    state.recomputing = true;
    state.generator = &generator;
    const ThreadStateGuard guard(state);
    const Tensors results = recompute(inputs);
    WEFT_CHECK(static_cast<int>(results.size()) == grads.outputs(), InvalidArgument, op(),
               "the function gave ", grads.outputs(), " results in the forward, ", results.size(),
               " when called again");
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Tensor& grad = grads.y(static_cast<int>(i));
      if (!grad.defined() || !results[i].defined() || !requires_grad(results[i])) continue;
      outputs.push_back(results[i]);
      of_outputs.push_back(grad);
    }
  }
  if (outputs.empty()) return;

  if (grads.accumulates()) {
    last_backward_of_rule(outputs, of_outputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const int at = static_cast<int>(i);
      if (grads.wants(at)) grads.set(at, inputs[i].grad());
    }
    return;
  }
  Tensors wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (grads.wants(static_cast<int>(i))) wanted.push_back(inputs[i]);
  }
  const std::vector<Tensor> results = grad(outputs, wanted, of_outputs, false, true);
  auto next = results.begin();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (grads.wants(static_cast<int>(i))) grads.set(static_cast<int>(i), *next++);
  }
}

}  // namespace weft::autograd
