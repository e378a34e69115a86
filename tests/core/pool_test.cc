#include "weft/core/runtime/pool.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace weft {
namespace {

// Under AddressSanitizer every object is its own heap block, and nothing is recycled.
bool recycles() {
  const auto before = pool_heap_allocations();
  for (int i = 0; i < 1000; ++i) pool_free(pool_allocate(48), 48);
  return pool_heap_allocations() < before + 1000;
}

TEST(Pool, BlocksAreDistinctAlignedAndLargeEnough) {
  for (std::size_t bytes : {0, 1, 15, 16, 17, 80, 1000, 1008, 1024, 1025, 5000}) {
    std::vector<char*> blocks;
    std::set<char*> distinct;
    for (int i = 0; i < 300; ++i) {
      auto* p = static_cast<char*>(pool_allocate(bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % __STDCPP_DEFAULT_NEW_ALIGNMENT__, 0u);
      std::memset(p, i & 0xff, bytes);
      blocks.push_back(p);
      distinct.insert(p);
    }
    EXPECT_EQ(distinct.size(), 300u);
    for (int i = 0; i < 300; ++i) {
      for (std::size_t j = 0; j < bytes; ++j) ASSERT_EQ(blocks[i][j], static_cast<char>(i));
      pool_free(blocks[i], bytes);
    }
  }
  pool_free(nullptr, 16);
}

TEST(Pool, SteadyStateTakesNothingFromTheHeap) {
  if (!recycles()) GTEST_SKIP() << "plain heap under AddressSanitizer";
  const auto step = [] {
    std::vector<void*> live;
    live.reserve(1000);
    for (int i = 0; i < 1000; ++i) live.push_back(pool_allocate(i % 1024 + 1));
    for (int i = 0; i < 1000; ++i) pool_free(live[i], i % 1024 + 1);
  };
  step();
  const auto before = pool_heap_allocations();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(pool_heap_allocations(), before);
}

// One thread makes objects and another one frees them: without a way back the first would allocate
// for ever.
TEST(Pool, ProducerAndConsumerReachASteadyState) {
  if (!recycles()) GTEST_SKIP() << "plain heap under AddressSanitizer";
  constexpr int kItems = 20000, kQueue = 100, kBytes = 96;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<void*> queue;
  const auto before = pool_heap_allocations();
  std::thread consumer([&] {
    for (int i = 0; i < kItems; ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      void* p = queue.front();
      queue.pop_front();
      lock.unlock();
      changed.notify_all();
      pool_free(p, kBytes);
    }
  });
  for (int i = 0; i < kItems; ++i) {
    void* p = pool_allocate(kBytes);
    std::memset(p, 1, kBytes);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.size() < kQueue; });
    queue.push_back(p);
    lock.unlock();
    changed.notify_all();
  }
  consumer.join();
  // At most the queue and two batches in each thread were live, in blocks of a few KiB.
  EXPECT_LE(pool_heap_allocations() - before, 15);
}

TEST(Pool, AThreadLeavesItsBlocksToOthers) {
  if (!recycles()) GTEST_SKIP() << "plain heap under AddressSanitizer";
  const auto work = [] {
    std::vector<void*> live(500);
    for (void*& p : live) p = pool_allocate(200);
    for (void* p : live) pool_free(p, 200);
  };
  std::thread(work).join();
  const auto before = pool_heap_allocations();
  for (int i = 0; i < 10; ++i) std::thread(work).join();
  EXPECT_EQ(pool_heap_allocations() - before, 10) << "one list of lists per thread, no blocks";
}

// Thread-local objects are destroyed in any order, some after the pool's own.
struct FreesLate {
  void* p = nullptr;
  ~FreesLate() {
    pool_free(p, 64);
    pool_free(pool_allocate(64), 64);
  }
};

TEST(Pool, WorksWhileAThreadIsBeingTornDown) {
  const auto work = [] {
    thread_local FreesLate late;  // made before the cache
    late.p = pool_allocate(64);
  };
  std::thread(work).join();
  const auto before = pool_heap_allocations();
  for (int i = 0; i < 200; ++i) std::thread(work).join();
  if (recycles()) {
    EXPECT_EQ(pool_heap_allocations() - before, 200) << "a block was lost";
  }
}

TEST(Pool, ClassFamilyAndContainer) {
  struct Base : Pooled {
    virtual ~Base() = default;
    char data[40];
  };
  struct Derived : Base {
    char more[400];
  };
  for (int i = 0; i < 100; ++i) {
    Base* p = new Derived;
    delete p;
  }
  std::list<int, PoolAllocator<int>> list;
  for (int i = 0; i < 100; ++i) list.push_back(i);
  EXPECT_EQ(list.size(), 100u);
}

TEST(Pool, ManyThreadsExchangeBlocks) {
  std::mutex mutex;
  std::vector<int*> shared;
  std::set<int> live;  // the numbers in `shared`
  int lost = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5000; ++i) {
        auto* p = static_cast<int*>(pool_allocate(32));
        *p = 5000 * t + i;
        int* other = nullptr;
        {
          std::lock_guard lock(mutex);
          shared.push_back(p);
          live.insert(5000 * t + i);
          if (shared.size() > 50) std::swap(shared[i % shared.size()], shared.back());
          if (shared.size() > 20) {
            other = shared.back();
            shared.pop_back();
            lost += live.erase(*other) == 0;  // another thread had the same block
          }
        }
        pool_free(other, 32);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int* p : shared) {
    lost += live.erase(*p) == 0;
    pool_free(p, 32);
  }
  EXPECT_EQ(lost, 0);
}

}  // namespace
}  // namespace weft
