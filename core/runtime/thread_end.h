// Cleans up what was kept for a thread when the thread ends.
#pragma once

#include <pthread.h>

namespace weft::detail {

/// Replaces the destructor of a thread_local variable: it runs after the destructors of all such
/// variables of the program, which may use weft until their end. Objects that these make again are
/// ended in turn, for some rounds (PTHREAD_DESTRUCTOR_ITERATIONS). It does not run in the thread
/// that ends the process: there the destructors of static objects run later. Only as a static
/// object. It needs one of the process's 1024 keys; if none is left, threads leave what they had.
class ThreadEnd {
 public:
  explicit ThreadEnd(void (*end)(void*)) : made_(pthread_key_create(&key_, end) == 0) {}
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;

  /// The calling thread will call end(kept) when it ends; `kept` is not null.
  void expect(const void* kept) const {
    if (made_) pthread_setspecific(key_, kept);
  }

 private:
  pthread_key_t key_;
  bool made_;
};

}  // namespace weft::detail
