#include "weft/core/runtime/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

using Ranges = std::set<std::pair<std::int64_t, std::int64_t>>;

Ranges ranges_of(int team, std::int64_t n, std::int64_t grain) {
  const Scoped threads(&ThreadState::num_threads, team);
  std::mutex mutex;
  Ranges ranges;
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    std::lock_guard lock(mutex);
    EXPECT_TRUE(ranges.emplace(begin, end).second);
  });
  return ranges;
}

TEST(ParallelFor, PartitionIsOneRangePerThread) {
  EXPECT_EQ(ranges_of(3, 10, 1), (Ranges{{0, 4}, {4, 7}, {7, 10}}));
  EXPECT_EQ(ranges_of(2, 100, 50), (Ranges{{0, 50}, {50, 100}}));
  EXPECT_EQ(ranges_of(8, 3, 1), (Ranges{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(ranges_of(1, 10, 1), (Ranges{{0, 10}}));
  EXPECT_EQ(ranges_of(4, 0, 1), Ranges{});
  EXPECT_EQ(ranges_of(4, 5, 0), (Ranges{{0, 2}, {2, 3}, {3, 4}, {4, 5}})) << "grain 0 is 1";
}

TEST(ParallelFor, NoRangeIsBelowTheGrain) {
  EXPECT_EQ(ranges_of(4, 99, 100), (Ranges{{0, 99}}));
  EXPECT_EQ(ranges_of(4, 199, 100), (Ranges{{0, 199}}));
  EXPECT_EQ(ranges_of(4, 250, 100), (Ranges{{0, 125}, {125, 250}}));
}

TEST(ParallelFor, PartitionHoldsWhenTheRuntimeGrantsFewerThreads) {
  // Inside another team there is only the calling thread.
  Ranges ranges;
  const auto body = [](void* found, std::int64_t begin, std::int64_t end) {
    static_cast<Ranges*>(found)->emplace(begin, end);
  };
#pragma omp parallel num_threads(2)
  if (omp_get_thread_num() == 0) detail::parallel_run(3, 10, body, &ranges);
  EXPECT_EQ(ranges, (Ranges{{0, 4}, {4, 7}, {7, 10}}));
}

TEST(ParallelFor, RunsInSeveralThreads) {
  const Scoped threads(&ThreadState::num_threads, 2);
  std::vector<std::thread::id> ids(2);
  parallel_for(2, 1,
               [&](std::int64_t begin, std::int64_t) { ids[begin] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[0], ids[1]);
}

TEST(ParallelFor, NestedRunsInOneThread) {
  const Scoped threads(&ThreadState::num_threads, 2);
  std::atomic<int> inner{0};
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    EXPECT_EQ(num_threads(), 1);
    const auto me = std::this_thread::get_id();
    parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 100);
      EXPECT_EQ(std::this_thread::get_id(), me);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 2);
  EXPECT_EQ(num_threads(), 2);
}

TEST(ParallelFor, RethrowsTheExceptionOfTheLowestRangeAfterAllHaveRun) {
  const Scoped threads(&ThreadState::num_threads, 4);
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> ran{0};
    try {
      parallel_for(4, 1, [&](std::int64_t begin, std::int64_t) {
        ++ran;
        if (begin >= 1) throw std::runtime_error("range " + std::to_string(begin));
      });
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "range 1");
    }
    EXPECT_EQ(ran, 4);
  }
}

TEST(ParallelFor, WorkersTakeOverTheCallersState) {
  const Scoped threads(&ThreadState::num_threads, 2);
  const Scoped rank(&ThreadState::rank, 5);
  const Scoped deterministic(&ThreadState::deterministic, true);
  const PathScope path("conv1");
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    EXPECT_EQ(thread_state().rank, 5);
    EXPECT_TRUE(thread_state().deterministic);
    EXPECT_EQ(module_path(), "conv1");
  });
  // Between jobs a worker keeps nothing, above all no path on a stack that no longer exists.
  std::atomic<int> left{0};
#pragma omp parallel num_threads(2)
  if (omp_get_thread_num() == 1 && thread_state().path) ++left;
  EXPECT_EQ(left, 0);
}

TEST(ParallelFor, CallersInSeveralThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> callers;
  std::vector<std::int64_t> sums(3);
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&, t] {
      set_num_threads(2);
      for (int i = 0; i < 50; ++i) {
        std::atomic<std::int64_t> sum{0};
        parallel_for(1000, 10, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t j = begin; j < end; ++j) sum += j;
        });
        sums[t] += sum;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  for (std::int64_t sum : sums) EXPECT_EQ(sum, 50 * 499500);
}

TEST(NumThreads, IsSetPerThread) {
  EXPECT_GE(core_count(), 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  std::thread([] { EXPECT_NE(num_threads(), 3); }).join();
  thread_state().num_threads = 0;
  EXPECT_WEFT_ERROR(set_num_threads(0), InvalidArgument,
                    "[num_threads] got 0, expected at least 1");
}

// OMP_NUM_THREADS is read once per process.
TEST(NumThreadsDeathTest, DefaultIsTheEnvironmentSharedAmongVirtualDevices) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto threads = [](const char* text, int devices) {
    setenv("OMP_NUM_THREADS", text, 1);
    set_host_devices(devices);
    std::exit(num_threads());
  };
  EXPECT_EXIT(threads("6", 1), ::testing::ExitedWithCode(6), "");
  EXPECT_EXIT(threads("6", 2), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(threads("2", 4), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(threads("nonsense", 1), ::testing::ExitedWithCode(core_count()), "");
}

}  // namespace
}  // namespace weft
