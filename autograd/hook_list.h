// The hooks of a node or a leaf.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "weft/core/base/lazy.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// Functions in the order in which they were added. Several threads may call, add and remove.
template <class F>
class HookList {
 public:
  std::uint64_t add(F f) {
    std::lock_guard lock(mutex_);
    entries_.push_back({++last_id_, std::make_shared<F>(std::move(f))});
    return last_id_;
  }
  void remove(std::uint64_t id) {
    std::shared_ptr<F> gone;  // destroyed after the unlock: what it owns may remove others
    std::lock_guard lock(mutex_);
    auto at = entries_.begin();
    while (at != entries_.end() && at->id != id) ++at;
    if (at == entries_.end()) return;
    gone = std::move(at->f);
    entries_.erase(at);
  }
  /// Calls call(f) for each function f; skips those that are removed meanwhile.
  template <class Call>
  void for_each(Call&& call) {
    std::uint64_t done = 0;
    while (const std::shared_ptr<F> f = next(done)) call(*f);
  }

 private:
  struct Entry {
    std::uint64_t id;
    std::shared_ptr<F> f;
  };

  std::shared_ptr<F> next(std::uint64_t& done) {
    std::lock_guard lock(mutex_);
    for (const Entry& e : entries_) {
      if (e.id <= done) continue;
      done = e.id;
      return e.f;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::uint64_t last_id_ = 0;
  std::vector<Entry> entries_;  // ascending ids
};

/// A list that is made for the first function. Handles of its functions do not keep it alive.
template <class F>
class LazyHooks {
 public:
  /// Null until the first function is added.
  HookList<F>* get() const {
    const std::shared_ptr<HookList<F>>* list = list_.get();
    return list ? list->get() : nullptr;
  }
  const std::shared_ptr<HookList<F>>& ensure() {
    return list_.get_or_make([] {
      return std::make_unique<std::shared_ptr<HookList<F>>>(std::make_shared<HookList<F>>());
    });
  }

 private:
  Lazy<std::shared_ptr<HookList<F>>> list_;
};

/// A hook on the gradient of one output of a node.
struct OutputHook {
  int output;
  std::function<Tensor(const Tensor&)> hook;
};
using OutputHooks = HookList<OutputHook>;
/// Calls the hooks with the gradients of all outputs, which they may replace. Throws Shape for a
/// replacement with another shape, dtype or device.
void run_grad_hooks(OutputHooks& hooks, std::span<Tensor> gradients);

using LeafHook = std::function<void(const Tensor& leaf)>;

}  // namespace weft::autograd
