// An object made at its first use, which may be in several threads at once.
#pragma once

#include <atomic>
#include <memory>

#include "weft/core/base/compiler.h"

namespace weft {

/// Owns a T, or nothing yet. Looking at it is one load.
template <class T>
class Lazy {
 public:
  Lazy() = default;
  ~Lazy() { delete get(); }
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;

  /// Null before the first use.
  T* get() const { return object_.load(std::memory_order_acquire); }
  T& operator*() const { return *get(); }
  T* operator->() const { return get(); }
  explicit operator bool() const { return get() != nullptr; }

  /// The object; make() -> std::unique_ptr makes it if there is none. Threads that call at once get
  /// the same one; those that the others made are dropped.
  template <class Make>
  T& get_or_make(Make&& make) {
    if (T* const present = get()) return *present;
    auto mine = make();
    T* first = nullptr;
    if (!object_.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
      return *first;
    }
    return *mine.release();
  }

  /// While no other thread can look.
  void reset() { delete object_.exchange(nullptr, std::memory_order_acq_rel); }

 private:
  std::atomic<T*> object_{nullptr};
};

}  // namespace weft
