#include "weft/core/runtime/thread_name.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <string_view>

#include "weft/core/runtime/thread_local.h"

namespace weft {
namespace {

struct Label {
  int number = -1;
  std::size_t size = 0;
  char name[47] = {};
};
constinit ThreadLocal<Label> labels;

// Null if there is no memory for it: the thread then has no name.
Label* label_of_thread() noexcept {
  try {
    return &*labels;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void set_thread_name(std::string_view name) {
  if (Label* const label = label_of_thread()) {
    label->size = std::min(name.size(), sizeof label->name);
    std::copy_n(name.data(), label->size, label->name);
  }
  pthread_setname_np(pthread_self(), std::string(name.substr(0, 15)).c_str());
  detail::thread_renamed();
}

namespace detail {

int thread_number() {
  static constinit std::atomic<int> next{0};
  Label* const label = label_of_thread();
  if (label && label->number >= 0) return label->number;
  const int number = next.fetch_add(1, std::memory_order_relaxed);
  if (label) label->number = number;
  return number;
}

std::string thread_name() {
  const Label* const label = label_of_thread();
  if (label && label->size > 0) return {label->name, label->size};
  if (gettid() == getpid()) return "main";
  return "thread " + std::to_string(thread_number());
}

}  // namespace detail
}  // namespace weft
