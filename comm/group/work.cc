#include "weft/comm/group/work.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "weft/comm/store/deadline.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "work";

// How often a waiting thread reports to the black box how long it has waited.
constexpr std::chrono::milliseconds kTold{100};

// Returns when the work is done or the deadline, if any, has passed; whether it is done.
bool wait_until_done(Work::State* state, const Deadline* deadline) {
  WEFT_CHECK(state, InvalidArgument, kOp,
             "this Work stands for no operation; take the one that the group gave");
  const WaitScope waiting;  // a rank may wait for work that this device's worker has to do
  std::unique_lock lock(state->mutex);
  WEFT_CHECK(state->done || state->process == fork_count(), Internal, kOp,
             "a thread of the parent process runs this operation; fork() does not copy it");
  for (auto now = Deadline::Clock::now(); !state->done && !(deadline && now >= deadline->at());) {
    const auto since = now, next = now + kTold;
    state->changed.wait_until(lock, deadline ? std::min(next, deadline->at()) : next,
                              [&] { return state->done; });
    now = Deadline::Clock::now();
    if (BlackBox* const box = own_black_box()) {
      box->sums().waited_ns += steady_ns(now) - steady_ns(since);
    }
  }
  if (state->error) std::rethrow_exception(state->error);
  if (state->done && state->event) state->event->block(current_stream(state->device));
  return state->done;
}

}  // namespace

void Work::State::finish(std::exception_ptr failed_by) noexcept {
  const std::lock_guard lock(mutex);
  error = std::move(failed_by);
  done = true;
  changed.notify_all();
}

void Work::wait() const { wait_until_done(state_.get(), nullptr); }

void Work::wait(std::chrono::milliseconds timeout) const {
  const Deadline deadline(timeout);
  const bool done = wait_until_done(state_.get(), &deadline);
  WEFT_CHECK(done, Timeout, kOp, "not done after ", timeout.count(), " ms; it goes on");
}

bool Work::done() const {
  WEFT_CHECK(state_, InvalidArgument, kOp, "this Work stands for no operation");
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

}  // namespace weft::comm
