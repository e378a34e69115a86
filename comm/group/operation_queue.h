// The operations of a group, the thread that runs them one after the other, and what happens to
// them when one fails. Private to comm/.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "weft/comm/group/device_tensors.h"
#include "weft/comm/group/fingerprint.h"
#include "weft/comm/group/operation.h"
#include "weft/comm/group/options.h"
#include "weft/comm/store/failure.h"
#include "weft/comm/store/store.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"

namespace weft::comm {

/// It has two threads. "comm", made at the first operation, runs the operations. "comm watch"
/// watches the time, which a waiting backend cannot do: it logs an operation that takes long, and
/// writes into the store how far this rank has come. It wakes at least four times in options.slow
/// and 16 times in options.timeout, even without operations, so that starting one need not wake it.
///
/// While this rank is busy (core/runtime/phase.h), its watch increments a number in the store of
/// the run whenever it wakes. While an operation runs, the watch checks whether the number changes,
/// and then moves the deadline to one timeout from now, but at most kMostTimeouts from the
/// beginning. So no clocks are compared, and a process that was stopped, with its watch, blocks
/// nobody. Any busy rank of the run counts, not only the one that is waited for, since that one may
/// wait for another.
class OperationQueue {
 public:
  /// `group_store` has the keys of this group, `run_store` the run's first failure. Both
  /// connections belong to the queue alone. A group of one rank has neither of them, and no
  /// backend: its operations are done at once. `others` was made before the ranks met.
  OperationQueue(Members members, const ProcessGroupOptions& options,
                 std::unique_ptr<Backend> backend, std::shared_ptr<Store> group_store,
                 std::unique_ptr<Store> run_store, const FailureWatch& others);
  /// Aborts the operations that have not run.
  ~OperationQueue();

  /// An operation may take this many timeouts, however long others are busy.
  static constexpr int kMostTimeouts = 10;

  const Members& members() const { return members_; }
  const ProcessGroupOptions& options() const { return options_; }
  /// Null in a group of one.
  const Backend* backend() const { return backend_.get(); }
  Traffic traffic() const;
  /// Whether an error, other than abort(), has ended the group.
  bool failed() const;

  /// Throws Comm when the group has ended.
  Work submit(Operation operation);
  /// Throws Comm when the group has ended, with the error that ended it; `op` names the caller.
  void check_alive(const char* op) const;
  /// Ends the group: no operation runs any more, and all fail with Comm and this text.
  void abort(const char* why) noexcept;

 private:
  void check_alive(const char* op, const std::lock_guard<std::mutex>& lock) const;
  void serve();
  OperationRecord record_of(const Operation& operation);
  std::optional<Error> run(const Operation& operation);
  void check_others();
  Error explain(const Error& error, const Operation& operation);
  Error explain_mismatch(const Error& error, const Operation& operation, const LastCalls& mine);
  std::string key_of_call(int rank) const;
  std::string first_failure(const Error& error, const Call& call, const std::string& absent);
  void end(const Error& error, bool by_abort = false);

  // What the watch has seen in its last round.
  struct Seen {
    std::int64_t published = 0;                  // number of the last published collective
    const char* published_busy = nullptr;        // the busy phase published since
    Deadline::Clock::time_point began;           // of the operation that was running
    std::optional<std::string> busy_ranks = {};  // what the store said then
  };
  void watch();
  void publish(std::unique_lock<std::mutex>& lock, Seen& seen);
  void extend_deadline(std::unique_lock<std::mutex>& lock, Seen& seen);
  void warn_of_slow(std::unique_lock<std::mutex>& lock);

  const Members members_;
  const int rank_of_thread_;  // to find its BusyScopes
  const ProcessGroupOptions options_;
  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<Store> group_store_;
  const std::unique_ptr<Store> run_store_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, wake_watch_;
  std::deque<Operation> queue_;
  std::int64_t collectives_ = 0, messages_ = 0;  // number of calls
  std::exception_ptr failure_;                   // that ended the group
  std::string failure_text_;
  bool aborted_ = false;  // by abort()
  Traffic traffic_;
  bool quit_ = false;

  const Operation* running_ = nullptr;
  Deadline::Clock::time_point began_;
  Deadline deadline_{std::chrono::milliseconds(0)};  // of running_
  bool warned_ = false;                              // of running_
  Call begun_;                                       // the last collective

  Signature now_, before_;    // the last two operations; used only by thread_
  FailureWatch others_;       // likewise
  DeviceOperations devices_;  // likewise
  BlackBox* const box_;       // likewise; null: nobody reads it
  TextId group_ = 0;
  std::unordered_map<const PathNode*, TextId> modules_;  // their texts in the box
  std::thread thread_, watch_;
};

}  // namespace weft::comm
