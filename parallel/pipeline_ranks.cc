#include "weft/parallel/pipeline_ranks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/named_state.h"
#include "weft/parallel/pipeline_exchange.h"
#include "weft/parallel/same_model.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;
using Kind = Action::Kind;

namespace {

constexpr const char* kOp = "pipeline";

// Stages that a factory makes exist on one rank only, so they are not compared. Strides are not
// compared either: each rank moves only its own stages to its GPU, which changes those of
// convolutions' weights.
std::string lines_of_stages(const PipelineState& state) {
  if (state.factory) return "each rank makes its stages\n";
  std::string text = "each rank has all stages\n";
  for (const nn::AnyModule& stage : state.stages) text += lines_of_model(stage, false);
  return text;
}

}  // namespace

PipelineRanks::PipelineRanks(std::shared_ptr<PipelineState> state)
    : state_(std::move(state)), group_(*state_->options.group) {
  state_->own_list = group_.rank();
  std::exception_ptr mistake;  // kept until the other ranks are told, too
  try {
    const PipelineOptions& options = state_->options;
    check_replicas(group_, options.replicas.get(), kOp,
                   weft::detail::concat("makes a pipeline of ", state_->stages.size(), " stages"),
                   weft::detail::concat(options.chunks, " chunks, ", options.schedule,
                                        options.mean_loss ? ", a mean\n" : ", a sum\n",
                                        lines_of_stages(*state_)));
  } catch (...) {
    mistake = std::current_exception();
  }
  try {  // after a mistake, too: factories of other ranks may wait for this one
    place_stages();
  } catch (...) {
    if (!mistake) mistake = std::current_exception();
  }
  check_alike(mistake);
  connect();
}

void PipelineRanks::place_stages() {
  const std::vector<Device>& devices = state_->options.devices;
  const int lists = state_->find_owners(), ranks = group_.size();
  WEFT_CHECK(ranks == lists, InvalidArgument, kOp, "got a group of ", ranks,
             " ranks, the schedule is for ", lists, ": one for each of its lists of actions");
  WEFT_CHECK(devices.size() <= 1, Device, kOp, "got ", devices.size(),
             " devices; with a group each rank gives its own one, or none");
  state_->make_stages();
  check_stages();
  Device here;
  for (int s = 0; s < std::ssize(state_->stages); ++s) {  // its own first stage counts
    const auto parameters = state_->stages[static_cast<std::size_t>(s)].parameters();
    if (parameters.empty()) continue;
    here = parameters[0].device();
    if (state_->is_here(s)) break;
  }
  if (!devices.empty()) here = devices[0];
  state_->devices.assign(state_->stages.size(), here);
  state_->move_stages();
  shards_ = std::make_unique<PipelineShards>(*state_);
}

// Each rank would have only a part of the gradient of a parameter that stages on two ranks share.
void PipelineRanks::check_stages() const {
  std::map<const TensorImpl*, int> stage_of;
  for (int s = 0; s < std::ssize(state_->stages); ++s) {
    for (const auto& [name, p] : state_->stages[static_cast<std::size_t>(s)].named_parameters()) {
      const auto [first, is_new] = stage_of.emplace(p.impl(), s);
      WEFT_CHECK(is_new || state_->owner(first->second) == state_->owner(s), InvalidArgument, kOp,
                 "parameter ", name, " of stage ", s, " is one of stage ", first->second,
                 ", too, which another rank runs; put both on one rank, or give each its own");
    }
  }
}

void PipelineRanks::check_alike(const std::exception_ptr& mistake) {
  std::string text;
  try {
    if (mistake) std::rethrow_exception(mistake);
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {  // a user's factory may throw anything
  }
  if (mistake && text.empty()) text = "failed";
  const std::vector<std::string> mistakes = group_.all_gather_object(text);
  if (mistake) std::rethrow_exception(mistake);
  for (std::size_t r = 0; r < mistakes.size(); ++r) {
    WEFT_CHECK(mistakes[r].empty(), InvalidArgument, kOp, "rank ",
               group_.number_in_run(static_cast<int>(r)), ": ", mistakes[r]);
  }
  const comm::ProcessGroup* const replicas = state_->options.replicas.get();
  text = weft::detail::concat("on ", state_->device(0).is_cpu() ? "the CPU" : "a GPU",
                              ", the loss is a ", state_->options.mean_loss ? "mean" : "sum",
                              ", replicas: ", replicas ? replicas->size() : 1, '\n',
                              to_string(state_->plans.begin()->second->schedule));
  text += lines_of_stages(*state_);
  check_same_lines(
      group_, kOp, text, "runs another pipeline",
      "Give the same stages, chunks, checkpoint mode, schedule and replicas on every rank");
}

void PipelineRanks::connect() {
  std::set<StageLinks::Route> routes;
  for (int s = 0; s + 1 < std::ssize(state_->stages); ++s) {
    const int from = state_->owner(s), to = state_->owner(s + 1);
    if (from == to) continue;
    routes.emplace(from, to);
    routes.emplace(to, from);
  }
  links_ = std::make_unique<StageLinks>(group_, routes);
}

void PipelineRanks::try_stages(std::span<const Tensor> inputs, std::int64_t rows) {
  if (rows == 0 || std::exchange(tried_, true)) return;
  constexpr int kTrial = -1;  // in place of a micro-batch
  const PipelineState& state = *state_;
  const int last = static_cast<int>(std::ssize(state.stages)) - 1;
  const std::int64_t count = state.micro_batches(rows)[0];
  TensorList x = state.is_here(0) ? part_of(inputs, 0, count, state.device(0)) : TensorList();
  for (int s = 0; s <= last; ++s) {
    if (!state.is_here(s)) continue;
    if (s > 0 && !state.is_here(s - 1)) {
      const Action sent{Kind::send_activation, s - 1, kTrial};
      x = links_->receive(state.owner(s - 1), sent, rows, state.device(s)).wait();
    }
    state.try_stage(s, x, count);
    if (s < last && !state.is_here(s + 1)) {
      links_->send(state.owner(s + 1), {Kind::send_activation, s, kTrial}, rows, x);
    }
  }
  // Then an answer goes back through the stages: so all connections are made now, and no rank
  // begins before all stages have been tried.
  for (int s = last; s >= 0; --s) {
    if (!state.is_here(s)) continue;
    if (s < last && !state.is_here(s + 1)) {
      const Action sent{Kind::send_gradient, s + 1, kTrial};
      links_->receive(state.owner(s + 1), sent, rows, state.device(s)).wait();
    }
    if (s == 0 || state.is_here(s - 1)) continue;
    const Tensor answer = zeros({1}, {DType::f32, state.device(s)});
    links_->send(state.owner(s - 1), {Kind::send_gradient, s, kTrial}, rows, {&answer, 1});
  }
  links_->finish();
}

Tensor PipelineRanks::step(PipelineBatch& batch, std::span<const Tensor> targets,
                           const PipelineLoss& loss) {
  PipelineExchange exchange(batch, *state_, *links_);
  Tensor total;
  {
    PipelineShards::Whole whole(*shards_);
    exchange.after_action = [&](int stage) { whole.collect(stage); };
    total = batch.step(targets, loss);
    whole.reduce();
  }
  const int last = static_cast<int>(std::ssize(state_->stages)) - 1, root = state_->owner(last);
  const bool is_here = state_->is_here(last);
  if (!loss_dtype_) {  // later losses have the same dtype: no need to wait
    const std::string name =
        group_.broadcast_object(is_here ? weft::to_string(total.dtype()) : std::string(), root);
    loss_dtype_ = parse_dtype(name);
  }
  total = is_here ? raw::to(total, *loss_dtype_).reshape({})
                  : empty({}, {*loss_dtype_, state_->device(last)});
  group_.broadcast(total, root).wait();
  return total;
}

TensorList PipelineRanks::forward(PipelineBatch& batch) {
  PipelineExchange exchange(batch, *state_, *links_);
  const PipelineShards::Whole parameters(*shards_);
  const int last = static_cast<int>(std::ssize(state_->stages)) - 1;
  optim::NamedTensors named;
  for (Tensor& y : batch.forward()) {
    named.emplace_back(std::to_string(named.size()), std::move(y));
  }
  TensorList whole;
  for (const auto& [name, y] : broadcast_named(group_, std::move(named), state_->owner(last))) {
    whole.push_back(raw::to(y, state_->device(last)));
  }
  return whole;
}

Tensor PipelineRanks::clip_grad_norm(std::span<const Tensor> own, double max_norm) {
  const Tensor squares = raw::to(shards_->squared_grad_norm(own), state_->device(0));
  group_.all_reduce(squares).wait();
  const Tensor norm = raw::sqrt(squares);
  optim::clip_grads_with_norm(own, max_norm, norm);
  return norm;
}

void PipelineRanks::check_whole(const char* what) const {
  WEFT_CHECK(!state_->factory, Unsupported, kOp, what,
             ": each rank has made only its own stages; put their states together by "
             "all_gather_named()");
  const auto cut = group_.all_gather_object(shards_->empty() ? "" : "cut");
  for (std::size_t r = 0; r < cut.size(); ++r) {
    WEFT_CHECK(cut[r].empty(), Unsupported, kOp, "the stages of rank ",
               group_.number_in_run(static_cast<int>(r)),
               " are cut into parts: the handles of fully_shard and parallelize have state_dict() "
               "and state_of()");
  }
}

void PipelineRanks::all_gather() {
  check_whole("all_gather");
  for (int s = 0; s < std::ssize(state_->stages); ++s) {
    nn::AnyModule& stage = state_->stages[static_cast<std::size_t>(s)];
    const auto values = broadcast_named(group_, stage.state_dict(), state_->owner(s));
    if (!state_->is_here(s)) stage.load_state_dict(values);
  }
}

optim::NamedTensors PipelineRanks::all_gather_state(const optim::NamedTensors& own,
                                                    std::span<const Tensor> parameters) {
  check_whole("all_gather_state");
  std::map<const TensorImpl*, int> owner_of;  // parameters outside all stages belong to rank 0
  for (std::size_t s = 0; s < state_->stages.size(); ++s) {
    for (const Tensor& p : state_->stages[s].parameters()) {
      owner_of[p.impl()] = state_->owner(static_cast<int>(s));
    }
  }
  const auto owner = [&](const std::string& name) {  // "state.7.exp_avg"
    constexpr std::string_view kPrefix = "state.";
    if (!name.starts_with(kPrefix)) return 0;
    const auto found = owner_of.find(parameters[std::stoul(name.substr(kPrefix.size()))].impl());
    return found == owner_of.end() ? 0 : found->second;
  };
  optim::NamedTensors here;
  std::ranges::copy_if(own, std::back_inserter(here),
                       [&](const auto& named) { return owner(named.first) == group_.rank(); });
  return all_gather_named(here);
}

optim::NamedTensors PipelineRanks::all_gather_named(const optim::NamedTensors& own) {
  optim::NamedTensors whole;
  std::map<std::string, int> rank_of;
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (auto& named : broadcast_named(group_, own, rank)) {
      const auto [first, is_new] = rank_of.emplace(named.first, rank);
      WEFT_CHECK(is_new, InvalidArgument, kOp, "ranks ", group_.number_in_run(first->second),
                 " and ", group_.number_in_run(rank), " both give ", named.first);
      whole.push_back(std::move(named));
    }
  }
  return whole;
}

void PipelineRanks::abort() noexcept {
  links_->abort();
  shards_->abort();
  group_.abort();
}

}  // namespace weft::parallel
