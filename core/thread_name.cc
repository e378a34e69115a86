#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "weft/core/trace.h"

#include "weft/core/thread_local.h"

namespace weft {
namespace {

struct Label {
  int number = -1;
  std::size_t size = 0;
  char name[47] = {};
};
constinit ThreadLocal<Label> labels;

}  // namespace

void set_thread_name(std::string_view name) {
  Label& label = *labels;
  label.size = std::min(name.size(), sizeof label.name);
  std::copy_n(name.data(), label.size, label.name);
  pthread_setname_np(pthread_self(), std::string(name.substr(0, 15)).c_str());
  detail::thread_renamed();
}

namespace detail {

int thread_number() {
  static constinit std::atomic<int> next{0};
  Label& label = *labels;
  if (label.number < 0) label.number = next.fetch_add(1, std::memory_order_relaxed);
  return label.number;
}

std::string thread_name() {
  const Label& label = *labels;
  if (label.size > 0) return {label.name, label.size};
  if (gettid() == getpid()) return "main";
  return "thread " + std::to_string(thread_number());
}

}  // namespace detail
}  // namespace weft
