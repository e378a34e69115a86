// Jobs, groups, workers and their stand-ins, on virtual CPU devices.
#include "weft/core/runtime/worker.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_name.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/core/trace/trace.h"
#include "weft/tests/core/child.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/core/use_up_threads.h"

namespace weft {
namespace {

constexpr int kDevices = 4;
Device cpu(int i) { return {DeviceType::cpu, i}; }

class FourDevices : public ::testing::Environment {
  void SetUp() override {
    static testing::FakeRuntime fake(DeviceType::cpu);
    register_runtime(DeviceType::cpu, &fake);
    static testing::FakeRuntime cuda(DeviceType::cuda);
    register_runtime(DeviceType::cuda, &cuda);
    set_host_devices(kDevices);
  }
};
const auto* const environment = ::testing::AddGlobalTestEnvironment(new FourDevices);

int thread_count() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    count += task.is_directory();
  }
  return count;
}

std::thread::id thread_of(Device device) {
  std::thread::id id;
  JobGroup group;
  group.submit(device, [&] { id = std::this_thread::get_id(); });
  group.wait();
  return id;
}

TEST(WorkerTest, EachDeviceHasOneThreadForGood) {
  std::set<std::thread::id> ids{std::this_thread::get_id()};
  std::vector<std::thread::id> first;
  for (int i = 0; i < kDevices; ++i) {
    first.push_back(thread_of(cpu(i)));
    ids.insert(first.back());
  }
  EXPECT_EQ(ids.size(), kDevices + 1u);
  for (int i = 0; i < kDevices; ++i) EXPECT_EQ(thread_of(cpu(i)), first[i]);
}

TEST(WorkerTest, ThreadsAreNamedInTraces) {
  std::string outer, inner;
  JobGroup group;
  group.submit(cpu(1), [&] {
    outer = detail::thread_name();
    JobGroup nested;
    nested.submit(cpu(1), [&] { inner = detail::thread_name(); });
    nested.wait();
  });
  group.wait();
  EXPECT_EQ(outer, "worker cpu:1");
  EXPECT_EQ(inner, "worker cpu:1, stand-in 1");
}

TEST(WorkerTest, JobsOfADeviceRunOneByOneInTheOrderOfSubmission) {
  std::vector<int> order;  // no lock: there is only one thread
  JobGroup group;
  for (int i = 0; i < 100; ++i) group.submit(cpu(1), [&order, i] { order.push_back(i); });
  group.wait();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(WorkerTest, DevicesWorkAtTheSameTime) {
  std::atomic<int> arrived{0};
  JobGroup group;
  for (int i = 0; i < kDevices; ++i) {
    group.submit(cpu(i), [&] {
      ++arrived;
      while (arrived < kDevices) std::this_thread::yield();
    });
  }
  group.wait();
}

TEST(WorkerTest, AJobRunsAsItsSubmitterWould) {
  manual_seed(11);
  std::int64_t counter = 0;
  const Scoped rank(&ThreadState::rank, 7);
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped counting(&ThreadState::multiply_adds, &counter);
  const PathScope path("block");
  const Stream side = runtime(Device("cuda:0")).new_stream(0);
  const StreamScope streams(side);
  std::uint64_t drawn = 0, expected = Generator(device_seed(11, cpu(2))).random64();
  JobGroup group;
  group.submit(cpu(2), [&] {
    EXPECT_EQ(thread_state().rank, 7);
    EXPECT_TRUE(thread_state().deterministic);
    EXPECT_EQ(thread_state().device, cpu(2));
    EXPECT_EQ(*worker_device(), cpu(2));
    EXPECT_EQ(current_stream(side.device), side);
    EXPECT_EQ(thread_state().multiply_adds, nullptr);
    EXPECT_EQ(module_path(), "block");
    EXPECT_EQ(default_generator().initial_seed(), 11u);
    drawn = default_generator(cpu(2)).random64();
  });
  group.wait();
  EXPECT_EQ(drawn, expected);
  EXPECT_EQ(worker_device(), nullptr);
  // Nothing of it stays in the worker.
  const ThreadState other;
  const ThreadStateGuard plain(other);
  JobGroup next;
  next.submit(cpu(2), [&] {
    EXPECT_EQ(thread_state().rank, 0);
    EXPECT_EQ(thread_state().path, nullptr);
  });
  next.wait();
}

TEST(WorkerTest, TheCallerTakesAJobItself) {
  manual_seed(11);
  std::int64_t counter = 0;
  const Scoped rank(&ThreadState::rank, 7);
  const Scoped counting(&ThreadState::multiply_adds, &counter);
  const Stream side = runtime(Device("cuda:0")).new_stream(0);
  const std::uint64_t expected = Generator(device_seed(11, cpu(2))).random64();
  std::optional<JobGroup> group;
  {
    const StreamScope streams(side);
    group.emplace();
  }
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<bool> met = false;
  group->submit(cpu(2), [&] {
    EXPECT_NE(std::this_thread::get_id(), here);
    while (!met) std::this_thread::yield();  // while the worker is busy
  });
  group->run_here(cpu(2), [&] {
    EXPECT_EQ(std::this_thread::get_id(), here);
    EXPECT_EQ(thread_state().rank, 7);
    EXPECT_EQ(thread_state().device, cpu(2));
    EXPECT_EQ(current_stream(side.device), side);
    EXPECT_EQ(thread_state().multiply_adds, nullptr);
    EXPECT_EQ(default_generator(cpu(2)).random64(), expected);
    met = true;
    throw std::runtime_error("of the caller");
  });
  EXPECT_EQ(thread_state().device, Device());
  EXPECT_EQ(thread_state().multiply_adds, &counter);
  std::atomic<bool> ended = false;
  group->submit(cpu(1), [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
  });
  EXPECT_THROW(group->wait(), std::runtime_error);
  EXPECT_TRUE(ended);
  group->run_here(cpu(0), [] {});
  group->wait();
  EXPECT_WEFT_ERROR(group->run_here(cpu(60), [] {}), Device, "cpu:60");
}

TEST(WorkerTest, TheFirstErrorReachesWhoeverWaits) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ran{0};
    JobGroup group;
    group.submit(cpu(0), [&] {
      ++ran;
      throw std::runtime_error("first");
    });
    group.submit(cpu(0), [&] {
      ++ran;
      throw std::runtime_error("second");
    });
    group.submit(cpu(1), [&] { ++ran; });
    try {
      group.wait();
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "first");
    }
    EXPECT_EQ(ran, 3);
    group.submit(cpu(0), [&] { ++ran; });
    group.wait();
    EXPECT_EQ(ran, 4);
  }
}

TEST(WorkerTest, AGroupThatNobodyWaitsForWaitsItself) {
  std::atomic<bool> ran{false};
  {
    JobGroup group;
    group.submit(cpu(3), [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ran = true;
      throw std::runtime_error("lost");
    });
  }
  EXPECT_TRUE(ran);
}

// Each job submits jobs to all devices, its own among them, and waits.
int nested(int depth) {
  if (depth == 0) return 1;
  std::atomic<int> sum{0};
  JobGroup group;
  for (int i = 0; i < kDevices; ++i) group.submit(cpu(i), [&] { sum += nested(depth - 1); });
  group.wait();
  return sum;
}

TEST(WorkerTest, JobsThatWaitHoldNobodyUp) { EXPECT_EQ(nested(4), 256); }

TEST(WorkerTest, AWaitingJobLetsLaterOnesPass) {
  std::atomic<bool> passed{false};
  JobGroup group;
  group.submit(cpu(0), [&] {
    const WaitScope waiting;
    while (!passed) std::this_thread::yield();
  });
  group.submit(cpu(0), [&] { passed = true; });
  group.wait();
}

TEST(WorkerTest, StandInsAreKeptAndBoundedByTheDepth) {
  nested(3);
  const int before = thread_count();
  for (int round = 0; round < 20; ++round) EXPECT_EQ(nested(2), 16);
  EXPECT_LE(thread_count(), before);
}

TEST(WorkerTest, CallersShareTheWorkers) {
  thread_of(cpu(0));
  const int before = thread_count();
  std::atomic<int> most{0}, sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        JobGroup group;
        for (int i = 0; i < kDevices; ++i) group.submit(cpu(i), [&] { ++sum; });
        group.wait();
      }
      most = std::max(most.load(), thread_count());
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 8 * 50 * kDevices);
  EXPECT_LE(most, before + 8 + kDevices);
  EXPECT_LE(thread_count(), before + kDevices);
}

struct Counting final : Job {
  int runs = 0;
  void run() override { ++runs; }
};

TEST(WorkerTest, SubmittingAllocatesNothing) {
  Counting job;
  const auto round = [&] {
    JobGroup group;
    group.submit(cpu(0), job);
    group.submit(cpu(1), [&group] { (void)group; });
    group.wait();
  };
  for (int i = 0; i < 200; ++i) round();
  const std::int64_t before = testing::heap_count();
  for (int i = 0; i < 200; ++i) round();
  EXPECT_EQ(job.runs, 400);
  // The pool moves blocks between threads in batches; within a few batches it needs no more memory.
  EXPECT_LE(testing::heap_count() - before, 2);
}

TEST(WorkerTest, RefusesDevicesThatAreNotThere) {
  JobGroup group;
  EXPECT_WEFT_ERROR(group.submit(cpu(kDevices), [] {}), Device, "no such device");
  group.wait();
}

TEST(WorkerDeathTest, NoThreadToBeHadIsAnError) {
  if (testing::kSanitized) GTEST_SKIP() << "not under a sanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    testing::use_up_threads();
    JobGroup group;
    try {
      group.submit(cpu(0), [] {});
    } catch (const Error& e) {
      group.wait();
      std::exit(e.code() == ErrorCode::Library ? 0 : 1);
    }
    std::exit(2);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// If a stand-in cannot be started, queued jobs run on top of the job that waits; and they may wait,
// too.
TEST(WorkerDeathTest, NoStandInToBeHadIsNoDeadlock) {
  if (testing::kSanitized) GTEST_SKIP() << "not under a sanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](bool nests) {
    alarm(60);
    thread_of(cpu(0));
    testing::use_up_threads();
    std::atomic<bool> submitted{false}, passed{false};
    JobGroup group;
    group.submit(cpu(0), [&] {
      while (!submitted) std::this_thread::yield();
      const WaitScope waiting;
      while (!passed) std::this_thread::yield();
    });
    group.submit(cpu(0), [&] {
      JobGroup nested;
      if (nests) nested.submit(cpu(0), [&] { passed = true; });
      if (!nests) passed = true;
      nested.wait();
    });
    submitted = true;
    group.wait();
    std::exit(0);
  };
  EXPECT_EXIT(run(false), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(true), ::testing::ExitedWithCode(0), "");
}

TEST(WorkerTest, AChildOfForkHasWorkersOfItsOwn) {
  if (testing::kSanitized) GTEST_SKIP() << "TSan allows no threads in a child of fork()";
  thread_of(cpu(0));
  JobGroup parents;
  std::atomic<bool> go{false};
  parents.submit(cpu(1), [&] {
    while (!go) std::this_thread::yield();
  });
  EXPECT_EQ(testing::status_of_child([&] {
              int ran = 0;
              JobGroup group;
              group.submit(cpu(0), [&] { ++ran; });
              group.submit(cpu(1), [&] { ++ran; });
              group.wait();
              try {
                parents.wait();
              } catch (const Error& e) {
                return ran == 2 && e.code() == ErrorCode::Internal ? 0 : 1;
              }
              return 2;
            }),
            0);
  go = true;
  parents.wait();
}

TEST(WorkerTest, AChildOfForkMakesGroupsOfItsOwn) {
  JobGroup parents;
  EXPECT_EQ(testing::status_of_child([&] {
              try {
                parents.submit(cpu(0), [] {});
              } catch (const Error& e) {
                parents.wait();
                return e.code() == ErrorCode::Internal ? 0 : 1;
              }
              return 2;
            }),
            0);
  parents.wait();
}

TEST(WorkerTest, NoMemoryReachesWhoeverSubmitsOrWaits) {
  for (int k = 1;; ++k) {
    std::atomic<int> ran{0};
    const testing::FailHeap fault(k);
    try {
      JobGroup group;
      // Too large for the pool: this job comes from the heap.
      group.submit(cpu(0), [&ran, big = std::array<char, 4096>()] { ran += 1 + big[0]; });
      group.submit(cpu(0), [] { ::operator delete(::operator new(8)); });
      group.wait();
    } catch (const std::bad_alloc&) {
      continue;
    }
    if (!fault.fired()) {
      EXPECT_EQ(ran, 1);
      break;
    }
  }
}

}  // namespace
}  // namespace weft
