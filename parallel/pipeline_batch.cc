#include "weft/parallel/pipeline_batch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/worker.h"
#include "weft/core/trace/trace.h"
#include "weft/parallel/named_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;

namespace {

using Kind = Action::Kind;

constexpr const char* kOp = "pipeline";

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

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A stage's results as the next one's inputs: values without history, which collect gradients.
// `all`: who computes the outputs again will know which of them need some.
TensorList handed_over(std::span<const Tensor> outputs, Device device, bool all) {
  TensorList inputs;
  for (const Tensor& y : outputs) {
    if (!y.defined()) {
      inputs.emplace_back();
      continue;
    }
    const Tensor x = raw::alias(raw::to(y, device));
    if (y.requires_grad() || (all && is_floating(y.dtype()))) x.set_requires_grad();
    inputs.push_back(x);
  }
  return inputs;
}

Tensor sum_of(const TensorList& parts) {
  Tensor sum = raw::clone(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) raw::add_scaled_(sum, 1, parts[i]);
  return sum;
}

}  // namespace

std::int64_t rows_of(const char* what, std::span<const Tensor> tensors,
                     std::optional<std::int64_t> expected) {
  for (const Tensor& x : tensors) {
    if (!x.defined() || x.dim() == 0) continue;
    WEFT_CHECK(!expected || *expected == x.shape(0), Shape, kOp, what, ' ', x.shape(),
               ": expected ", *expected, " rows");
    expected = x.shape(0);
  }
  return expected.value_or(1);
}

TensorList part_of(std::span<const Tensor> tensors, std::int64_t begin, std::int64_t rows,
                   Device device) {
  TensorList part;
  for (const Tensor& x : tensors) {
    const bool cut = x.defined() && x.dim() > 0;
    part.push_back(!x.defined() ? x : raw::to(cut ? raw::narrow(x, 0, begin, rows) : x, device));
  }
  return part;
}

Pipeline::Batch::Batch(std::shared_ptr<State> state, std::span<const Tensor> inputs,
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
  for (const Device device : state_->devices) turns_[device];
  for (const nn::AnyModule& stage : stages_) {
    weights_.push_back(autograd::DeferredGradients::leaves(stage.parameters()));
  }
  bool needs = std::ranges::any_of(
      inputs_, [](const Tensor& x) { return x.defined() && x.requires_grad(); });
  for (const nn::AnyModule& stage : stages_) {
    needs = needs || std::ranges::any_of(stage.parameters(), &Tensor::requires_grad);
    needs_grad_.push_back(needs);
  }
}

Tensor Pipeline::Batch::step(std::span<const Tensor> targets, const Loss& loss) {
  rows_of("target", targets, rows_);
  targets_.assign(targets.begin(), targets.end());
  loss_ = &loss;
  run([](Kind) { return true; });
  return total_loss();
}

Tensor Pipeline::Batch::total_loss() {
  const int last = plan_->schedule.stages - 1, root = state_->owner(last);
  const bool is_here = state_->is_here(last);
  Tensor total = is_here ? sum_of(losses_) : Tensor();
  if (!state_->options.group) return total;
  comm::ProcessGroup& group = *state_->options.group;
  if (!state_->loss_dtype) {  // what comes later has the same: the host need not wait for it
    const std::string name =
        group.broadcast_object(is_here ? weft::to_string(total.dtype()) : std::string(), root);
    state_->loss_dtype = parse_dtype(name);
  }
  const TensorOptions options{*state_->loss_dtype, state_->device(last)};
  total = is_here ? raw::to(total, *state_->loss_dtype).reshape({}) : empty({}, options);
  group.broadcast(total, root).wait();
  return total;
}

TensorList Pipeline::Batch::forward() {
  run([](Kind kind) {
    return kind == Kind::forward || kind == Kind::send_activation ||
           kind == Kind::receive_activation;
  });
  const int last = plan_->schedule.stages - 1;
  if (!state_->options.group) return joined_outputs();
  optim::NamedTensors named;
  if (state_->is_here(last)) {
    for (Tensor& y : joined_outputs()) {
      named.emplace_back(std::to_string(named.size()), std::move(y));
    }
  }
  TensorList whole;
  for (const auto& [name, y] :
       broadcast_named(*state_->options.group, std::move(named), state_->owner(last))) {
    whole.push_back(raw::to(y, state_->device(last)));
  }
  return whole;
}

TensorList Pipeline::Batch::joined_outputs() {
  TensorList whole;
  const std::size_t count = cells_.back()[0]->outputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    TensorList parts;
    std::vector<std::int64_t>& rows = output_rows_.emplace_back();
    for (const auto& cell : cells_.back()) {
      const Tensor& part = cell->outputs[i];
      WEFT_CHECK(part.defined(), InvalidArgument, "pipeline", "result ", i,
                 " of the last stage is undefined; a batch is put together of tensors");
      parts.push_back(raw::alias(part));
      rows.push_back(part.dim() == 0 ? -1 : part.shape(0));
    }
    whole.push_back(parts[0].dim() == 0 ? raw::stack(parts, 0) : raw::cat(parts, 0));
  }
  for (const auto& cell : cells_.back()) {
    if (cell->recomputed) cell->outputs.clear();
  }
  return whole;
}

TensorList Pipeline::Batch::backward(std::span<const Tensor> grads) {
  WEFT_CHECK(!std::exchange(used_, true), InvalidArgument, "pipeline",
             "an earlier backward freed what the stages had kept; run the forward again");
  for (std::size_t i = 0; i < grads.size(); ++i) {
    std::int64_t begin = 0;
    for (std::size_t m = 0; m < sizes_.size(); ++m) {
      const std::int64_t rows = output_rows_[i][m];
      TensorList& own = cells_.back()[m]->grads;
      if (!grads[i].defined()) {
        own.emplace_back();
      } else if (rows < 0) {
        own.push_back(raw::select(grads[i], 0, static_cast<std::int64_t>(m)));
      } else {
        own.push_back(raw::narrow(grads[i], 0, begin, rows));
      }
      begin += std::max<std::int64_t>(rows, 0);
    }
  }
  run([](Kind kind) { return kind != Kind::forward; });
  TensorList whole;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    TensorList parts;
    for (const TensorList& of_part : input_grads_) parts.push_back(of_part[i]);
    if (std::ranges::none_of(parts, &Tensor::defined)) {
      whole.emplace_back();
      continue;
    }
    for (std::size_t m = 0; m < parts.size(); ++m) {  // a micro-batch may not have used it
      if (parts[m].defined()) continue;
      Shape shape = inputs_[i].shape();
      if (!shape.empty()) shape[0] = sizes_[m];
      parts[m] = zeros(shape, {inputs_[i].dtype(), state_->device(0)});
    }
    whole.push_back(
        raw::to(inputs_[i].dim() == 0 ? sum_of(parts) : raw::cat(parts, 0), inputs_[i].device()));
  }
  return whole;
}

std::int64_t Pipeline::Batch::first_row(int micro_batch) const {
  return std::accumulate(sizes_.begin(), sizes_.begin() + micro_batch, std::int64_t{0});
}

std::string Pipeline::Batch::place_of(const Action& action) const {
  return weft::detail::concat(name_of(action.kind), " of micro-batch ", action.micro_batch,
                              " in stage ", action.stage, " on ", state_->device(action.stage));
}

// --- Who runs what -------------------------------------------------------------------------------

void Pipeline::Batch::run(Wanted wanted) {
  stopped_ = false;
  ThreadState state = thread_state();
  state.grad_enabled = records_;
  // Of the forward, also where a backward calls this.
  state.autocast = autocast_;
  state.memory_owner = MemoryOwner::activations;
  const ThreadStateGuard guard(state);
  if (state_->links) {
    run_among_ranks(wanted);
  } else {
    run_on_workers(wanted);
  }
}

void Pipeline::Batch::run_on_workers(Wanted wanted) {
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
    stop();  // those that run would wait for the others
    throw;
  }
  jobs.wait();
  note(timed);
}

// This rank's list, on this thread. What it receives is told by the sends of the others' lists.
void Pipeline::Batch::run_among_ranks(Wanted wanted) {
  const auto& lists = plan_->schedule.devices;
  const auto own = static_cast<std::size_t>(state_->rank);
  StageLinks::Sends sends;
  for (std::size_t list = 0; list < lists.size(); ++list) {
    for (const Action& action : lists[list]) {
      const bool is_send =
          action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
      if (list == own || !is_send || !wanted(action.kind)) continue;
      if (!state_->is_here(counterpart(action).stage)) continue;
      sends[static_cast<int>(list)].push_back(action);
    }
  }
  std::vector<TimedAction> timed;
  try {
    state_->links->begin(
        sends, rows_, state_->device(lists[own][0].stage),
        [this](const Action& sent, Arrival arrival) { deliver(sent, std::move(arrival)); },
        [this](std::exception_ptr error) { fail(std::move(error)); });
    run_list(own, wanted, timed);
  } catch (...) {
    fail(std::current_exception());
  }
  try {
    state_->links->finish();
  } catch (...) {
    fail(std::current_exception());
  }
  if (error_) std::rethrow_exception(error_);
  for (TimedAction& action : timed) action.device = 0;
  note({&timed, 1});
}

void Pipeline::Batch::run_list(std::size_t list, Wanted wanted, std::vector<TimedAction>& timed) {
  const std::vector<Action>& actions = plan_->schedule.devices[list];
  timed.reserve(actions.size());
  for (const Action& action : actions) {
    // Within one process the next stage is handed what it needs by the action that makes it.
    const bool skipped = is_communication(action.kind) && !state_->links;
    if (skipped || !wanted(action.kind)) continue;
    if (!wait_for(action)) return;
    std::unique_lock turn(turns_[state_->device(action.stage)], std::try_to_lock);
    if (!turn) {
      const WaitScope waiting;  // whoever has the turn may need this device's worker
      turn.lock();
    }
    const bool communicates = is_communication(action.kind);
    double begin = 0;
    try {
      within([&] { return place_of(action); },
             [&] {
               take_arrival(action);
               // The other ranks' receives wait for what this one computes.
               std::optional<BusyScope> busy;
               if (state_->links && !communicates) busy.emplace(name_of(action.kind));
               begin = seconds_now();
               perform(action);
             });
    } catch (...) {
      stop();
      throw;
    }
    if (communicates) continue;
    timed.push_back({action, static_cast<int>(list), begin, seconds_now()});
    done(action);
  }
}

void Pipeline::Batch::note(std::span<const std::vector<TimedAction>> timed) {
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

bool Pipeline::Batch::ready(const Action& action) {
  const int s = action.stage, m = action.micro_batch;
  switch (action.kind) {
    case Kind::forward:
      if (s == 0) return true;
      return state_->is_here(s - 1) ? cell(s - 1, m).forward_done : cell(s, m).activations_there;
    case Kind::backward:
    case Kind::backward_input:
      if (is_last(s)) return true;
      return state_->is_here(s + 1) ? cell(s + 1, m).backward_done : cell(s, m).gradients_there;
    default: return true;  // behind actions of its own list
  }
}

bool Pipeline::Batch::wait_for(const Action& action) {
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

void Pipeline::Batch::done(const Action& action) {
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

void Pipeline::Batch::deliver(const Action& sent, Arrival arrival) {
  {
    const std::lock_guard lock(mutex_);
    Cell& to = cell(counterpart(sent));
    if (sent.kind == Kind::send_activation) {
      to.activations = std::move(arrival);
      to.activations_there = true;
    } else {
      to.gradients = std::move(arrival);
      to.gradients_there = true;
    }
  }
  changed_.notify_all();
}

// What another rank has sent for it; the values may still be on their way.
void Pipeline::Batch::take_arrival(const Action& action) {
  Cell& own = cell(action);
  const bool forward = action.kind == Kind::forward;
  if (!forward && action.kind != Kind::backward && action.kind != Kind::backward_input) return;
  std::optional<Arrival>& arrival = forward ? own.activations : own.gradients;
  if (!arrival) return;
  const Span span(kOp, "wait", state_->device(action.stage));
  (forward ? own.inputs : own.grads) = arrival->wait();
  arrival.reset();
}

void Pipeline::Batch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

void Pipeline::Batch::fail(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  stop();
  state_->links->abort();
}

// --- What they do --------------------------------------------------------------------------------

void Pipeline::Batch::perform(const Action& action) {
  const int s = action.stage;
  Cell& own = cell(action);
  // Begun by the threads of the links.
  if (action.kind == Kind::receive_activation || action.kind == Kind::receive_gradient) return;
  Span span(kOp, name_of(action.kind), state_->device(s));
  span.set_arg("stage", s);
  span.set_arg("micro_batch", action.micro_batch);
  switch (action.kind) {
    case Kind::forward: return forward_of(action);
    case Kind::recompute: return recompute_of(action);
    case Kind::backward: return backward_of(action);
    case Kind::backward_input: {
      const autograd::DeferredGradients::Scope putting_off(own.of_weights, weights_[s]);
      return backward_of(action);
    }
    case Kind::send_activation:
      return state_->links->send(state_->owner(s + 1), action, rows_,
                                 std::exchange(own.next_inputs, {}));
    case Kind::send_gradient:
      return state_->links->send(state_->owner(s - 1), action, rows_,
                                 std::exchange(own.input_grads, {}));
    default: return own.of_weights.run();
  }
}

void Pipeline::Batch::forward_of(const Action& action) {
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
    const bool here = state_->is_here(s + 1);
    (here ? cell(s + 1, m).inputs : own.next_inputs) = handed_over(
        own.outputs, state_->device(here ? s + 1 : s), own.recomputed && needs_grad_[s]);
  } else if (loss_) {
    losses_[m] = raw::alias(own.outputs[0]);
  }
  const bool gathered = is_last(s) && !loss_;
  if ((!records_ || own.recomputed) && !gathered) own.outputs.clear();
  if (!records_) own.inputs.clear();
}

void Pipeline::Batch::recompute_of(const Action& action) {
  Cell& own = cell(action);
  if (!own.recomputed) return;
  for (std::size_t i = 0; i < own.inputs.size(); ++i) {
    const Tensor& x = own.inputs[i];
    WEFT_CHECK(!x.defined() || x.storage()->version() == own.versions[i], InvalidArgument,
               "pipeline", "input ", i, " ", x.shape(), " of stage ", action.stage,
               " was changed in place, so its forward cannot be run again; let the stage work on "
               "a clone() of it, or choose checkpoint never");
  }
  GeneratorSet generators(own.generators);
  const Scoped drawing(&ThreadState::generators, &generators);
  const Scoped recomputing(&ThreadState::recomputing, true);
  run_stage(action);
}

// The outputs from the inputs or, in place of the last stage's outputs, their loss.
void Pipeline::Batch::run_stage(const Action& action) {
  const int s = action.stage, m = action.micro_batch;
  Cell& own = cell(action);
  own.outputs = stages_[s](own.inputs);
  if (!is_last(s) || !loss_) return;
  Tensor loss =
      (*loss_)(own.outputs, part_of(targets_, first_row(m), sizes_[m], state_->device(s)));
  WEFT_CHECK(loss.numel() == 1, Shape, "pipeline", "the loss is ", loss.shape(),
             ", expected one element");
  if (state_->options.mean_loss && sizes_.size() > 1) {
    loss = loss * (static_cast<double>(sizes_[m]) / static_cast<double>(rows_));
  }
  own.outputs = {loss};
  own.grads = {Tensor()};
}

void Pipeline::Batch::backward_of(const Action& action) {
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
  if (!outputs.empty()) autograd::backward(outputs, grads);
  TensorList of_inputs;
  for (const Tensor& x : own.inputs) of_inputs.push_back(x.defined() ? x.grad() : Tensor());
  own.inputs.clear();
  own.outputs.clear();
  own.grads.clear();
  if (s == 0) {
    const std::lock_guard lock(mutex_);
    input_grads_.resize(sizes_.size());
    input_grads_[m] = std::move(of_inputs);
    return;
  }
  if (!state_->is_here(s - 1)) {
    own.input_grads = std::move(of_inputs);
    return;
  }
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  for (Tensor& grad : of_inputs) {
    if (grad.defined()) grad = raw::to(grad, state_->device(s - 1));
  }
  cell(s - 1, m).grads = std::move(of_inputs);
}

}  // namespace weft::parallel
