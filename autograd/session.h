// The outermost backward in progress and what its nested ones share with it: callbacks at its end,
// and who still owes a leaf a contribution. Private to autograd/.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/core/pool.h"
#include "weft/core/streams.h"
#include "weft/core/thread_state.h"

namespace weft::autograd {

class Discovery;
class NestingRule;

/// Workers of one backward, and backwards inside of it, may use it at once.
class Session {
 public:
  using AtEnd = std::function<void(const std::exception_ptr& error)>;

  void at_end(AtEnd callback);

  /// A run begins: it owes its leaves a contribution, if it accumulates, and some of its rules may
  /// start backwards of their own.
  void begin_run(const Discovery& found, bool accumulates);
  /// That rule starts no further one. Calls the final hooks of the leaves that waited for it.
  void settle(NestingRule& rule);
  /// A run's contribution is in the leaf, which has final hooks. Calls them where it was the last.
  void arrived(const Tensor& leaf);

  /// Runs f and whatever the session still has to call: final hooks, then callbacks.
  template <class F>
  void run(F&& f) {
    std::exception_ptr error;
    streams_ = CurrentStreams::of_this_thread();
    current_ = this;
    try {
      f();
      finish_leaves();
    } catch (...) {
      error = std::current_exception();
    }
    current_ = nullptr;
    end(std::move(error));
  }

  /// Of the thread that started it: where leaves add up and their hooks are called.
  const CurrentStreams& streams() const { return streams_; }

  /// The one in progress on this thread, or null.
  static Session* current() { return current_; }
  /// Of a worker; returns the one before.
  static Session* set_current(Session* session) { return std::exchange(current_, session); }

 private:
  friend class NestingRule;
  struct Leaf {
    int owed = 0;          // contributions of the runs in progress
    bool waiting = false;  // in waiting_
    bool called = false;   // its hooks were
  };
  template <class T>
  using Pool = std::vector<T, PoolAllocator<T>>;

  void forget(NestingRule& rule);
  void finish_leaves();
  void end(std::exception_ptr error);
  // Of the leaves that wait, those whose last contribution is in, or all.
  Pool<Tensor> take_waiting(bool all);
  void call_final_hooks(const Tensor& leaf) const;

  static constinit thread_local Session* current_;

  CurrentStreams streams_;
  std::mutex mutex_;
  std::vector<AtEnd> at_end_;
  int nesting_ = 0;       // rules, still to run, that may start backwards
  Pool<Tensor> waiting_;  // leaves that may get more, in the order in which they arrived
  std::unordered_map<const TensorImpl*, Leaf, std::hash<const TensorImpl*>, std::equal_to<>,
                     PoolAllocator<std::pair<const TensorImpl* const, Leaf>>>
      leaves_;  // those with final hooks
};

/// A rule that may start backwards, for the time it runs.
class NestingRule {
 public:
  explicit NestingRule(Session& session);
  ~NestingRule();
  NestingRule(const NestingRule&) = delete;
  NestingRule& operator=(const NestingRule&) = delete;

  /// The innermost one on this thread.
  static NestingRule* current() { return current_; }

 private:
  friend class Session;
  static constinit thread_local NestingRule* current_;

  Session& session_;
  NestingRule* const outer_;
  bool counts_ = true;
};

/// The last backward that the rule in progress will start: leaves need not wait for more.
void last_backward_of_rule(std::span<const Tensor> outputs, std::span<const Tensor> grads);

}  // namespace weft::autograd
