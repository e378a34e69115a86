#include "weft/parallel/pipeline.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/summary.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/named_state.h"
#include "weft/parallel/pipeline_batch.h"
#include "weft/parallel/same_model.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;
using Kind = Action::Kind;

namespace {

constexpr const char* kOp = "pipeline";

TensorList buffers_of(const nn::AnyModule& stage) {
  TensorList list;
  for (const auto& [name, x] : stage.named_buffers()) list.push_back(x);
  return list;
}

bool sends(const Schedule& schedule) {
  return std::ranges::any_of(schedule.devices, [](const std::vector<Action>& list) {
    return std::ranges::any_of(list, is_communication, &Action::kind);
  });
}

}  // namespace

Pipeline::Plan::Plan(Schedule s) : schedule(std::move(s)), checked(check(schedule)) {
  recomputed.resize(static_cast<std::size_t>(schedule.stages));
  for (auto& row : recomputed) row.resize(static_cast<std::size_t>(schedule.micro_batches));
  for (const std::vector<Action>& actions : schedule.devices) {
    for (const Action& action : actions) {
      if (action.kind == Kind::recompute) recomputed[action.stage][action.micro_batch] = true;
    }
  }
}

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
  WEFT_CHECK(!state.stages.empty(), InvalidArgument, kOp, "needs at least one stage");
  WEFT_CHECK(state.options.chunks >= 1, InvalidArgument, kOp, "chunks: got ", state.options.chunks,
             ", expected at least 1");
  if (!state.options.group) {
    state.place_stages();
  } else {
    state.rank = state.options.group->rank();
    std::exception_ptr mistake;
    try {
      state.place_stages();
    } catch (...) {  // the other ranks want to know, too
      mistake = std::current_exception();
    }
    state.connect(mistake);
  }
  if (state.options.replicas) state.meet_replicas();
}

void Pipeline::State::place_stages() {
  const Plan& first = plan(options.actions ? options.actions->micro_batches : options.chunks);
  const auto lists = static_cast<int>(first.schedule.devices.size());
  owners = first.checked.device_of_stage;
  if (options.group) {
    const int ranks = options.group->size();
    WEFT_CHECK(ranks == lists, InvalidArgument, kOp, "got a group of ", ranks,
               " ranks, the schedule is for ", lists, ": one for each of its lists of actions");
    WEFT_CHECK(options.devices.size() <= 1, Device, kOp, "got ", options.devices.size(),
               " devices; with a group each rank gives its own one, or none");
    check_stages();
    Device here;
    for (int s = 0; s < std::ssize(stages); ++s) {  // its first stage counts most
      const auto parameters = stages[static_cast<std::size_t>(s)].parameters();
      if (parameters.empty()) continue;
      here = parameters[0].device();
      if (is_here(s)) break;
    }
    if (!options.devices.empty()) here = options.devices[0];
    devices.assign(stages.size(), here);
  } else {
    if (options.devices.empty()) {
      const std::vector<Tensor> parameters = stages[0].parameters();
      const DeviceType type = parameters.empty() ? DeviceType::cpu : parameters[0].device().type;
      for (int i = 0; i < lists; ++i) options.devices.emplace_back(type, i);
    }
    WEFT_CHECK(std::ssize(options.devices) == lists, Device, kOp, "got ", options.devices.size(),
               " devices, the schedule is for ", lists);
    for (const int list : owners) {
      devices.push_back(options.devices[static_cast<std::size_t>(list)]);
    }
  }
  for (const Device device : devices) runtime(device);  // throws: there is no such device
  for (int s = 0; s < std::ssize(stages); ++s) {
    if (is_here(s)) stages[static_cast<std::size_t>(s)].to(device(s));
  }
}

// A parameter of two stages would get a part of its gradient on each of their ranks.
void Pipeline::State::check_stages() const {
  std::map<const TensorImpl*, int> stage_of;
  for (int s = 0; s < std::ssize(stages); ++s) {
    for (const auto& [name, p] : stages[static_cast<std::size_t>(s)].named_parameters()) {
      const auto [first, is_new] = stage_of.emplace(p.impl(), s);
      WEFT_CHECK(is_new || owner(first->second) == owner(s), InvalidArgument, kOp, "parameter ",
                 name, " of stage ", s, " is one of stage ", first->second,
                 ", too, which another rank runs; put both on one rank, or give each its own");
    }
  }
}

void Pipeline::State::connect(const std::exception_ptr& mistake) {
  comm::ProcessGroup& group = *options.group;
  std::string text;
  try {
    if (mistake) std::rethrow_exception(mistake);
  } catch (const std::exception& error) {
    text = error.what();
  }
  const std::vector<std::string> mistakes = group.all_gather_object(text);
  if (mistake) std::rethrow_exception(mistake);
  for (std::size_t r = 0; r < mistakes.size(); ++r) {
    WEFT_CHECK(mistakes[r].empty(), InvalidArgument, kOp, "rank ", r, ": ", mistakes[r]);
  }
  const Schedule& schedule = plans.begin()->second->schedule;
  text = weft::detail::concat("on ", devices[0].is_cpu() ? "the CPU" : "a GPU", ", the loss is a ",
                              options.mean_loss ? "mean" : "sum", '\n', to_string(schedule));
  for (const nn::AnyModule& stage : stages) text += lines_of_model(stage);
  check_same_lines(group, kOp, text, "runs another pipeline",
                   "Give the same stages, chunks, checkpoint mode and schedule on every rank");
  std::set<StageLinks::Route> routes;
  for (int s = 0; s + 1 < schedule.stages; ++s) {
    if (owner(s) == owner(s + 1)) continue;
    routes.emplace(owner(s), owner(s + 1));
    routes.emplace(owner(s + 1), owner(s));
  }
  links = std::make_unique<StageLinks>(group, routes);
}

void Pipeline::State::meet_replicas() {
  std::map<const TensorImpl*, int> stage_of;
  for (int s = 0; s < std::ssize(stages); ++s) {
    if (!is_here(s)) continue;
    const nn::AnyModule& stage = stages[static_cast<std::size_t>(s)];
    // Each stage's gradients are averaged by themselves.
    for (const auto& [name, p] : stage.named_parameters()) {
      const auto [first, is_new] = stage_of.emplace(p.impl(), s);
      WEFT_CHECK(is_new || !p.requires_grad(), InvalidArgument, kOp, "parameter ", name,
                 " of stage ", s, " is one of stage ", first->second,
                 ", too, which replicas cannot average; put both uses into one stage");
    }
    if (std::ranges::any_of(stage.parameters(), &Tensor::requires_grad)) {
      reducers.push_back(std::make_unique<Reducer>(
          stage, options.replicas, DistributedDataParallelOptions(), Averages::on_call));
      continue;
    }
    check_same_model(*options.replicas, stage, "");
    broadcast_coalesced(*options.replicas, stage.parameters(), 0);
    broadcast_coalesced(*options.replicas, buffers_of(stage), 0);
    untrained.push_back(stage);
  }
}

// In training, as DistributedDataParallel does it before each forward.
void Pipeline::State::broadcast_buffers() {
  for (const auto& reducer : reducers) reducer->before_forward();
  for (const nn::AnyModule& stage : untrained) {
    for (const auto& [name, p] : stage.named_parameters()) {
      WEFT_CHECK(
          !p.requires_grad(), InvalidArgument, kOp, "parameter ", name,
          " requires a gradient now, and nothing in its stage did when the pipeline was made, "
          "so it would not be averaged: make the pipeline again");
    }
    if (stage.is_training()) broadcast_coalesced(*options.replicas, buffers_of(stage), 0);
  }
}

void Pipeline::State::abort() noexcept {
  if (links) links->abort();
  if (options.group) options.group->abort();
  if (options.replicas) options.replicas->abort();
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
    made =
        std::make_unique<Plan>(sends(given) || !options.group ? given : with_communication(given));
  } else {
    const bool interleaved = options.schedule == "interleaved";
    const int lists = options.group ? options.group->size() : std::ssize(options.devices);
    const Schedule schedule = make_schedule(options.schedule, count, micro_batches,
                                            options.checkpoint, interleaved ? lists : 0);
    made = std::make_unique<Plan>(options.group ? with_communication(schedule) : schedule);
  }
  return *made;
}

std::vector<std::int64_t> Pipeline::State::micro_batches(std::int64_t rows) const {
  const int count = options.actions ? options.actions->micro_batches : options.chunks;
  return part_sizes(rows, static_cast<std::size_t>(count));
}

void Pipeline::State::try_stages(std::span<const Tensor> inputs, std::int64_t rows) {
  if (rows == 0) return;
  const std::int64_t count = micro_batches(rows)[0];
  if (options.group) {
    if (std::exchange(tried_together, true)) return;
    return try_stages(is_here(0) ? part_of(inputs, 0, count, device(0)) : TensorList(), count,
                      rows);
  }
  std::vector<std::pair<Shape, DType>> forms;
  for (const Tensor& x : inputs) {
    Shape shape = x.defined() ? x.shape() : Shape();
    if (!shape.empty()) shape[0] = 1;
    forms.emplace_back(shape, x.defined() ? x.dtype() : DType::f32);
  }
  if (forms == tried) return;
  try_stages(part_of(inputs, 0, count, device(0)), count, rows);
  tried = std::move(forms);
}

void Pipeline::State::try_stages(TensorList x, std::int64_t rows, std::int64_t whole) {
  constexpr int kTrial = -1;  // in place of a micro-batch
  for (int s = 0; s < std::ssize(stages); ++s) {
    if (!is_here(s)) continue;
    const nn::AnyModule& stage = stages[static_cast<std::size_t>(s)];
    const auto place = [&] {
      return weft::detail::concat("stage ", s, " on ", device(s), ", tried with ", rows,
                                  rows == 1 ? " row" : " rows",
                                  s > 0 ? " of what the stage before it gave" : "");
    };
    if (s > 0 && !is_here(s - 1)) {
      x = links->receive(owner(s - 1), {Kind::send_activation, s - 1, kTrial}, whole, device(s))
              .wait();
    }
    within(place, [&] {
      const nn::detail::SummaryScope without_effect(stage);
      for (Tensor& each : x) {
        if (each.defined()) each = raw::to(each, device(s));
      }
      x = stage(x);
    });
    if (s + 1 < std::ssize(stages) && !is_here(s + 1)) {
      links->send(owner(s + 1), {Kind::send_activation, s, kTrial}, whole, x);
    }
  }
  if (!links) return;
  // And back, so that all connections are made now, and nobody begins before all stages fit.
  for (int s = static_cast<int>(std::ssize(stages)) - 1; s >= 0; --s) {
    if (!is_here(s)) continue;
    if (s + 1 < std::ssize(stages) && !is_here(s + 1)) {
      links->receive(owner(s + 1), {Kind::send_gradient, s + 1, kTrial}, whole, device(s)).wait();
    }
    if (s == 0 || is_here(s - 1)) continue;
    const Tensor answer = zeros({1}, {DType::f32, device(s)});
    links->send(owner(s - 1), {Kind::send_gradient, s, kTrial}, whole, {&answer, 1});
  }
  links->finish();
}

Tensor Pipeline::clip_grad_norm(double max_norm) {
  WEFT_CHECK(max_norm >= 0, InvalidArgument, kOp, "max_norm must not be negative, got ", max_norm);
  TensorList here;
  std::set<const TensorImpl*> seen;
  for (std::size_t s = 0; s < state_->stages.size(); ++s) {
    if (!is_here(s)) continue;
    for (const Tensor& p : state_->stages[s].parameters()) {
      if (seen.insert(p.impl()).second) here.push_back(p);
    }
  }
  if (!state_->options.group) return optim::clip_grad_norm(here, max_norm);
  return state_->or_abort([&] {
    const Tensor own = optim::total_grad_norm(here);
    const Tensor squares = raw::to(raw::mul(own, own), devices()[0]);
    state_->options.group->all_reduce(squares).wait();
    const Tensor norm = raw::sqrt(squares);
    optim::clip_grads_with_norm(here, max_norm, norm);
    return norm;
  });
}

bool Pipeline::is_training() const { return state_->stages[0].is_training(); }
void Pipeline::train(bool training) {
  for (nn::AnyModule& stage : state_->stages) stage.train(training);
}
std::span<const nn::AnyModule> Pipeline::stages() const { return state_->stages; }
std::span<const Device> Pipeline::devices() const { return state_->devices; }
bool Pipeline::is_here(std::size_t stage) const { return state_->is_here(static_cast<int>(stage)); }
const Schedule& Pipeline::schedule(int micro_batches) const {
  return state_->plan(micro_batches).schedule;
}
const Timeline& Pipeline::timeline() const { return state_->timeline; }
comm::Traffic Pipeline::traffic() const {
  return state_->links ? state_->links->traffic() : comm::Traffic();
}

Tensor Pipeline::step(std::span<const Tensor> inputs, std::span<const Tensor> targets,
                      const Loss& loss) {
  WEFT_CHECK(loss, InvalidArgument, kOp, "the loss is empty");
  WEFT_CHECK(thread_state().grad_enabled, InvalidArgument, kOp,
             "step() computes gradients, which are off here; call the pipeline itself");
  return state_->or_abort([&] {
    const auto has_rows = [](const Tensor& x) { return x.defined() && x.dim() > 0; };
    const std::int64_t rows = std::ranges::any_of(inputs, has_rows)
                                  ? rows_of("input", inputs, {})
                                  : rows_of("target", targets, {});
    state_->try_stages(inputs, rows);
    const Span span(kOp, "step");
    state_->broadcast_buffers();
    std::deque<NoSync> adding_up;  // the micro-batches' gradients
    for (const auto& reducer : state_->reducers) adding_up.emplace_back(*reducer);
    const Tensor total = Batch(state_, inputs, rows).step(targets, loss);
    for (const auto& reducer : state_->reducers) reducer->average();
    return total;
  });
}

TensorList Pipeline::operator()(std::span<const Tensor> inputs) {
  const bool records = thread_state().grad_enabled;
  WEFT_CHECK(!records || !(state_->options.group || state_->options.replicas), Unsupported, kOp,
             "among several ranks a batch with gradients goes by step(), with its loss; without "
             "them call it in the scope of a NoGrad");
  const auto begin = [&] {
    const std::int64_t rows = rows_of("input", inputs, {});
    state_->try_stages(inputs, rows);
    return std::make_shared<Batch>(state_, inputs, rows);
  };
  if (!records) return state_->or_abort([&] { return begin()->forward(); });
  const auto batch = begin();
  // Parameters inside may need gradients where no input does.
  const Tensor leaf = zeros({0}, {DType::f32, devices().back()}).set_requires_grad();
  return Apply::apply(TensorList(inputs.begin(), inputs.end()), leaf, batch);
}

Tensor Pipeline::operator()(const Tensor& x) {
  TensorList outputs = (*this)({&x, 1});
  WEFT_CHECK(outputs.size() == 1, InvalidArgument, kOp, "the last stage gave ", outputs.size(),
             " tensors, expected one: call it with a list");
  return std::move(outputs[0]);
}

// --- What the ranks hold of a model --------------------------------------------------------------

void Pipeline::all_gather() {
  if (!state_->options.group) return;
  state_->or_abort([&] {
    for (int s = 0; s < std::ssize(state_->stages); ++s) {
      nn::AnyModule& stage = state_->stages[static_cast<std::size_t>(s)];
      const auto values =
          broadcast_named(*state_->options.group, stage.state_dict(), state_->owner(s));
      if (!state_->is_here(s)) stage.load_state_dict(values);
    }
  });
}

optim::NamedTensors Pipeline::all_gather_state(const optim::Optimizer& optimizer) const {
  const optim::NamedTensors own = optimizer.state_dict();
  if (!state_->options.group) return own;
  std::map<const TensorImpl*, int> owner_of;  // those of no stage are rank 0's
  for (std::size_t s = 0; s < state_->stages.size(); ++s) {
    for (const Tensor& p : state_->stages[s].parameters()) {
      owner_of[p.impl()] = state_->owner(static_cast<int>(s));
    }
  }
  const std::vector<Tensor> parameters = optimizer.parameters();
  const auto owner = [&](const std::string& name) {  // "state.7.exp_avg"
    constexpr std::string_view kPrefix = "state.";
    if (!name.starts_with(kPrefix)) return 0;
    const auto found = owner_of.find(parameters.at(std::stoul(name.substr(kPrefix.size()))).impl());
    return found == owner_of.end() ? 0 : found->second;
  };
  return state_->or_abort([&] {
    optim::NamedTensors whole;
    for (int rank = 0; rank < state_->options.group->size(); ++rank) {
      optim::NamedTensors of_rank;
      std::ranges::copy_if(own, std::back_inserter(of_rank),
                           [&](const auto& named) { return owner(named.first) == rank; });
      for (auto& named : broadcast_named(*state_->options.group, std::move(of_rank), rank)) {
        whole.push_back(std::move(named));
      }
    }
    return whole;
  });
}

}  // namespace weft::parallel
