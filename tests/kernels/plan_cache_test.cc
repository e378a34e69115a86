// Plans that are built at the same time, found without a lock, and dropped.
#include "weft/kernels/plan/plan_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

#include "weft/tests/core/heap_count.h"

namespace weft {
namespace {

/// A plan that counts the live plans of its kind, and has its key.
struct Counted final : Plan {
  explicit Counted(std::int64_t k) : key(k) { ++alive; }
  ~Counted() override {
    key = -1;
    --alive;
  }
  std::int64_t key;
  static inline std::atomic<int> alive = 0;
};

using Cache = PlanCache<Counted, 3>;

PlanKey<3> key_of(std::int64_t i) { return {i, 7, i % 5}; }

PlanRef<Counted> get(Cache& cache, std::int64_t i) {
  return cache.get(key_of(i), [&] { return std::make_unique<Counted>(i); });
}

TEST(PlanCache, BuildsEachPlanOnce) {
  Cache cache;
  int built = 0;
  const auto get = [&](std::int64_t i) {
    return cache.get(key_of(i), [&] {
      ++built;
      return std::make_unique<Counted>(i);
    });
  };
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t i = 0; i < 500; ++i) ASSERT_EQ(get(i)->key, i);
  }
  EXPECT_EQ(built, 500);
  EXPECT_EQ(cache.size(), 500u);
}

TEST(PlanCache, FindingAgainTouchesNoHeap) {
  Cache cache;
  get(cache, 1);
  const std::int64_t before = testing::heap_count();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(get(cache, 1)->key, 1);
  EXPECT_EQ(testing::heap_count(), before);
}

TEST(PlanCache, AFailureLeavesNothingBehind) {
  Cache cache;
  const auto fail = []() -> std::unique_ptr<Counted> { throw std::runtime_error("no"); };
  EXPECT_THROW(cache.get(key_of(1), fail), std::runtime_error);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(get(cache, 1)->key, 1);
}

// Each of two builders waits until the other one has begun: one at a time, neither would end.
TEST(PlanCache, DifferentPlansAreBuiltSideBySide) {
  Cache cache;
  std::latch begun(2);
  const auto build = [&](std::int64_t i) {
    const auto plan = cache.get(key_of(i), [&] {
      begun.arrive_and_wait();
      return std::make_unique<Counted>(i);
    });
    EXPECT_EQ(plan->key, i);
  };
  std::thread other(build, 1);
  build(2);
  other.join();
}

// Existing plans are found while another one is being built.
TEST(PlanCache, ABuilderHoldsNobodyUp) {
  Cache cache;
  get(cache, 1);
  std::latch begun(1), end(1);
  std::thread builder([&] {
    cache.get(key_of(2), [&] {
      begun.count_down();
      end.wait();
      return std::make_unique<Counted>(2);
    });
  });
  begun.wait();
  EXPECT_EQ(get(cache, 1)->key, 1);
  EXPECT_EQ(get(cache, 3)->key, 3);
  end.count_down();
  builder.join();
}

TEST(PlanCache, ThreadsThatWantTheSamePlanBuildItOnce) {
  for (std::int64_t round = 0; round < 50; ++round) {
    Cache cache;
    std::atomic<int> built = 0;
    std::latch start(4);
    const auto work = [&] {
      start.arrive_and_wait();
      for (std::int64_t i = 0; i < 20; ++i) {
        const auto plan = cache.get(key_of(i), [&] {
          ++built;
          return std::make_unique<Counted>(i);
        });
        EXPECT_EQ(plan->key, i);
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
    ASSERT_EQ(built, 20);
  }
}

// Of the threads that wait for a plan whose builder fails, one builds it and the others get that
// plan.
TEST(PlanCache, WhoWaitedForAFailureTriesAgain) {
  Cache cache;
  std::latch begun(1), others(3);
  std::atomic<int> built = 0, failed = 0;
  std::thread first([&] {
    EXPECT_THROW(cache.get(key_of(1),
                           [&]() -> std::unique_ptr<Counted> {
                             begun.count_down();
                             others.wait();
                             ++failed;
                             throw std::runtime_error("no");
                           }),
                 std::runtime_error);
  });
  begun.wait();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      others.count_down();
      const auto plan = cache.get(key_of(1), [&] {
        EXPECT_EQ(failed, 1);
        ++built;
        return std::make_unique<Counted>(1);
      });
      EXPECT_EQ(plan->key, 1);
    });
  }
  first.join();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(built, 1);
}

TEST(PlanCache, ForgetsWhatWasNotUsedForTheLongestTime) {
  Cache cache(4);
  for (std::int64_t i = 0; i < 4; ++i) get(cache, i);
  for (const std::int64_t i : {0, 2, 3}) get(cache, i);
  get(cache, 4);  // in place of 1
  std::vector<std::int64_t> built;
  for (const std::int64_t i : {0, 2, 3, 4, 1}) {
    cache.get(key_of(i), [&] {
      built.push_back(i);
      return std::make_unique<Counted>(i);
    });
  }
  EXPECT_EQ(built, std::vector<std::int64_t>{1});
}

// As for a model whose inputs have many lengths.
TEST(PlanCache, KeepsABoundedNumber) {
  const int before = Counted::alive;
  {
    Cache cache;
    for (std::int64_t i = 0; i < 20'000; ++i) {
      ASSERT_EQ(get(cache, i)->key, i);
      ASSERT_LE(Counted::alive - before, int(kMostPlans));
    }
    EXPECT_EQ(cache.size(), kMostPlans);
  }
  EXPECT_EQ(Counted::alive, before);
}

TEST(PlanCache, KeepsWhatIsOnLoan) {
  Cache cache(2);
  std::vector<PlanRef<Counted>> loans;
  for (std::int64_t i = 0; i < 5; ++i) loans.push_back(get(cache, i));
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(loans[std::size_t(i)]->key, i);
  EXPECT_EQ(cache.size(), 5u);  // more than it should keep, but all are in use
  loans.clear();
  const int alive = Counted::alive;
  for (std::int64_t i = 10; i < 50; ++i) get(cache, i);
  EXPECT_LE(Counted::alive, alive);
}

// Few places and many keys, so entries are replaced all the time while others read.
TEST(PlanCache, ReadersAndBuildersRaceForFewPlaces) {
  constexpr int kThreads = 4, kRounds = 20000;
  const int before = Counted::alive;
  {
    Cache cache(8);
    std::latch start(kThreads);
    const auto work = [&](std::int64_t seed) {
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        seed = (seed * 1103515245 + 12345) % 2147483648;
        const std::int64_t key = seed / 65536 % 24;
        const PlanRef<Counted> plan = get(cache, key);
        EXPECT_EQ(plan->key, key);
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
    for (std::thread& t : threads) t.join();
    EXPECT_LE(cache.size(), 8u + kThreads);
  }
  EXPECT_EQ(Counted::alive, before);
}

}  // namespace
}  // namespace weft
