// Counts the calls of ::operator new of the whole program that links it, and makes one fail.
#pragma once

#include <cstdint>

namespace weft::testing {

std::int64_t heap_count();

/// The k-th call from now on (1: the next), in whatever thread, throws std::bad_alloc. One at a
/// time. Under a sanitizer, whose own ::operator new wins, none does.
class FailHeap {
 public:
  explicit FailHeap(std::int64_t k);
  ~FailHeap();
  FailHeap(const FailHeap&) = delete;
  FailHeap& operator=(const FailHeap&) = delete;
  bool fired() const;
};

}  // namespace weft::testing
