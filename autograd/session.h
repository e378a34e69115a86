// The state that the outermost backward in progress shares with those nested in it: the callbacks
// at its end, and how many contributions a leaf still waits for. Private to autograd/.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/runtime/streams.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::autograd {

class Discovery;
class NestingRule;

/// One per outermost backward. Its workers and nested backwards may use it at the same time.
class Session {
 public:
  using AtEnd = std::function<void(const std::exception_ptr& error)>;

  /// See at_backward_end().
  void at_end(AtEnd callback);

  /// A run begins. Counts its rules that may start backwards. If the run accumulates, also counts
  /// one contribution for each of its leaves with final hooks. Throws InvalidArgument if the final
  /// hooks of such a leaf have run.
  void begin_run(const Discovery& found, bool accumulates);
  /// The rule starts no further backward. Calls the final hooks of the leaves that waited for it.
  void settle(NestingRule& rule);
  /// A run has added its contribution to a leaf with final hooks. Calls them if it was the last.
  void arrived(const Tensor& leaf);

  /// Runs f, then the remaining final hooks, then the callbacks. Throws the error of f or of a
  /// hook, else the first error of a callback.
  template <class F>
  void run(F&& f) {
    std::exception_ptr error;
    streams_ = CurrentStreams::of_this_thread();
    current_->session = this;
    try {
      f();
      finish_leaves();
    } catch (...) {
      error = std::current_exception();
    }
    current_->session = nullptr;
    end(std::move(error));
  }

  /// The streams of the thread that started it. Gradients of leaves add up there; hooks run there.
  const CurrentStreams& streams() const { return streams_; }

  /// The session in progress on this thread, or null.
  static Session* current() { return current_->session; }
  /// For a worker: joins the session and returns the previous one.
  static Session* set_current(Session* session) {
    return std::exchange(current_->session, session);
  }

 private:
  friend class NestingRule;
  struct Leaf {
    int owed = 0;          // contributions that runs in progress will still make
    bool waiting = false;  // in waiting_
    bool called = false;   // its final hooks have run
  };
  template <class T>
  using Pool = std::vector<T, PoolAllocator<T>>;

  void forget(NestingRule& rule);
  void finish_leaves();
  void end(std::exception_ptr error);
  // Removes and returns the waiting leaves whose last contribution is there, or all of them.
  Pool<Tensor> take_waiting(bool all);
  void call_final_hooks(const Tensor& leaf) const;

  struct Current {
    Session* session = nullptr;
    NestingRule* rule = nullptr;
  };
  static constinit ThreadLocal<Current> current_;

  CurrentStreams streams_;
  std::mutex mutex_;
  std::vector<AtEnd> at_end_;
  int nesting_ = 0;       // rules not yet settled that may start backwards
  Pool<Tensor> waiting_;  // leaves that may get more contributions, in order of arrival
  std::unordered_map<const TensorImpl*, Leaf, std::hash<const TensorImpl*>, std::equal_to<>,
                     PoolAllocator<std::pair<const TensorImpl* const, Leaf>>>
      leaves_;  // the leaves with final hooks
};

/// Marks, for a scope, a running rule that may start backwards.
class NestingRule {
 public:
  explicit NestingRule(Session& session);
  ~NestingRule();
  NestingRule(const NestingRule&) = delete;
  NestingRule& operator=(const NestingRule&) = delete;

  /// The innermost rule of this kind on this thread, or null.
  static NestingRule* current() { return Session::current_->rule; }

 private:
  friend class Session;
  Session& session_;
  NestingRule* const outer_;
  bool counts_ = true;
};

/// A backward() that is the last one of the rule in progress: final hooks need not wait for the
/// rule.
void last_backward_of_rule(std::span<const Tensor> outputs, std::span<const Tensor> grads);

}  // namespace weft::autograd
