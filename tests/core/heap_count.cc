#include "weft/tests/core/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace weft::testing {
namespace {
constinit std::atomic<std::int64_t> calls{0};
}

std::int64_t heap_count() { return calls.load(std::memory_order_relaxed); }

}  // namespace weft::testing

// Weak: a sanitizer's own replacement wins; nothing is counted then.
__attribute__((weak)) void* operator new(std::size_t bytes) {
  weft::testing::calls.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((weak)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((weak)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }
