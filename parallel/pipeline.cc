#include "weft/parallel/pipeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/deferred.h"
#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/core/error.h"
#include "weft/core/rng.h"
#include "weft/core/runtime.h"
#include "weft/core/thread_state.h"
#include "weft/core/trace.h"
#include "weft/core/worker.h"
#include "weft/nn/summary.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;
using Kind = Action::Kind;

/// A schedule that has been checked.
struct Pipeline::Plan {
  explicit Plan(Schedule s) : schedule(std::move(s)), checked(check(schedule)) {
    recomputed.resize(static_cast<std::size_t>(schedule.stages));
    for (auto& row : recomputed) row.resize(static_cast<std::size_t>(schedule.micro_batches));
    for (const std::vector<Action>& actions : schedule.devices) {
      for (const Action& action : actions) {
        if (action.kind == Kind::recompute) recomputed[action.stage][action.micro_batch] = true;
      }
    }
  }

  Schedule schedule;
  ScheduleCheck checked;
  std::vector<std::vector<bool>> recomputed;  // by stage and micro-batch
};

namespace {

bool is_communication(Kind kind) {
  return kind == Kind::send_activation || kind == Kind::receive_activation ||
         kind == Kind::send_gradient || kind == Kind::receive_gradient;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::recompute: return "recompute";
    case Kind::backward_input: return "backward_input";
    case Kind::backward_weight: return "backward_weight";
    default: return "backward";
  }
}

struct DeviceOrder {
  bool operator()(Device a, Device b) const {
    return std::pair(a.type, a.index) < std::pair(b.type, b.index);
  }
};

// What one stage holds of one micro-batch, between its forward and its backward.
struct Cell {
  TensorList inputs;                    // leaves on the stage's device
  TensorList outputs;                   // with the tape back to the inputs
  TensorList grads;                     // dL/doutputs
  bool recomputed = false;              // the outputs are computed again before the backward
  std::vector<std::uint32_t> versions;  // of the inputs' memory before the forward, then
  GeneratorSnapshot generators;         // with what the forward drew
  autograd::DeferredGradients of_weights;
  std::atomic<bool> forward_done = false, backward_done = false;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Which tensors of the batch are cut, by rows, is told by the first that has dimensions.
std::int64_t rows_of(const char* what, std::span<const Tensor> tensors,
                     std::optional<std::int64_t> expected) {
  for (const Tensor& x : tensors) {
    if (!x.defined() || x.dim() == 0) continue;
    WEFT_CHECK(!expected || *expected == x.shape(0), Shape, "pipeline", what, ' ', x.shape(),
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

}  // namespace

struct Pipeline::State {
  std::vector<nn::AnyModule> stages;
  PipelineOptions options;
  std::vector<Device> devices;                       // of the stages
  std::map<int, std::unique_ptr<const Plan>> plans;  // by number of micro-batches
  Timeline timeline;
  std::vector<std::pair<Shape, DType>> tried;  // of inputs, one row each

  const Plan& plan(int micro_batches);
  /// Sends one row through the stages, to no effect, when the inputs are of another form than the
  /// last time: what does not fit is found before anything runs.
  void try_one_row(std::span<const Tensor> inputs);
};

/// A batch on its way through the stages and back.
class Pipeline::Batch {
 public:
  Batch(std::shared_ptr<State> state, std::span<const Tensor> inputs)
      : state_(std::move(state)),
        stages_(state_->stages),
        devices_(state_->devices),
        inputs_(inputs.begin(), inputs.end()) {
    rows_ = rows_of("input", inputs, {});
    const PipelineOptions& options = state_->options;
    const int chunks = options.actions ? options.actions->micro_batches : options.chunks;
    sizes_ = part_sizes(rows_, static_cast<std::size_t>(chunks));
    plan_ = &state_->plan(static_cast<int>(sizes_.size()));
    mean_loss_ = options.mean_loss;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      std::vector<std::unique_ptr<Cell>>& row = cells_.emplace_back();
      for (std::size_t m = 0; m < sizes_.size(); ++m) row.push_back(std::make_unique<Cell>());
    }
    losses_.resize(sizes_.size());
    for (const Device device : devices_) turns_[device];
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

  /// Both ways, with the loss of each micro-batch.
  Tensor step(std::span<const Tensor> targets, const Loss& loss) {
    rows_of("target", targets, rows_);
    targets_.assign(targets.begin(), targets.end());
    loss_ = &loss;
    run([](Kind) { return true; });
    Tensor total = raw::clone(losses_[0]);
    for (std::size_t m = 1; m < losses_.size(); ++m) raw::add_scaled_(total, 1, losses_[m]);
    return total;
  }

  TensorList forward() {
    run([](Kind kind) { return kind == Kind::forward; });
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

  /// From dL/doutputs of the whole batch to dL/dinputs.
  TensorList backward(std::span<const Tensor> grads) {
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
        parts[m] = zeros(shape, {inputs_[i].dtype(), devices_[0]});
      }
      whole.push_back(
          raw::to(inputs_[i].dim() == 0 ? sum_of(parts) : raw::cat(parts, 0), inputs_[i].device()));
    }
    return whole;
  }

 private:
  static Tensor sum_of(const TensorList& parts) {
    Tensor sum = raw::clone(parts[0]);
    for (std::size_t i = 1; i < parts.size(); ++i) raw::add_scaled_(sum, 1, parts[i]);
    return sum;
  }

  Cell& cell(const Action& action) { return *cells_[action.stage][action.micro_batch]; }
  bool is_last(const Action& action) const { return action.stage + 1 == plan_->schedule.stages; }

  /// The actions for which `wanted`, on the devices' workers.
  template <class Wanted>
  void run(const Wanted& wanted) {
    stopped_ = false;
    ThreadState state = thread_state();
    state.grad_enabled = records_;
    // Of the forward, also where a backward calls this.
    state.autocast = autocast_;
    state.memory_owner = MemoryOwner::activations;
    const ThreadStateGuard guard(state);
    const auto& lists = plan_->schedule.devices;
    std::vector<std::vector<TimedAction>> timed(lists.size());
    JobGroup jobs;
    const auto submit = [&](std::size_t list) {
      timed[list].reserve(lists[list].size());
      jobs.submit(devices_[static_cast<std::size_t>(lists[list][0].stage)], [&, list, wanted] {
        for (const Action& action : lists[list]) {
          if (is_communication(action.kind) || !wanted(action.kind)) continue;
          if (!wait_for(action)) return;
          const std::lock_guard turn(turns_[devices_[action.stage]]);
          const double begin = seconds_now();
          try {
            within([&] { return place_of(action); }, [&] { perform(action); });
          } catch (...) {
            stop();
            throw;
          }
          timed[list].push_back({action, static_cast<int>(list), begin, seconds_now()});
          done(action);
        }
      });
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

  void note(const std::vector<std::vector<TimedAction>>& timed) {
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

  std::string place_of(const Action& action) const {
    return weft::detail::concat(name_of(action.kind), " of micro-batch ", action.micro_batch,
                                " in stage ", action.stage, " on ", devices_[action.stage]);
  }

  // --- Who waits for whom

  bool ready(const Action& action) {
    const int s = action.stage, m = action.micro_batch;
    if (action.kind == Kind::forward) return s == 0 || cells_[s - 1][m]->forward_done;
    if (action.kind == Kind::backward || action.kind == Kind::backward_input) {
      return is_last(action) || cells_[s + 1][m]->backward_done;
    }
    return true;  // behind actions of its own list
  }

  /// False when another worker failed.
  bool wait_for(const Action& action) {
    const auto over = [&] { return stopped_ || ready(action); };
    if (!over()) {
      const Span span("pipeline", "wait", devices_[action.stage]);
      const WaitScope waiting;
      if (!spin_until(over)) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, over);
      }
    }
    return !stopped_;
  }

  void done(const Action& action) {
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

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }

  // --- What they do

  void perform(const Action& action) {
    Span span("pipeline", name_of(action.kind), devices_[action.stage]);
    span.set_arg("stage", action.stage);
    span.set_arg("micro_batch", action.micro_batch);
    switch (action.kind) {
      case Kind::forward: return forward_of(action);
      case Kind::recompute: return recompute_of(action);
      case Kind::backward: return backward_of(action);
      case Kind::backward_input: {
        const autograd::DeferredGradients::Scope putting_off(cell(action).of_weights,
                                                             weights_[action.stage]);
        return backward_of(action);
      }
      default: return cell(action).of_weights.run();
    }
  }

  std::int64_t first_row(int micro_batch) const {
    return std::accumulate(sizes_.begin(), sizes_.begin() + micro_batch, std::int64_t{0});
  }

  void forward_of(const Action& action) {
    const int s = action.stage, m = action.micro_batch;
    Cell& own = cell(action);
    if (s == 0) {
      own.inputs = part_of(inputs_, first_row(m), sizes_[m], devices_[0]);
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
    if (!is_last(action)) {
      cells_[s + 1][m]->inputs =
          handed_over(own.outputs, devices_[s + 1], own.recomputed && needs_grad_[s]);
    } else if (loss_) {
      losses_[m] = raw::alias(own.outputs[0]);
    }
    const bool gathered = is_last(action) && !loss_;
    if ((!records_ || own.recomputed) && !gathered) own.outputs.clear();
    if (!records_) own.inputs.clear();
  }

  void recompute_of(const Action& action) {
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
  void run_stage(const Action& action) {
    const int s = action.stage, m = action.micro_batch;
    Cell& own = cell(action);
    own.outputs = stages_[s](own.inputs);
    if (!is_last(action) || !loss_) return;
    Tensor loss = (*loss_)(own.outputs, part_of(targets_, first_row(m), sizes_[m], devices_[s]));
    WEFT_CHECK(loss.numel() == 1, Shape, "pipeline", "the loss is ", loss.shape(),
               ", expected one element");
    if (mean_loss_ && sizes_.size() > 1) {
      loss = loss * (static_cast<double>(sizes_[m]) / static_cast<double>(rows_));
    }
    own.outputs = {loss};
    own.grads = {Tensor()};
  }

  void backward_of(const Action& action) {
    const int s = action.stage, m = action.micro_batch;
    Cell& own = cell(action);
    TensorList outputs, grads;
    for (std::size_t i = 0; i < own.outputs.size(); ++i) {
      const Tensor& y = own.outputs[i];
      const bool is_loss = loss_ && is_last(action);
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
    const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
    for (Tensor& grad : of_inputs) {
      if (grad.defined()) grad = raw::to(grad, devices_[s - 1]);
    }
    cells_[s - 1][m]->grads = std::move(of_inputs);
  }

  const std::shared_ptr<State> state_;
  const std::vector<nn::AnyModule>& stages_;
  const std::vector<Device>& devices_;
  const Plan* plan_ = nullptr;
  const bool records_ = thread_state().grad_enabled;
  const ThreadState::AutocastTypes autocast_ = thread_state().autocast;
  const TensorList inputs_;
  TensorList targets_;
  const Loss* loss_ = nullptr;
  bool mean_loss_ = true;
  bool used_ = false;
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> sizes_;                           // rows of each micro-batch
  std::vector<bool> needs_grad_;                              // by stage: whether its outputs do
  std::vector<autograd::DeferredGradients::Leaves> weights_;  // by stage
  std::vector<std::vector<std::int64_t>> output_rows_;  // by output and micro-batch; -1: a scalar
  std::vector<std::vector<std::unique_ptr<Cell>>> cells_;  // by stage and micro-batch
  TensorList losses_;                                      // by micro-batch
  std::vector<TensorList> input_grads_;                    // by micro-batch

  // Lists of one device take turns: its generator and its memory's account are for one at a time.
  std::map<Device, std::mutex, DeviceOrder> turns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopped_ = false;
};

/// A forward on the tape, whose rule runs the backwards of the schedule.
struct Pipeline::Apply : autograd::Function<Apply> {
  static TensorList forward(autograd::Context& ctx, const TensorList& /*inputs*/,
                            const Tensor& /*records*/, const std::shared_ptr<Batch>& batch) {
    ctx.data = batch;
    return batch->forward();
  }
  static TensorList backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    TensorList of_inputs = std::any_cast<const std::shared_ptr<Batch>&>(ctx.data)->backward(grads);
    of_inputs.emplace_back();
    return of_inputs;
  }
};

Pipeline::Pipeline(std::vector<nn::AnyModule> stages, PipelineOptions options)
    : state_(std::make_shared<State>()) {
  State& state = *state_;
  state.stages = std::move(stages);
  state.options = std::move(options);
  WEFT_CHECK(!state.stages.empty(), InvalidArgument, "pipeline", "needs at least one stage");
  WEFT_CHECK(state.options.chunks >= 1, InvalidArgument, "pipeline", "chunks: got ",
             state.options.chunks, ", expected at least 1");
  const Plan& plan = state.plan(state.options.actions ? state.options.actions->micro_batches
                                                      : state.options.chunks);
  std::vector<Device>& lists = state.options.devices;
  if (lists.empty()) {
    const std::vector<Tensor> parameters = state.stages[0].parameters();
    const DeviceType type = parameters.empty() ? DeviceType::cpu : parameters[0].device().type;
    for (std::size_t i = 0; i < plan.schedule.devices.size(); ++i) {
      lists.emplace_back(type, static_cast<int>(i));
    }
  }
  WEFT_CHECK(lists.size() == plan.schedule.devices.size(), Device, "pipeline", "got ", lists.size(),
             " devices, the schedule is for ", plan.schedule.devices.size());
  for (const int list : plan.checked.device_of_stage) {
    state.devices.push_back(lists[static_cast<std::size_t>(list)]);
  }
  for (const Device device : state.devices) runtime(device);  // throws: there is no such device
  for (std::size_t s = 0; s < state.stages.size(); ++s) state.stages[s].to(state.devices[s]);
}

const Pipeline::Plan& Pipeline::State::plan(int micro_batches) {
  std::unique_ptr<const Plan>& made = plans[micro_batches];
  if (made) return *made;
  const int count = static_cast<int>(stages.size());
  if (options.actions) {
    const Schedule& given = *options.actions;
    WEFT_CHECK(given.stages == count, InvalidArgument, "pipeline", "the schedule ", given.name,
               " is for ", given.stages, " stages, got ", count);
    WEFT_CHECK(given.micro_batches == micro_batches, InvalidArgument, "pipeline", "the schedule ",
               given.name, " is for ", given.micro_batches,
               " micro-batches, this batch has rows for ", micro_batches);
    made = std::make_unique<Plan>(given);
  } else {
    const bool interleaved = options.schedule == "interleaved";
    made = std::make_unique<Plan>(
        make_schedule(options.schedule, count, micro_batches, options.checkpoint,
                      interleaved ? static_cast<int>(options.devices.size()) : 0));
  }
  return *made;
}

void Pipeline::State::try_one_row(std::span<const Tensor> inputs) {
  std::vector<std::pair<Shape, DType>> forms;
  for (const Tensor& x : inputs) {
    Shape shape = x.defined() ? x.shape() : Shape();
    if (!shape.empty() && std::exchange(shape[0], 1) == 0) return;  // there is none
    forms.emplace_back(shape, x.defined() ? x.dtype() : DType::f32);
  }
  if (forms == tried) return;
  TensorList x = part_of(inputs, 0, 1, devices[0]);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto place = [&] {
      return weft::detail::concat("stage ", s, " on ", devices[s], ", tried with one row",
                                  s > 0 ? " of what the stage before it gave" : "");
    };
    within(place, [&] {
      const nn::detail::SummaryScope without_effect(stages[s]);
      for (Tensor& each : x) {
        if (each.defined()) each = raw::to(each, devices[s]);
      }
      x = stages[s](x);
    });
  }
  tried = std::move(forms);
}

bool Pipeline::is_training() const { return state_->stages[0].is_training(); }
void Pipeline::train(bool training) {
  for (nn::AnyModule& stage : state_->stages) stage.train(training);
}
std::span<const nn::AnyModule> Pipeline::stages() const { return state_->stages; }
std::span<const Device> Pipeline::devices() const { return state_->devices; }
const Schedule& Pipeline::schedule(int micro_batches) const {
  return state_->plan(micro_batches).schedule;
}
const Timeline& Pipeline::timeline() const { return state_->timeline; }

Tensor Pipeline::step(std::span<const Tensor> inputs, std::span<const Tensor> targets,
                      const Loss& loss) {
  WEFT_CHECK(loss, InvalidArgument, "pipeline", "the loss is empty");
  WEFT_CHECK(thread_state().grad_enabled, InvalidArgument, "pipeline",
             "step() computes gradients, which are off here; call the pipeline itself");
  state_->try_one_row(inputs);
  const Span span("pipeline", "step");
  return Batch(state_, inputs).step(targets, loss);
}

TensorList Pipeline::operator()(std::span<const Tensor> inputs) {
  state_->try_one_row(inputs);
  const auto batch = std::make_shared<Batch>(state_, inputs);
  if (!thread_state().grad_enabled) return batch->forward();
  // Parameters inside may need gradients where no input does.
  const Tensor records = zeros({0}, {DType::f32, devices().back()}).set_requires_grad();
  return Apply::apply(TensorList(inputs.begin(), inputs.end()), records, batch);
}

Tensor Pipeline::operator()(const Tensor& x) {
  TensorList outputs = (*this)({&x, 1});
  WEFT_CHECK(outputs.size() == 1, InvalidArgument, "pipeline", "the last stage gave ",
             outputs.size(), " tensors, expected one: call it with a list");
  return std::move(outputs[0]);
}

}  // namespace weft::parallel
