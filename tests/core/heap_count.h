// Counts all calls of ::operator new in the program that links it, and can make one fail.
#pragma once

#include <cstdint>

namespace weft::testing {

std::int64_t heap_count();

/// The k-th call from now on (1: the next), in any thread, throws std::bad_alloc. One object at a
/// time. Under a sanitizer, which has its own ::operator new, no call fails.
class FailHeap {
 public:
  explicit FailHeap(std::int64_t k);
  ~FailHeap();
  FailHeap(const FailHeap&) = delete;
  FailHeap& operator=(const FailHeap&) = delete;
  bool fired() const;
};

}  // namespace weft::testing
