// Objects of which each thread has its own, made at the first use.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace weft {
namespace detail {

/// The largest number of ThreadLocals, plus one: number 0 is not used.
inline constexpr unsigned kThreadLocals = 32;

struct ThreadObjects {
  struct Made {
    unsigned number;
    void (*destroy)(void*);
  };
  std::array<void*, kThreadLocals> objects = {};  // by the numbers of their ThreadLocals
  std::array<Made, kThreadLocals> made = {};      // in the order in which they were made
  std::size_t count = 0;                          // of made
};

// One pointer for all of them, for the reason given in core/runtime/thread_state.h.
#if defined(__CUDACC__)  // as in core/runtime/thread_state.h
extern constinit thread_local ThreadObjects* thread_objects;
#else
extern constinit thread_local ThreadObjects* thread_objects
    __attribute__((tls_model("initial-exec")));
#endif

/// Makes the calling thread's object; the ThreadLocal gets its number if it has none yet.
void* make_thread_object(std::atomic<unsigned>& number, void* (*make)(), void (*destroy)(void*));

}  // namespace detail

/// Each thread's own T; replaces a thread_local variable; only as a static object. A thread's
/// objects are destroyed when it ends (core/runtime/thread_end.h says when that is), the last made
/// first.
template <class T>
class ThreadLocal {
 public:
  constexpr ThreadLocal() = default;
  ThreadLocal(const ThreadLocal&) = delete;
  ThreadLocal& operator=(const ThreadLocal&) = delete;

  T& operator*() {
    if (T* const found = get()) [[likely]]
      return *found;
    return *static_cast<T*>(detail::make_thread_object(
        number_, []() -> void* { return new T(); },
        [](void* object) { delete static_cast<T*>(object); }));
  }
  T* operator->() { return &**this; }
  /// Null if the thread has none yet.
  T* get() const {
    const detail::ThreadObjects* const mine = detail::thread_objects;
    if (!mine) return nullptr;
    return static_cast<T*>(mine->objects[number_.load(std::memory_order_relaxed)]);
  }

 private:
  std::atomic<unsigned> number_{0};
};

}  // namespace weft
