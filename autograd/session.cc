#include "weft/autograd/session.h"

#include "weft/autograd/autograd.h"
#include "weft/autograd/discovery.h"
#include "weft/autograd/nesting_rule.h"
#include "weft/core/base/error.h"

namespace weft::autograd {

constinit ThreadLocal<Session::Current> Session::current_;

NestingRule::NestingRule(Session& session)
    : session_(session), outer_(std::exchange(Session::current_->rule, this)) {}

const void* nesting_rule() { return NestingRule::current(); }

NestingRule::~NestingRule() {
  Session::current_->rule = outer_;
  session_.forget(*this);
}

void Session::at_end(AtEnd callback) {
  const std::lock_guard lock(mutex_);
  at_end_.push_back(std::move(callback));
}

void Session::begin_run(const Discovery& found, bool accumulates) {
  const std::lock_guard lock(mutex_);
  for (const Task& task : found.tasks) {
    if (!task.wanted) continue;
    if (!task.leaf) {
      nesting_ += task.runs && task.node().nests();
    } else if (accumulates && meta_of(task.impl())->leaf->final_hooks.get()) {
      Leaf& leaf = leaves_[task.impl()];
      WEFT_CHECK(!leaf.called, InvalidArgument, "backward", "a leaf (", task.impl()->shape,
                 ") would get a contribution after its final hooks ran: this backward was started "
                 "by a hook; start it in at_backward_end");
      ++leaf.owed;
    }
  }
}

void Session::settle(NestingRule& rule) {
  forget(rule);
  for (const Tensor& leaf : take_waiting(false)) call_final_hooks(leaf);
}

void Session::forget(NestingRule& rule) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(rule.counts_, false)) --nesting_;
}

void Session::arrived(const Tensor& leaf) {
  {
    const std::lock_guard lock(mutex_);
    Leaf& entry = leaves_[leaf.impl()];
    // Negative if the first hook was added while this backward ran: then it waits for the end.
    if (--entry.owed != 0 || nesting_ != 0) {
      if (!std::exchange(entry.waiting, true)) waiting_.push_back(leaf);
      return;
    }
    entry.called = true;
    if (entry.waiting) std::erase_if(waiting_, [&](const Tensor& x) { return x.same(leaf); });
  }
  call_final_hooks(leaf);
}

Session::Pool<Tensor> Session::take_waiting(bool all) {
  Pool<Tensor> taken;
  const std::lock_guard lock(mutex_);
  if (!all && nesting_ != 0) return taken;
  std::erase_if(waiting_, [&](const Tensor& x) {
    Leaf& leaf = leaves_[x.impl()];
    if (!all && leaf.owed != 0) return false;
    leaf.called = true;
    taken.push_back(x);
    return true;
  });
  return taken;
}

void Session::call_final_hooks(const Tensor& leaf) const {
  const StreamScope stream(streams_.on(leaf.device()));
  meta_of(leaf)->leaf->final_hooks.get()->for_each([&](const LeafHook& hook) { hook(leaf); });
}

// Also calls the hooks of leaves that a rule or hook which caught an error left waiting.
void Session::finish_leaves() {
  if (waiting_.empty()) return;
  const NoGrad no_grad;
  const Scoped autocast(&ThreadState::autocast, ThreadState().autocast);
  for (auto rest = take_waiting(true); !rest.empty(); rest = take_waiting(true)) {
    for (const Tensor& leaf : rest) call_final_hooks(leaf);
  }
}

void Session::end(std::exception_ptr error) {
  nesting_ = 0;
  waiting_.clear();
  leaves_.clear();
  // A callback may start a backward of its own, with callbacks of its own.
  std::vector<AtEnd> callbacks;
  callbacks.swap(at_end_);
  const std::exception_ptr of_backward = error;
  for (const AtEnd& callback : callbacks) {
    try {
      callback(of_backward);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  callbacks.clear();
  if (at_end_.empty()) callbacks.swap(at_end_);  // keeps the memory
  if (error) std::rethrow_exception(error);
}

}  // namespace weft::autograd
