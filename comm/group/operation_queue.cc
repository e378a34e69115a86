#include "weft/comm/group/operation_queue.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/group/fingerprint.h"
#include "weft/comm/group/progress.h"
#include "weft/comm/group/work.h"
#include "weft/comm/store/failure.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/ops.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "process_group";

// Runs f() in a span that names the module path followed by the operation's tag, unless the path
// alone identifies the operation.
template <class F>
void traced(const Operation& operation, F&& f) {
  const Call& call = operation.call;
  std::optional<PathScope> path;
  if (thread_state().tracer && !call.tag.empty() && !call.same_module)
    path.emplace(call.tag.c_str());
  Span span("comm", call.name);
  if (span.on()) {
    span.set_arg("bytes", static_cast<std::int64_t>(buffer_of(operation.part()).bytes()));
    span.set_arg("number", call.number);
  }
  f();
}

// "ranks 0-3, 8", "generation 1: ranks 0, 2". A rank that comes back has not seen the generations
// before, which may have had the same ranks. The end of a long name is cut off.
std::string name_of(const Members& members) {
  const std::vector<int>& ranks = members.ranks;
  std::string text;
  if (members.generation > 0) text = detail::concat("generation ", members.generation, ": ");
  text += "ranks ";
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (first > 0 ? ", " : "") + std::to_string(ranks[first]);
    if (last > first) text += '-' + std::to_string(ranks[last]);
  }
  return text;
}

// Frees the tensors first, so that a thread that waits finds them with one owner less.
void finish(Operation& operation, std::exception_ptr error) {
  operation.y = operation.x = Tensor();
  operation.work->finish(std::move(error));
}

template <class F>
void start(std::thread& thread, F f) {
  try {
    thread = std::thread(std::move(f));
  } catch (const std::system_error& error) {
    WEFT_THROW(Library, kOp, "cannot start the group's threads: ", error.what(),
               "; the process or its user is at the limit of threads");
  }
}

// Writing to a socket of a rank that is gone would end the process.
void block_sigpipe() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
}

}  // namespace

OperationQueue::OperationQueue(Members members, const ProcessGroupOptions& options,
                               std::unique_ptr<Backend> backend, std::shared_ptr<Store> group_store,
                               std::unique_ptr<Store> run_store, const FailureWatch& others)
    : members_(std::move(members)),
      rank_of_thread_(thread_state().rank),
      options_(options),
      backend_(std::move(backend)),
      group_store_(std::move(group_store)),
      run_store_(std::move(run_store)),
      others_(others),
      devices_(members_, options_.cuda, group_store_.get()),
      box_(backend_ ? own_black_box() : nullptr) {
  if (box_) group_ = box_->id_of_group(name_of(members_));
  for (Store* const store : {group_store_.get(), run_store_.get()}) {
    if (store) store->set_timeout(kStoreTimeout);
  }
  // The watch starts before the first operation: others may already wait for this rank.
  if (backend_) start(watch_, [this] { watch(); });
}

OperationQueue::~OperationQueue() {
  bool pending = false;
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    // An operation that has been waited for may still run on its device.
    pending = (running_ && !Work(running_->work).done()) || !queue_.empty();
  }
  if (pending) abort("the group was destroyed before this was done; wait() for it first");
  wake_.notify_all();
  wake_watch_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (watch_.joinable()) watch_.join();
  // Published before backend_ closes its connections. Not if an exception is on its way: then this
  // rank has failed.
  if (backend_ && !failure_ && std::uncaught_exceptions() == 0) {
    if_told<bool>([&] { return publish_leave(*group_store_, members_.rank, begun_), true; });
  }
}

Traffic OperationQueue::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

bool OperationQueue::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ && !aborted_;
}

void OperationQueue::check_alive(const char* op) const { check_alive(op, std::lock_guard(mutex_)); }

void OperationQueue::check_alive(const char* op, const std::lock_guard<std::mutex>&) const {
  WEFT_CHECK(!failure_, Comm, op,
             "this group has ended, of which there has to be a new one: ", failure_text_);
}

Work OperationQueue::submit(Operation operation) {
  auto work = operation.work = std::make_shared<Work::State>();
  {
    const std::lock_guard lock(mutex_);
    check_alive(operation.call.name, lock);
    if (backend_) {
      if (!thread_.joinable()) start(thread_, [this] { serve(); });
      backend_->queued(operation.call.name, buffer_of(operation.x), buffer_of(operation.y));
    }
    // The number is taken after everything that may throw: the other ranks wait for an operation of
    // each number.
    operation.call.number = operation.peer < 0 ? ++collectives_ : ++messages_;
    if (backend_) {
      queue_.push_back(std::move(operation));
      wake_.notify_one();
      return Work(std::move(work));
    }
  }
  traced(operation, [&] {
    const Tensor &y = operation.y, &x = operation.x;
    if (y.defined() && x.defined()) raw::copy_(y, raw::reshape(x, y.shape()));
  });
  work->finish(nullptr);
  return Work(std::move(work));
}

void OperationQueue::serve() {
  block_sigpipe();
  leave_thread_unbound();
  set_thread_name(members_.label.empty() ? "comm" : "comm " + members_.label);
  const RankNumbers numbers(members_.ranks);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return quit_ || !queue_.empty(); });
    if (queue_.empty()) break;
    Operation operation = std::move(queue_.front());
    queue_.pop_front();
    running_ = &operation;
    began_ = Deadline::Clock::now();
    deadline_.move_to(began_ + options_.timeout);
    warned_ = false;
    if (operation.peer < 0) begun_ = operation.call;

    lock.unlock();
    const std::optional<Error> error = run(operation);
    lock.lock();
    running_ = nullptr;
    const std::int64_t sent_before = traffic_.bytes_sent;
    traffic_ = backend_->traffic();
    traffic_ += devices_.traffic();
    if (box_) box_->sums().sent += traffic_.bytes_sent - sent_before;
    const bool aborted = failure_ != nullptr;

    lock.unlock();
    if (error && !aborted) end(explain(*error, operation));
    finish(operation, error ? failure_ : nullptr);
    if (error) devices_.close();  // this lets streams go on, so only once the error can be read
    lock.lock();
  }
  lock.unlock();
  devices_.close();
}

OperationRecord OperationQueue::record_of(const Operation& operation) {
  const Call& call = operation.call;
  OperationRecord record{.number = call.number,
                         .begin_ns = steady_ns(began_),
                         .step = call.step,
                         .name = box_->id_of(call.name),
                         .group = group_,
                         // Such tags contain shapes and would fill the box's table of texts; the
                         // module says as much.
                         .tag = call.same_module ? 0 : box_->id_of(call.tag),
                         .rank = members_.number_in_run(members_.rank)};
  if (const Tensor& part = operation.part(); part.defined()) {
    record.count = part.numel();
    record.bytes = static_cast<std::int64_t>(buffer_of(part).bytes());
    record.dtype = static_cast<std::int32_t>(part.dtype());
  }
  if (operation.peer >= 0) record.peer = members_.number_in_run(operation.peer);
  if (call.path) {
    const auto [module, is_new] = modules_.try_emplace(call.path);
    if (is_new) module->second = box_->id_of(module_path(call.path));
    record.module = module->second;
  }
  return record;
}

std::optional<Error> OperationQueue::run(const Operation& operation) {
  std::optional<Error> error;
  std::uint64_t record = 0;
  try {
    if (box_) record = box_->begin(record_of(operation));
    const ThreadStateGuard as_caller(operation.caller);
    const PhaseScope phase(operation.call.name, [&] { return to_string(operation.call); });
    traced(operation, [&] {
      before_ = std::exchange(now_, signature_of(operation));
      if (options_.check_fingerprints && operation.peer < 0) {
        backend_->set_fingerprint(0);
        check_fingerprints(operation, members_, *backend_, deadline_);
      }
      backend_->set_fingerprint(fingerprint_of(now_));
      if (operation.ready) {
        devices_.run(operation, *backend_, deadline_, [this] { check_others(); });
      } else {
        operation.run(operation, *backend_, deadline_);
      }
    });
  } catch (...) {
    error = caught_error(kOp);
  }
  if (record != 0) box_->end(record, error.has_value());
  return error;
}

// Work on a device does not notice when another rank has failed, but the store may know.
void OperationQueue::check_others() {
  const std::optional<Failure> failure = others_.look();
  WEFT_CHECK(!failure, PeerFailed, kOp, "rank ", failure->rank, " failed");
}

// --- Failures ------------------------------------------------------------------------------------

void OperationQueue::end(const Error& error, bool by_abort) {
  std::deque<Operation> rest;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_text_ = error.what();
    failure_ = std::make_exception_ptr(error);
    aborted_ = by_abort;
    rest.swap(queue_);
  }
  if (backend_) backend_->abort();
  devices_.abort();
  for (Operation& operation : rest) finish(operation, failure_);
}

void OperationQueue::abort(const char* why) noexcept {
  try {
    end(Error(ErrorCode::Comm, kOp, why, __FILE__, __LINE__).with_context(members_.me), true);
  } catch (const std::bad_alloc&) {
    if (backend_) backend_->abort();  // operations then end with the error
    devices_.abort();
  }
}

std::string OperationQueue::key_of_call(int rank) const {
  return "failed in/" + std::to_string(rank);
}

Error OperationQueue::explain(const Error& error, const Operation& operation) {
  const Call& call = operation.call;
  // For a rank that finds that it was in another operation than this one.
  const LastCalls mine(now_, before_);
  if_told<bool>([&] { return group_store_->set(key_of_call(members_.rank), to_text(mine)), true; });
  if (backend_->mismatched() >= 0) return explain_mismatch(error, operation, mine);
  std::string absent;
  if (error.code() == ErrorCode::Timeout && operation.peer < 0) {
    absent =
        if_told<std::string>([&] { return absent_ranks(*group_store_, members_, call.number); });
    if (!absent.empty()) absent = " (waiting for " + absent + ')';
  } else if (error.code() == ErrorCode::PeerFailed && operation.peer < 0) {
    absent =
        if_told<std::string>([&] { return rank_that_left(*group_store_, members_, call.number); });
    if (!absent.empty()) absent = " (" + absent + ')';
  }
  const std::string first = first_failure(error, call, absent);
  return error.with_context(to_string(call) + place_of(call) + " on " + members_.me + absent +
                            (first.empty() ? "" : " (" + first + ')'));
}

// Ending the backend makes the other rank fail, in this call or its next, and report its own
// operation.
Error OperationQueue::explain_mismatch(const Error& error, const Operation& operation,
                                       const LastCalls& mine) {
  backend_->abort();
  const int other = backend_->mismatched();
  // Half the time, since other ranks wait for the report below for at most kStoreTimeout.
  const LastCalls theirs = last_calls_in(if_told<std::string>(
      [&] { return group_store_->get(key_of_call(other), Deadline(kStoreTimeout / 2)); }));
  // A root that only sends cannot notice that another rank is root, too; it notices in its next
  // call.
  const bool late = theirs.now.number == mine.now.number;
  const LastCalls::One &my_call = late ? mine.before : mine.now,
                       &their_call = late ? theirs.before : theirs.now;
  const auto calls = [&](int rank, const std::string& what) {
    return detail::concat("rank ", members_.number_in_run(rank), " calls ", what);
  };
  std::string both[] = {calls(members_.rank, my_call.text), calls(other, their_call.text)};
  if (other < members_.rank) std::swap(both[0], both[1]);
  const bool known = !their_call.text.empty() && my_call.number != their_call.number;
  const Error all = known ? Error(ErrorCode::Comm, kOp,
                                  both[0] + ", " + both[1] +
                                      "; all ranks must call the same operations in the same order",
                                  __FILE__, __LINE__)
                          : error.with_context(mine.now.text + " on " + members_.me);
  const FailureReport report(*run_store_,
                             {members_.number_in_run(members_.rank), all.what(),
                              to_string(operation.call), operation.call.step, false},
                             false);
  return all;
}

// Ends the backend only after the store knows the reason: others may notice only the end.
std::string OperationQueue::first_failure(const Error& error, const Call& call,
                                          const std::string& absent) {
  const Failure mine{members_.number_in_run(members_.rank), error.what() + absent, to_string(call),
                     call.step, error.code() == ErrorCode::Timeout};
  const FailureReport report(*run_store_, mine, error.code() == ErrorCode::PeerFailed);
  backend_->abort();
  // Every rank that takes part in a mismatch finds it itself.
  return error.code() == ErrorCode::Comm ? "" : report.who_was_first(others_);
}

// --- The watch -----------------------------------------------------------------------------------

void OperationQueue::watch() {
  set_thread_name("comm watch");
  const auto tick =
      std::max(std::min(options_.slow, options_.timeout / 4) / 4, std::chrono::milliseconds(1));
  Seen seen;
  std::unique_lock lock(mutex_);
  // An error of the store or of the log is no failure of the group, and must not stop the other
  // steps.
  const auto attempt = [&](const auto& step) {
    if (quit_) return;
    try {
      step();
    } catch (const std::exception&) {
      if (!lock.owns_lock()) lock.lock();
    }
  };
  while (!quit_) {
    attempt([&] { publish(lock, seen); });
    attempt([&] { extend_deadline(lock, seen); });
    attempt([&] { warn_of_slow(lock); });
    auto next = Deadline::Clock::now() + tick;
    if (running_ && !warned_) next = std::min(next, began_ + options_.slow);
    wake_watch_.wait_until(lock, next, [&] { return quit_; });
  }
}

void OperationQueue::publish(std::unique_lock<std::mutex>& lock, Seen& seen) {
  // A rank that waits in an operation does not let others wait because of its own work.
  const char* const busy = running_ ? nullptr : busy_with(rank_of_thread_);
  const Call begun = begun_;
  const bool news = begun.number != seen.published || (busy && busy != seen.published_busy);
  if (!news && !busy) return;
  lock.unlock();
  if (news) {
    publish_progress(*group_store_, members_.rank, begun, busy);
    seen.published = begun.number;  // not if publishing threw: then try again
    seen.published_busy = busy;
  }
  if (busy) run_store_->add(kBusyKey, 1);
  lock.lock();
}

void OperationQueue::extend_deadline(std::unique_lock<std::mutex>& lock, Seen& seen) {
  if (!running_) return;
  const auto began = began_;
  lock.unlock();
  const auto busy_ranks = run_store_->try_get(kBusyKey);
  lock.lock();
  const bool looked_before = std::exchange(seen.began, began) == began;
  const bool changed = std::exchange(seen.busy_ranks, busy_ranks) != busy_ranks;
  if (!running_ || began_ != began || !looked_before || !changed) return;
  deadline_.move_to(std::min(Deadline::Clock::now() + options_.timeout,
                             began + kMostTimeouts * options_.timeout));
  backend_->wake();
}

void OperationQueue::warn_of_slow(std::unique_lock<std::mutex>& lock) {
  if (!running_ || warned_ || Deadline::Clock::now() < began_ + options_.slow) return;
  warned_ = true;
  const Call call = running_->call;
  using Told = std::optional<std::string>;
  Told whom;  // empty: no rank is missing; nullopt: the store does not answer
  if (const int peer = running_->peer; peer >= 0) {
    whom = "rank " + std::to_string(members_.number_in_run(peer));
  } else {
    lock.unlock();
    whom = if_told<Told>([&] { return absent_ranks(*group_store_, members_, call.number); });
    lock.lock();
  }
  // Under the lock: once the operation is done, its caller's log may be destroyed.
  if (!running_ || running_->call.name != call.name || running_->call.number != call.number) return;
  const ThreadStateGuard as_caller(running_->caller);
  log_warning(detail::concat(to_string(call), ": waiting for ", to_text(options_.slow),
                             !whom           ? ""
                             : whom->empty() ? ", though all ranks have come"
                                             : " for " + *whom));
}

}  // namespace weft::comm
