// Recycled memory for the small objects a training step makes and drops (tensors, tape nodes):
// after the first step they cost no heap allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft {

/// At least `bytes` bytes, aligned like memory of the global new. Sizes up to 1 KiB come from
/// per-thread free lists; a thread that frees more than it takes gives blocks to a shared list, so
/// a producer and a consumer thread reach a steady state. Memory for small blocks is never given
/// back to the system. Larger sizes, and all sizes under AddressSanitizer, use the global new.
void* pool_allocate(std::size_t bytes);
void pool_free(void* p, std::size_t bytes) noexcept;

/// How often the pool has called the global new so far, in all threads. Constant in a steady state.
std::int64_t pool_heap_allocations();

/// Base class that routes new and delete of a class family to the pool. Needs a virtual destructor
/// in the family, so that the size handed back is that of the most derived class.
struct Pooled {
  static void* operator new(std::size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* p, std::size_t bytes) { pool_free(p, bytes); }
};

/// Standard allocator over the pool, for the rare node-based container in a hot path.
template <class T>
struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}
  T* allocate(std::size_t n) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return static_cast<T*>(pool_allocate(n * sizeof(T)));
  }
  void deallocate(T* p, std::size_t n) { pool_free(p, n * sizeof(T)); }
  template <class U>
  friend bool operator==(const PoolAllocator&, const PoolAllocator<U>&) {
    return true;
  }
};

}  // namespace weft
