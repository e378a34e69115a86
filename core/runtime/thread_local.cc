#include "weft/core/runtime/thread_local.h"

#include <mutex>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_end.h"

namespace weft::detail {

constinit thread_local ThreadObjects* thread_objects = nullptr;

namespace {

void end_objects(void* kept) {
  auto* const mine = static_cast<ThreadObjects*>(kept);
  while (mine->count > 0) {
    const ThreadObjects::Made last = mine->made[--mine->count];
    // A destructor that uses the object again gets a new one, which is destroyed next.
    void* const object = mine->objects[last.number];
    mine->objects[last.number] = nullptr;
    last.destroy(object);
  }
  thread_objects = nullptr;
  delete mine;
}

unsigned number_of(std::atomic<unsigned>& number) {
  static constinit std::mutex mutex;
  static constinit unsigned last = 0;
  const std::lock_guard lock(mutex);
  if (number.load(std::memory_order_relaxed) == 0) {
    WEFT_CHECK(last + 1 < kThreadLocals, Internal, "thread_local", "more than ", kThreadLocals - 1);
    number.store(++last, std::memory_order_relaxed);
  }
  return number.load(std::memory_order_relaxed);
}

}  // namespace

void* make_thread_object(std::atomic<unsigned>& number, void* (*make)(), void (*destroy)(void*)) {
  const unsigned mine = number_of(number);
  if (!thread_objects) {
    static const ThreadEnd end(end_objects);
    thread_objects = new ThreadObjects;
    end.expect(thread_objects);
  }
  void* const object = make();  // may make other objects
  thread_objects->objects[mine] = object;
  thread_objects->made[thread_objects->count++] = {mine, destroy};
  return object;
}

}  // namespace weft::detail
