#include "weft/tests/memory/heap_limit.h"

#include <cstdlib>
#include <new>

// Strong, so that it also replaces a sanitizer's.
void* operator new(std::size_t bytes) {
  if (bytes <= std::size_t{weft::testing::kMostBytes}) {
    if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  }
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
