#include "weft/tests/core/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

// Emulated CUDA devices use the same heap, unlike NVIDIA's libraries.
extern "C" __attribute__((weak)) bool weft_cuda_emulator_runs();

namespace weft::testing {
namespace {
constinit std::atomic<std::int64_t> calls{0};
constinit std::atomic<std::int64_t> until_failure{0};  // 0: none; negative: it has happened
}  // namespace

std::int64_t heap_count() { return calls.load(std::memory_order_relaxed); }

FailHeap::FailHeap(std::int64_t k) { until_failure = k; }
FailHeap::~FailHeap() { until_failure = 0; }
bool FailHeap::fired() const { return until_failure < 0; }

namespace {

bool fails_now() {
  std::int64_t left = until_failure.load(std::memory_order_relaxed);
  while (left > 0 && !until_failure.compare_exchange_weak(left, left == 1 ? -1 : left - 1)) {
  }
  return left == 1;
}

}  // namespace
}  // namespace weft::testing

// Weak: a sanitizer's own replacement is used instead, and nothing is counted.
__attribute__((weak)) void* operator new(std::size_t bytes) {
  if (!weft_cuda_emulator_runs || !weft_cuda_emulator_runs()) {
    weft::testing::calls.fetch_add(1, std::memory_order_relaxed);
    if (weft::testing::fails_now()) throw std::bad_alloc();
  }
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((weak)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((weak)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }
