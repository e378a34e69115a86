// What is done when a thread ends, with what was kept for it.
#pragma once

#include <pthread.h>

namespace weft::detail {

/// In place of the destructor of a thread_local variable: it runs after those of all such variables
/// of the program, which may use weft to their end. What they make anew is ended in turn, for some
/// rounds (PTHREAD_DESTRUCTOR_ITERATIONS). It does not run in the thread that ends the process:
/// there the destructors of static objects are yet to come. Only as a static object, which needs
/// one of the process's 1024 keys; if there is none left, threads leave what they had.
class ThreadEnd {
 public:
  explicit ThreadEnd(void (*end)(void*)) : made_(pthread_key_create(&key_, end) == 0) {}
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;

  /// The calling thread will end with end(kept); not null.
  void expect(const void* kept) const {
    if (made_) pthread_setspecific(key_, kept);
  }

 private:
  pthread_key_t key_;
  bool made_;
};

}  // namespace weft::detail
