#include "weft/parallel/pipeline_exchange.h"

#include <utility>

#include "weft/core/runtime/phase.h"
#include "weft/core/trace/trace.h"

namespace weft::parallel {

using Kind = Action::Kind;

namespace {

constexpr const char* kOp = "pipeline";

}  // namespace

PipelineExchange::PipelineExchange(PipelineBatch& batch, const PipelineState& state,
                                   StageLinks& links)
    : batch_(batch), state_(state), links_(links) {
  batch.set_exchange(*this);
}

// Runs this rank's list, on this thread.
void PipelineExchange::run(PipelineBatch::Wanted wanted) {
  const int own = *state_.own_list;
  const std::vector<Action>& actions = batch_.schedule().devices[static_cast<std::size_t>(own)];
  std::vector<TimedAction> timed;
  try {
    links_.begin(
        sends_to_here(wanted), batch_.rows(), state_.device(actions[0].stage),
        [this](const Action& sent, Arrival arrival) { deliver(sent, std::move(arrival)); },
        [this](std::exception_ptr error) { fail(std::move(error)); });
    batch_.run_list(static_cast<std::size_t>(own), wanted, timed);
  } catch (...) {
    fail(std::current_exception());
  }
  try {
    links_.finish();
  } catch (...) {
    fail(std::current_exception());
  }
  if (error_) std::rethrow_exception(error_);
  for (TimedAction& action : timed) action.device = 0;
  batch_.note({&timed, 1});
}

// What this rank will receive: the sends to it in the other ranks' lists.
StageLinks::Sends PipelineExchange::sends_to_here(PipelineBatch::Wanted wanted) const {
  StageLinks::Sends sends;
  const auto& lists = batch_.schedule().devices;
  for (int list = 0; list < std::ssize(lists); ++list) {
    if (list == *state_.own_list) continue;
    for (const Action& action : lists[static_cast<std::size_t>(list)]) {
      const bool is_send =
          action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
      if (!is_send || !wanted(action.kind)) continue;
      if (state_.is_here(counterpart(action).stage)) sends[list].push_back(action);
    }
  }
  return sends;
}

double PipelineExchange::perform(const Action& action) {
  if (is_communication(action.kind)) {
    send(action);
    return 0;
  }
  take_arrival(action);
  // Counts as busy: the other ranks' receives wait for the result.
  const BusyScope busy(name_of(action.kind));
  const double begin = batch_.perform(action);
  if (after_action) after_action(action.stage);
  return begin;
}

void PipelineExchange::send(const Action& action) {
  const bool forward = action.kind == Kind::send_activation;
  if (!forward && action.kind != Kind::send_gradient) return;  // the threads of the links receive
  Span span(kOp, name_of(action.kind), state_.device(action.stage));
  span.set_arg("stage", action.stage);
  span.set_arg("micro_batch", action.micro_batch);
  const int to = forward ? action.stage + 1 : action.stage - 1;
  PipelineBatch::Cell& cell = batch_.cell(to, action.micro_batch);
  links_.send(state_.owner(to), action, batch_.rows(),
              std::exchange(forward ? cell.inputs : cell.grads, {}));
}

void PipelineExchange::deliver(const Action& sent, Arrival arrival) {
  const auto [kind, stage, micro_batch] = counterpart(sent);
  {
    const std::lock_guard lock(mutex_);
    arrived_.emplace(std::tuple(kind, stage, micro_batch), std::move(arrival));
  }
  const bool forward = sent.kind == Kind::send_activation;
  batch_.done({forward ? Kind::forward : Kind::backward, sent.stage, sent.micro_batch});
}

// Takes what another rank has sent for the action; the values may still be arriving.
void PipelineExchange::take_arrival(const Action& action) {
  const bool forward = action.kind == Kind::forward;
  if (!forward && action.kind != Kind::backward && action.kind != Kind::backward_input) return;
  const auto taken = [&] {
    const std::lock_guard lock(mutex_);
    return arrived_.extract({forward ? Kind::receive_activation : Kind::receive_gradient,
                             action.stage, action.micro_batch});
  }();
  if (taken.empty()) return;
  const Span span(kOp, "wait", state_.device(action.stage));
  PipelineBatch::Cell& own = batch_.cell(action.stage, action.micro_batch);
  (forward ? own.inputs : own.grads) = taken.mapped().wait();
}

void PipelineExchange::fail(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  batch_.stop();
  links_.abort();
}

}  // namespace weft::parallel
