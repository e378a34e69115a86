// An object that is made at its first use, possibly by several threads at once.
#pragma once

#include <atomic>
#include <memory>

#include "weft/core/base/compiler.h"

namespace weft {

/// Owns a T, or nothing yet. Access is a single load.
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

  /// Returns the object; if there is none, make() makes it and returns a std::unique_ptr. Threads
  /// that call this at the same time get the same object; the other threads' objects are dropped.
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

  /// Only while no other thread can access it.
  void reset() { delete object_.exchange(nullptr, std::memory_order_acq_rel); }

 private:
  std::atomic<T*> object_{nullptr};
};

}  // namespace weft
