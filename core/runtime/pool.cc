#include "weft/core/runtime/pool.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "weft/core/runtime/thread_end.h"

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_POOL_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_POOL_PLAIN 1
#endif
#endif
#ifndef WEFT_POOL_PLAIN
#define WEFT_POOL_PLAIN 0
#endif

namespace weft {
namespace {

constexpr std::size_t kStep = 16;
constexpr std::size_t kMaxBytes = 1024;
constexpr int kClasses = kMaxBytes / kStep;
// AddressSanitizer can only see a use after free when every object is its own heap block.
constexpr bool kPlain = WEFT_POOL_PLAIN;

constinit std::atomic<std::int64_t> heap_allocations{0};

void* heap_allocate(std::size_t bytes) {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  return ::operator new(bytes);
}

struct FreeBlock {
  FreeBlock* next;
  FreeBlock* next_batch;  // only in the first block of a batch on a central list
};
static_assert(sizeof(FreeBlock) <= kStep);

std::size_t block_bytes(int size_class) { return (size_class + 1) * kStep; }

// Blocks move between a thread and the central list in batches of this many: about 4 KiB.
int batch_size(int size_class) {
  return std::max(4, static_cast<int>(std::min<std::size_t>(64, 4096 / block_bytes(size_class))));
}

// Shared by all threads. All batches are full except those that an ending thread leaves.
struct CentralList {
  std::mutex mutex;
  FreeBlock* batches = nullptr;

  void put(FreeBlock* first) {
    std::lock_guard lock(mutex);
    first->next_batch = std::exchange(batches, first);
  }

  FreeBlock* take() {
    std::lock_guard lock(mutex);
    FreeBlock* first = batches;
    if (first) batches = first->next_batch;
    return first;
  }
};
constinit CentralList central[kClasses];

// A thread's blocks of one size. Blocks are taken from `ready`, and freed ones are added to it
// until it holds a batch, which then becomes `spare`; a second full batch goes to the central list.
// So a thread whose number of blocks varies by less than a batch never locks.
struct ThreadList {
  FreeBlock* ready = nullptr;
  int ready_count = 0;
  int ready_limit = 0;  // 0: the thread's first free takes the slow path
  FreeBlock* spare = nullptr;
};

}  // namespace

namespace detail {

struct PoolCache {
  ThreadList lists[kClasses];
};

// Threads that have no cache, not yet or no longer, point to this one. It is empty and full at
// once, so both allocate and free take the slow path, and nothing is ever written to it.
constinit PoolCache no_pool_cache;
// Not in the unnamed namespace: there the gold linker writes a relocation against another symbol
// for an initial-exec variable, which is only right if the variable is the library's first.
constinit thread_local PoolCache* pool_cache __attribute__((tls_model("initial-exec"))) =
    &no_pool_cache;

}  // namespace detail

namespace {

using detail::no_pool_cache;
using detail::PoolCache;

// Gives the blocks of an ending thread to the others.
void end_cache(void* kept) {
  detail::pool_cache = &no_pool_cache;
  auto* const cache = static_cast<PoolCache*>(kept);
  for (int i = 0; i < kClasses; ++i) {
    if (cache->lists[i].ready) central[i].put(cache->lists[i].ready);
    if (cache->lists[i].spare) central[i].put(cache->lists[i].spare);
  }
  delete cache;
}

// The thread's list of this size; makes a cache if the thread has none. Throws bad_alloc.
ThreadList& own_list(int size_class) {
  if (detail::pool_cache == &no_pool_cache) {
    static const detail::ThreadEnd end(end_cache);
    heap_allocations.fetch_add(1, std::memory_order_relaxed);
    auto* const cache = new PoolCache;
    for (int i = 0; i < kClasses; ++i) cache->lists[i].ready_limit = batch_size(i);
    detail::pool_cache = cache;
    end.expect(cache);
  }
  return detail::pool_cache->lists[size_class];
}

// A new batch, linked in address order.
FreeBlock* carve(int size_class) {
  const std::size_t bytes = block_bytes(size_class);
  const int count = batch_size(size_class);
  char* const memory = static_cast<char*>(heap_allocate(bytes * count));
  FreeBlock* first = nullptr;
  for (int i = count - 1; i >= 0; --i) {
    first = ::new (memory + i * bytes) FreeBlock{first, nullptr};
  }
  return first;
}

int length(const FreeBlock* block) {
  int n = 0;
  for (; block; block = block->next) ++n;
  return n;
}

void* allocate_slow(int size_class) {
  ThreadList& list = own_list(size_class);
  FreeBlock* batch = std::exchange(list.spare, nullptr);
  if (!batch) batch = central[size_class].take();
  if (!batch) batch = carve(size_class);
  list.ready = batch->next;
  list.ready_count = length(list.ready);
  return batch;
}

void free_slow(void* p, int size_class) noexcept {
  auto* const block = ::new (p) FreeBlock{nullptr, nullptr};
  ThreadList* list = nullptr;
  try {
    list = &own_list(size_class);
  } catch (const std::bad_alloc&) {
    // This thread has no cache: the central list takes its blocks.
  }
  if (!list) {
    central[size_class].put(block);
    return;
  }
  if (list->ready_count >= list->ready_limit) {
    if (list->spare) central[size_class].put(list->spare);
    list->spare = std::exchange(list->ready, nullptr);
    list->ready_count = 0;
  }
  block->next = list->ready;
  list->ready = block;
  ++list->ready_count;
}

int class_of(std::size_t bytes) { return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / kStep); }

}  // namespace

void* pool_allocate(std::size_t bytes) {
  if (kPlain || bytes > kMaxBytes) return heap_allocate(bytes);
  const int size_class = class_of(bytes);
  ThreadList& list = detail::pool_cache->lists[size_class];
  FreeBlock* const block = list.ready;
  if (!block) [[unlikely]]
    return allocate_slow(size_class);
  list.ready = block->next;
  --list.ready_count;
  return block;
}

void pool_free(void* p, std::size_t bytes) noexcept {
  if (!p) return;
  if (kPlain || bytes > kMaxBytes) return ::operator delete(p);
  const int size_class = class_of(bytes);
  ThreadList& list = detail::pool_cache->lists[size_class];
  if (list.ready_count >= list.ready_limit) [[unlikely]]
    return free_slow(p, size_class);
  list.ready = ::new (p) FreeBlock{list.ready, nullptr};
  ++list.ready_count;
}

std::int64_t pool_heap_allocations() { return heap_allocations.load(std::memory_order_relaxed); }

}  // namespace weft
