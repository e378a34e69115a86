#include "weft/comm/group/work.h"

#include <utility>

#include "weft/comm/store/deadline.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "work";

// wait_for(lock, done) ends with the lock held, done or not.
template <class WaitFor>
bool wait_until_done(Work::State* state, const WaitFor& wait_for) {
  WEFT_CHECK(state, InvalidArgument, kOp,
             "this Work stands for no operation; take the one that the group gave");
  const WaitScope waiting;  // a rank may wait for work that this device's worker has to do
  std::unique_lock lock(state->mutex);
  WEFT_CHECK(state->done || state->process == fork_count(), Internal, kOp,
             "a thread of the parent process runs this operation; fork() does not copy it");
  wait_for(lock, [&] { return state->done; });
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

void Work::wait() const {
  wait_until_done(state_.get(), [&](auto& lock, auto done) { state_->changed.wait(lock, done); });
}

void Work::wait(std::chrono::milliseconds timeout) const {
  const Deadline deadline(timeout);
  const bool done = wait_until_done(state_.get(), [&](auto& lock, auto done) {
    state_->changed.wait_until(lock, deadline.at(), done);
  });
  WEFT_CHECK(done, Timeout, kOp, "not done after ", timeout.count(), " ms; it goes on");
}

bool Work::done() const {
  WEFT_CHECK(state_, InvalidArgument, kOp, "this Work stands for no operation");
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

}  // namespace weft::comm
