// Finds the first index out of range and tells the host, which does not wait for it
// (core/runtime/index_reports.h).
#pragma once

#include "weft/core/runtime/index_reports.h"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {

__device__ inline bool in_range(std::int64_t index, std::int64_t length) {
  return static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(length);
}

struct Least {
  __device__ static std::int64_t fold(std::int64_t a, std::int64_t b) { return b < a ? b : a; }
};

/// A check of n indices, for one block to do.
struct IndexCheck {
  std::int64_t n, bound, ignored;
  bool ignores, recorded;
  BadIndex* result = nullptr;  // page-locked memory, which the host reads, or writes, meanwhile

  /// All kThreads threads of the block must call it. at(i) is the i-th index.
  template <int kThreads, class At>
  __device__ void report(const At& at) const {
    __shared__ std::int64_t shared[kThreads];
    std::int64_t first = n;
    for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
      const std::int64_t index = at(i);
      if (!in_range(index, bound) && !(ignores && index == ignored)) {
        first = i;
        break;  // a thread's indices ascend, so its first one is its lowest
      }
    }
    first = fold_lanes<Least>(first, shared, Place(kThreads, 1, true), kThreads, 1);
    if (threadIdx.x != 0) return;
    if (first == n) {
      report_good();
    } else if (!recorded || load(&result->count) == 0) {
      result->value = at(first);
      store_last(&result->count, first + 1);
    }
  }
  /// For one thread, where all indices are known to be in range.
  __device__ void report_good() const {
    if (!recorded) store_last(&result->count, 0);
  }

 private:
  __device__ static std::int64_t load(const std::int64_t* p) {
#ifdef __CUDA_ARCH__
    return *static_cast<const volatile std::int64_t*>(p);
#else
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
  }
  __device__ static void store_last(std::int64_t* p, std::int64_t value) {
#ifdef __CUDA_ARCH__
    __threadfence_system();
    *static_cast<volatile std::int64_t*>(p) = value;
#else
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
#endif
  }
};

/// For the kernel that is launched next on `stream`. index: the shape, for the error's text.
inline IndexCheck queued_check(const Stream& stream, const IndexBounds& bounds,
                               const Shape& index) {
  use_device(stream.device.index);
  const bool recorded = capturing(stream);
  return {numel(index),
          bounds.bound,
          bounds.ignored.value_or(0),
          bounds.ignored.has_value(),
          recorded,
          index_reports(true)->expect(cuda_runtime(), bounds, index, recorded)};
}

/// Calls f(check), which launches the kernel that does the check on `stream`.
template <class F>
void launch_check(const Stream& stream, const IndexBounds& bounds, const Shape& index, const F& f) {
  const IndexCheck check = queued_check(stream, bounds, index);
  try {
    f(check);
  } catch (...) {
    index_reports(true)->forget(check.result);
    throw;
  }
}

}  // namespace weft::cuda
