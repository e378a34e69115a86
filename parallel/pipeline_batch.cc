#include "weft/parallel/pipeline_batch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/worker.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/shard.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;

namespace {

using Kind = Action::Kind;

constexpr const char* kOp = "pipeline";

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A stage's results as inputs of the next stage: values without history that collect gradients.
// `all`: each of them requires a gradient, since only the recomputation will show which need one.
TensorList handed_over(std::span<const Tensor> outputs, Device device, bool all) {
  TensorList inputs;
  for (const Tensor& y : outputs) {
    Tensor& x = inputs.emplace_back();
    if (!y.defined()) continue;
    x = raw::alias(raw::to(y, device));
    if (y.requires_grad() || (all && is_floating(y.dtype()))) x.set_requires_grad();
  }
  return inputs;
}

// Hooks on the gradient of a leaf run in the backward.
bool has_hooks(const Tensor& leaf) {
  const autograd::Meta* const meta = autograd::meta_of(leaf);
  return meta && meta->leaf && meta->leaf->grad_hooks.get();
}

}  // namespace

Tensor sum_of(const TensorList& parts) {
  Tensor sum = raw::clone(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) raw::add_scaled_(sum, 1, parts[i]);
  return sum;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::recompute: return "recompute";
    case Kind::backward_input: return "backward_input";
    case Kind::backward_weight: return "backward_weight";
    case Kind::send_activation: return "send_activation";
    case Kind::send_gradient: return "send_gradient";
    case Kind::receive_activation: return "receive_activation";
    case Kind::receive_gradient: return "receive_gradient";
    default: return "backward";
  }
}

PipelineBatch::PipelineBatch(std::shared_ptr<PipelineState> state, std::span<const Tensor> inputs,
                             std::int64_t rows)
    : state_(std::move(state)),
      stages_(state_->stages),
      inputs_(inputs.begin(), inputs.end()),
      rows_(rows) {
  sizes_ = state_->micro_batches(rows_);
  plan_ = &state_->plan(static_cast<int>(sizes_.size()));
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    std::vector<std::unique_ptr<Cell>>& row = cells_.emplace_back();
    for (std::size_t m = 0; m < sizes_.size(); ++m) row.push_back(std::make_unique<Cell>());
  }
  losses_.resize(sizes_.size());
  input_grads_.resize(sizes_.size());
  for (const Device device : state_->devices) turns_[device];
  bool needs = std::ranges::any_of(
      inputs_, [](const Tensor& x) { return x.defined() && x.requires_grad(); });
  for (const nn::AnyModule& stage : stages_) {
    std::vector<Tensor> weights = nn::used_parameters(stage);
    std::erase_if(weights, has_hooks);  // their gradients are not put off
    weights_.push_back(autograd::DeferredGradients::leaves(weights));
    needs = needs || !state_->has(static_cast<int>(needs_grad_.size())) ||
            std::ranges::any_of(stage.parameters(), &Tensor::requires_grad);
    needs_grad_.push_back(needs);
  }
}

Tensor PipelineBatch::step(std::span<const Tensor> targets, const PipelineLoss& loss) {
  rows_of("target", targets, rows_);
  targets_.assign(targets.begin(), targets.end());
  loss_ = &loss;
  run([](Kind) { return true; });
  return losses_[0].defined() ? sum_of(losses_) : Tensor();
}

std::int64_t PipelineBatch::first_row(int micro_batch) const {
  return std::accumulate(sizes_.begin(), sizes_.begin() + micro_batch, std::int64_t{0});
}

std::string PipelineBatch::place_of(const Action& action) const {
  return weft::detail::concat(name_of(action.kind), " of micro-batch ", action.micro_batch,
                              " in stage ", action.stage, " on ", state_->device(action.stage));
}

// --- Who runs what -------------------------------------------------------------------------------

void PipelineBatch::run(Wanted wanted) {
  stopped_ = false;
  ThreadState state = thread_state();
  state.grad_enabled = records_;
  // The autocast of the forward, also when a backward calls this.
  state.autocast = autocast_;
  state.memory_owner = MemoryOwner::activations;
  const ThreadStateGuard guard(state);
  if (exchange_) {
    exchange_->run(wanted);
  } else {
    run_on_workers(wanted);
  }
}

void PipelineBatch::run_on_workers(Wanted wanted) {
  const auto& lists = plan_->schedule.devices;
  std::vector<std::vector<TimedAction>> timed(lists.size());
  JobGroup jobs;
  const auto submit = [&](std::size_t list) {
    jobs.submit(state_->device(lists[list][0].stage),
                [&, list, wanted] { run_list(list, wanted, timed[list]); });
  };
  try {
    for (std::size_t list = 0; list < lists.size(); ++list) submit(list);
  } catch (...) {
    stop();  // running workers would wait for one that was not started
    throw;
  }
  jobs.wait();
  note(timed);
}

void PipelineBatch::run_list(std::size_t list, Wanted wanted, std::vector<TimedAction>& timed) {
  const std::vector<Action>& actions = plan_->schedule.devices[list];
  timed.reserve(actions.size());
  for (const Action& action : actions) {
    // Within one process the action that makes a result also gives it to the next stage.
    const bool communicates = is_communication(action.kind);
    if ((communicates && !exchange_) || !wanted(action.kind)) continue;
    if (!wait_for(action)) return;
    std::unique_lock turn(turns_[state_->device(action.stage)], std::try_to_lock);
    if (!turn) {
      const WaitScope waiting;  // the list that has the turn may need this device's worker
      turn.lock();
    }
    double begin = 0;
    try {
      within([&] { return place_of(action); },
             [&] { begin = exchange_ ? exchange_->perform(action) : perform(action); });
    } catch (...) {
      stop();
      throw;
    }
    if (communicates) continue;
    timed.push_back({action, static_cast<int>(list), begin, seconds_now()});
    done(action);
  }
}

void PipelineBatch::note(std::span<const std::vector<TimedAction>> timed) {
  Timeline& timeline = state_->timeline;
  timeline = {};
  double first = std::numeric_limits<double>::infinity();
  for (const auto& actions : timed) {
    if (!actions.empty()) first = std::min(first, actions[0].begin);
  }
  for (const auto& actions : timed) {
    double& busy = timeline.busy.emplace_back(0);
    for (TimedAction action : actions) {
      action.begin -= first;
      action.end -= first;
      busy += action.end - action.begin;
      timeline.end = std::max(timeline.end, action.end);
      timeline.actions.push_back(action);
    }
  }
}

// --- Who waits for whom --------------------------------------------------------------------------

bool PipelineBatch::ready(const Action& action) {
  const int s = action.stage, m = action.micro_batch;
  switch (action.kind) {
    case Kind::forward: return s == 0 || cell(s - 1, m).forward_done;
    case Kind::backward:
    case Kind::backward_input: return is_last(s) || cell(s + 1, m).backward_done;
    default: return true;  // its own list has run what it needs
  }
}

bool PipelineBatch::wait_for(const Action& action) {
  const auto over = [&] { return stopped_ || ready(action); };
  if (!over()) {
    const Span span(kOp, "wait", state_->device(action.stage));
    const WaitScope waiting;
    if (!spin_until(over)) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, over);
    }
  }
  return !stopped_;
}

void PipelineBatch::done(const Action& action) {
  {
    const std::lock_guard lock(mutex_);
    Cell& of = cell(action);
    if (action.kind == Kind::forward) of.forward_done = true;
    if (action.kind == Kind::backward || action.kind == Kind::backward_input) {
      of.backward_done = true;
    }
  }
  changed_.notify_all();
}

void PipelineBatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

// --- What they do --------------------------------------------------------------------------------

double PipelineBatch::perform(const Action& action) {
  const double begin = seconds_now();
  Span span(kOp, name_of(action.kind), state_->device(action.stage));
  span.set_arg("stage", action.stage);
  span.set_arg("micro_batch", action.micro_batch);
  switch (action.kind) {
    case Kind::forward: forward_of(action); break;
    case Kind::recompute: recompute_of(action); break;
    case Kind::backward: backward_of(action); break;
    case Kind::backward_input: {
      const autograd::DeferredGradients::Scope putting_off(cell(action).of_weights,
                                                           weights_[action.stage]);
      backward_of(action);
      break;
    }
    default: cell(action).of_weights.run();
  }
  return begin;
}

void PipelineBatch::forward_of(const Action& action) {
  const int s = action.stage, m = action.micro_batch;
  Cell& own = cell(action);
  if (s == 0) {
    own.inputs = part_of(inputs_, first_row(m), sizes_[m], state_->device(0));
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].defined() || !inputs_[i].requires_grad()) continue;
      own.inputs[i] = raw::alias(own.inputs[i]).set_requires_grad();
    }
  }
  own.recomputed = records_ && plan_->recomputed[s][m] && stages_[s].is_training();
  if (own.recomputed) {
    for (const Tensor& x : own.inputs) {
      own.versions.push_back(x.defined() ? x.storage()->version() : 0);
    }
    const NoGrad no_grad;
    const RecordGenerators drawing(own.generators);
    run_stage(action);
  } else {
    run_stage(action);
  }
  if (!is_last(s)) {
    cell(s + 1, m).inputs =
        handed_over(own.outputs, state_->device(s + 1), own.recomputed && needs_grad_[s]);
  } else if (loss_) {
    losses_[m] = raw::alias(own.outputs[0]);
  }
  const bool gathered = is_last(s) && !loss_;
  if ((!records_ || own.recomputed) && !gathered) own.outputs.clear();
  if (!records_) own.inputs.clear();
}

void PipelineBatch::recompute_of(const Action& action) {
  Cell& own = cell(action);
  if (!own.recomputed) return;
  for (std::size_t i = 0; i < own.inputs.size(); ++i) {
    const Tensor& x = own.inputs[i];
    WEFT_CHECK(!x.defined() || x.storage()->version() == own.versions[i], InvalidArgument, kOp,
               "input ", i, " ", x.shape(), " of stage ", action.stage,
               " was changed in place, so its forward cannot be run again; let the stage work on "
               "a clone() of it, or choose checkpoint never");
  }
  GeneratorSet generators(own.generators);
  const Scoped drawing(&ThreadState::generators, &generators);
  const Scoped recomputing(&ThreadState::recomputing, true);
  run_stage(action);
}

// Computes the outputs from the inputs; the last stage then replaces them by their loss.
void PipelineBatch::run_stage(const Action& action) {
  const int s = action.stage, m = action.micro_batch;
  Cell& own = cell(action);
  own.outputs = stages_[s](own.inputs);
  if (!is_last(s) || !loss_) return;
  Tensor loss =
      (*loss_)(own.outputs, part_of(targets_, first_row(m), sizes_[m], state_->device(s)));
  WEFT_CHECK(loss.numel() == 1, Shape, kOp, "the loss is ", loss.shape(), ", expected one element");
  if (state_->options.mean_loss && sizes_.size() > 1) {
    loss = loss * (static_cast<double>(sizes_[m]) / static_cast<double>(rows_));
  }
  own.outputs = {loss};
  own.grads = {Tensor()};
}

void PipelineBatch::backward_of(const Action& action) {
  const int s = action.stage, m = action.micro_batch;
  Cell& own = cell(action);
  TensorList outputs, grads;
  for (std::size_t i = 0; i < own.outputs.size(); ++i) {
    const Tensor& y = own.outputs[i];
    const bool is_loss = loss_ && is_last(s);
    if (!y.defined() || !y.requires_grad() || !(is_loss || own.grads[i].defined())) continue;
    outputs.push_back(y);
    grads.push_back(own.grads[i]);
  }
  if (thread_state().for_grad) {
    grad_of_inputs(outputs, grads, own.inputs);
  } else if (!outputs.empty()) {
    autograd::backward(outputs, grads);
  }
  TensorList of_inputs;
  for (const Tensor& x : own.inputs) of_inputs.push_back(x.defined() ? x.grad() : Tensor());
  own.inputs.clear();
  own.outputs.clear();
  own.grads.clear();
  if (s == 0) {
    input_grads_[m] = std::move(of_inputs);
    return;
  }
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  for (Tensor& grad : of_inputs) {
    if (grad.defined()) grad = raw::to(grad, state_->device(s - 1));
  }
  cell(s - 1, m).grads = std::move(of_inputs);
}

}  // namespace weft::parallel
