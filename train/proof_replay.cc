// How a Proof takes the recorded steps of several ranks in one process; train/proof.h has the
// picture.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/train/proof.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "prove";

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& x : tensors) copies.push_back(raw::clone(x));
  return copies;
}

// The gradient of a leaf becomes a copy of `value`; undefined: none.
void put_gradient(const Tensor& leaf, const Tensor& value) {
  if (!value.defined()) return autograd::zero_grad(leaf);
  if (leaf.grad().defined()) {
    raw::copy_(leaf.grad(), value);
  } else {
    leaf.set_grad(raw::clone(value));
  }
}

}  // namespace

const RecordedStep& Proof::recorded_step(const Rank& rank) const {
  const auto found = std::ranges::find(recorded_.ranks, rank.number, &RecordedRank::number);
  WEFT_CHECK(step_ < std::ssize(found->steps), InvalidArgument, kOp, "step ", step_,
             " was not recorded");
  return found->steps[static_cast<std::size_t>(step_)];
}

std::vector<Tensor> Proof::as_recorded(Rank& rank, std::span<const Tensor> inputs) const {
  const RecordedStep& recorded = recorded_step(rank);
  WEFT_CHECK(inputs.size() == recorded.inputs.size(), InvalidArgument, kOp, "a step with ",
             inputs.size(), " inputs, recorded were ", recorded.inputs.size());
  std::vector<Tensor> result(inputs.begin(), inputs.end());
  rank.batch.inputs = recorded.inputs;
  if (!recorded.saved.empty()) {
    const auto file = io::load_safetensors(inputs_file(plan_.from, rank.number, step_));
    for (const auto& [name, x] : file.tensors) {
      Tensor& place = result[static_cast<std::size_t>(std::stoul(name))];
      place = raw::to(x, place.device());
    }
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    WEFT_CHECK(hex_hash(result[i]) == recorded.inputs[i], InvalidArgument, kOp, "input ", i,
               " of step ", step_, " is not that of rank ", rank.number,
               " though its indices are: ", kRandomSamples,
               " as they are loaded, so the plan must have \"save_inputs\"");
  }
  return result;
}

void Proof::replay(const Body& body) {
  weights_.clear();
  gradients_.clear();
  events_.clear();
  std::vector<Tensor> params;
  if (run_.module) params = run_.module->parameters();
  for (const optim::Optimizer* optimizer : optimizers_) {
    for (const Tensor& p : optimizer->parameters()) {
      if (!names_.contains(p.impl()) || names_[p.impl()].empty()) params.push_back(p);
    }
  }
  for (const Tensor& p : params) {
    weights_.emplace_back(p, raw::clone(p));
    gradients_.emplace_back(p, p.grad().defined() ? raw::clone(p.grad()) : Tensor());
  }
  for (const auto& rank : ranks_) {
    const std::string& state = recorded_step(*rank).state;
    if (!state.empty()) rank->generator = state;
    rank->batch.generator = hex_hash(rank->generator);
  }
  // One more pass if modules are called after the last update: all ranks but the last have not run
  // these calls yet with the new weights.
  for (pass_ = 0;; ++pass_) {
    sums_.clear();
    magnitudes_.clear();
    bool more = false;
    std::size_t count = 0;
    for (const auto& rank : ranks_) {
      run_as(*rank, body);
      if (rank == ranks_.front()) count = event_;
      WEFT_CHECK(event_ == count && count > 0, InvalidArgument, kOp, "step ", step_,
                 ": the body makes ", event_, " updates for the batch of rank ", rank->number,
                 count > 0
                     ? detail::concat(", ", count, " for that of rank 0")
                     : std::string("; gradients that several steps add up cannot be replayed"));
      more |= last_call_ == count;
    }
    if (pass_ == count || (pass_ + 1 == count && !more)) break;
  }
  const std::size_t recorded = recorded_step(*ranks_[0]).updates.size();
  WEFT_CHECK(events_.size() == recorded, InvalidArgument, kOp, "step ", step_, " makes ",
             events_.size(), " updates, recorded were ", recorded);
  for (const auto& rank : ranks_) {
    rank->generator = rank->new_generator;
    rank->buffers = rank->new_buffers;
  }
  if (run_.module) {
    const nn::NamedTensors buffers = run_.module->named_buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      raw::copy_(buffers[i].second, ranks_[0]->buffers[i]);
    }
  }
  events_.clear();
  complete_ = true;
}

void Proof::run_as(Rank& rank, const Body& body) {
  now_ = &rank;
  default_generators().set_state(rank.generator);
  for (const auto& [p, value] : weights_) raw::copy_(p, value);
  for (const auto& [p, value] : gradients_) put_gradient(p, value);
  std::vector<Tensor> buffers;
  if (run_.module) {
    for (const auto& [name, x] : run_.module->named_buffers()) buffers.push_back(x);
  }
  const Rank& from = run_.shares_buffers ? *ranks_[0] : rank;
  for (std::size_t i = 0; i < buffers.size(); ++i) raw::copy_(buffers[i], from.buffers[i]);
  event_ = 0;
  used_.clear();
  last_call_.reset();
  listen(true);
  in_body_ = true;
  rank.results = body(rank.inputs);
  in_body_ = false;
  write_outputs();
  listen(false);
  rank.new_buffers = copies_of(buffers);
  rank.new_generator = default_generators().state();
}

// --- Updates -------------------------------------------------------------------------------------

// Whether the update is to be made.
bool Proof::before_replayed_step(optim::Optimizer& optimizer) {
  WEFT_CHECK(in_body_, InvalidArgument, kOp,
             "an optimiser's step outside of the body of the train::Step cannot be replayed");
  const std::vector<Tensor> params = optimizer.parameters();
  for (const Tensor& p : params) {
    const auto same = [&](const auto& known) { return known.first.same(p); };
    if (std::ranges::none_of(weights_, same)) {  // not the model's
      weights_.emplace_back(p, raw::clone(p));
      gradients_.emplace_back(p, Tensor());
    }
  }
  use_gradients(params);
  used_.clear();
  if (event_ < events_.size()) {
    const Event& done = events_[event_++];
    WEFT_CHECK(done.optimizer == &optimizer, InvalidArgument, kOp,
               "the body of the step updates in another order for another rank's batch");
    for (const auto& [p, value] : done.weights) raw::copy_(p, value);
    return false;
  }
  if (event_ != pass_ || now_ != ranks_.back().get()) {
    ++event_;
    return false;
  }
  take_rates(optimizer);
  return true;
}

// Adds this rank's gradients to the sums, divided by the number of ranks as an engine does before
// it sends them. For the last rank the sums take the place of its gradients.
void Proof::use_gradients(std::span<const Tensor> params) {
  if (event_ > pass_) return;
  const bool done = event_ < events_.size(), last = now_ == ranks_.back().get();
  for (const Tensor& p : params) {
    if (!used_.insert(p.impl()).second) continue;
    if (done) {
      const auto mean = events_[event_].means.find(p.impl());
      if (mean != events_[event_].means.end()) put_gradient(p, mean->second);
      continue;
    }
    Tensor& sum = sums_[p.impl()];
    if (const Tensor grad = p.grad(); grad.defined()) {
      const Tensor share = raw::clone(grad);
      if (ranks_.size() > 1) raw::mul_(share, 1 / static_cast<double>(ranks_.size()));
      if (step_ == plan_.keep_step) {
        Tensor& magnitude = magnitudes_[p.impl()];
        const Tensor own = raw::abs(share);
        magnitude = magnitude.defined() ? raw::add(magnitude, own) : own;
      }
      if (sum.defined()) {
        raw::add_scaled_(sum, 1, share);
      } else {
        sum = share;
      }
    }
    if (last && sum.defined()) put_gradient(p, sum);
  }
}

void Proof::on_micro_batch(std::int64_t number) {
  if (!in_body_ || !replays() || step_ != plan_.keep_step || event_ != pass_ || !run_.module)
    return;
  for (const auto& [name, p] : run_.module->named_parameters()) {
    if (!p.grad().defined()) continue;
    put_line(*now_, micro_batch_line(step_, event_, number, name, p.grad()));
  }
}

// Takes the rates from the records, since they may depend on the number of ranks, or be set for
// each batch. The rates of the ranks are compared with each other elsewhere.
void Proof::take_rates(optim::Optimizer& optimizer) const {
  const auto& updates = recorded_step(*ranks_[0]).updates;
  WEFT_CHECK(event_ < updates.size() && updates[event_].size() == optimizer.group_count(),
             InvalidArgument, kOp, "step ", step_, ": update ", event_, " of ",
             optimizer.group_count(), " groups was not recorded");
  for (std::size_t g = 0; g < optimizer.group_count(); ++g) {
    const GroupRates& rates = updates[event_][g];
    optimizer.set_lr(g, rates.lr);
    if (rates.momentum != optimizer.momentum(g)) optimizer.set_momentum(g, rates.momentum);
  }
}

}  // namespace weft::train
