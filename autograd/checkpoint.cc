#include "weft/autograd/checkpoint.h"

#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/session.h"
#include "weft/autograd/thread_tape.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

bool in_first_forward() { return tape_of_thread->in_first_forward; }

CheckpointNode::FirstForward::FirstForward(GeneratorSnapshot& snapshot)
    : drawing_(snapshot), before_(std::exchange(tape_of_thread->in_first_forward, true)) {}

CheckpointNode::FirstForward::~FirstForward() { tape_of_thread->in_first_forward = before_; }

CheckpointNode::Settings::Settings(const ThreadState& state)
    : deterministic(state.deterministic),
      benchmark(state.benchmark),
      autocast(state.autocast),
      allow_tf32_conv(state.allow_tf32_conv),
      allow_tf32_matmul(state.allow_tf32_matmul),
      num_threads(state.num_threads),
      device(state.device) {}

void CheckpointNode::Settings::put_into(ThreadState& state) const {
  state.deterministic = deterministic;
  state.benchmark = benchmark;
  state.autocast = autocast;
  state.allow_tf32_conv = allow_tf32_conv;
  state.allow_tf32_matmul = allow_tf32_matmul;
  state.num_threads = num_threads;
  state.device = device;
}

CheckpointNode::CheckpointNode(std::span<const Tensor> inputs)
    : Node("checkpoint"), settings_(thread_state()) {
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
    // A result that is an input, or that has a history already, leaves that to the old tensor.
    if (meta_of(y)) y = raw::alias(y);
    for (const Tensor& x : inputs) {
      if (y.same(x)) y = raw::alias(y);
    }
    if (!std::exchange(on_tape, true)) {
      // If only parameters inside require a gradient, the node gets an input: a leaf on its device.
      add_input(empty({0}, {y.dtype(), y.device()}).set_requires_grad());
    }
    attach(y, intrusive_ptr<Node>(this), static_cast<int>(i));
    for (const Tensor& x : inputs) {
      if (x.defined()) mark_view(y, x);
    }
  }
}

void CheckpointNode::release_saved() {
  inputs_.clear();
  take_second();
}

std::optional<CheckpointNode::Second> CheckpointNode::take_second() {
  const std::lock_guard lock(mutex_);
  return std::exchange(second_, std::nullopt);
}

bool CheckpointNode::recomputed() {
  const std::lock_guard lock(mutex_);
  return second_.has_value();
}

void CheckpointNode::recompute_now() {
  NodeUse use(*this, true);
  if (recomputed()) return;
  Second second = run_again();
  const std::lock_guard lock(mutex_);
  if (!second_) second_ = std::move(second);
}

CheckpointNode::Second CheckpointNode::run_again() {
  const Span span("autograd", "recompute");
  Second second;
  second.inputs.reserve(inputs_.size());
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    // An undefined tensor may be an input: an optional operand that was not given.
    second.inputs.push_back(inputs_[i].defined() ? raw::alias(inputs_[i].get(*this)) : Tensor());
    if (needs(static_cast<int>(i))) second.inputs.back().set_requires_grad();
  }
  GeneratorSet generators(generators_);
  ThreadState state = thread_state();
  settings_.put_into(state);
  state.grad_enabled = true;
  state.recomputing = true;
  state.memory_owner = MemoryOwner::activations;
  state.generators = &generators;
  state.path = path();
  const ThreadStateGuard guard(state);
  second.outputs = call_again(second.inputs);
  WEFT_CHECK(static_cast<int>(second.outputs.size()) == outputs(), InvalidArgument, op(),
             "the function gave ", outputs(), " results in the forward, ", second.outputs.size(),
             " when called again");
  return second;
}

void CheckpointNode::apply(Gradients& grads) {
  std::optional<Second> kept = take_second();
  const Second second = kept ? *std::move(kept) : run_again();
  const Tensors& inputs = second.inputs;
  Tensors outputs, of_outputs;
  for (std::size_t i = 0; i < second.outputs.size(); ++i) {
    const Tensor& grad = grads.y(static_cast<int>(i));
    const Tensor& y = second.outputs[i];
    if (!grad.defined() || !y.defined() || !requires_grad(y)) continue;
    outputs.push_back(y);
    of_outputs.push_back(grad);
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
  const std::vector<Tensor> results = grad(outputs, wanted, of_outputs, {.allow_unused = true});
  auto next = results.begin();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (grads.wants(static_cast<int>(i))) grads.set(static_cast<int>(i), *next++);
  }
}

Recomputation::Recomputation(const Tensor& y) {
  y.shape();  // throws when undefined
  const Meta* const meta = meta_of(y);
  node_ = intrusive_ptr<CheckpointNode>(meta ? dynamic_cast<CheckpointNode*>(meta->producer.get())
                                             : nullptr);
  WEFT_CHECK(node_, InvalidArgument, "Recomputation", "this tensor (", y.shape(), ") is ",
             meta && meta->producer ? meta->producer->op() : "not on the tape",
             meta && meta->producer ? "'s result" : "", ", expected a checkpoint's");
}

}  // namespace weft::autograd
