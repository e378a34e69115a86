// The cores and threads that the process may use, teams that the system refuses, and fork().
#include "weft/core/runtime/cores.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/child.h"
#include "weft/tests/core/use_up_threads.h"

namespace weft {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() : root_(::testing::TempDir() + "cgroup" + std::to_string(getpid())) {}
  ~CgroupTest() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + '/' + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int cores(const std::string& membership) { return detail::quota_cores(membership, root_); }

  const std::string root_;
};

TEST_F(CgroupTest, QuotasOfVersion2) {
  EXPECT_EQ(cores("0::/a/b\n"), 0) << "no files";
  put("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 0) << "no quota";
  put("a/b/cpu.max", "150000 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 2) << "rounded up";
  put("a/b/cpu.max", "200000 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 2);
  put("a/b/cpu.max", "5000 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 1);
  put("a/b/cpu.max", "800000 100000\n");
  put("a/cpu.max", "300000 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 3) << "an ancestor has less";
  put("cpu.max", "100000 100000\n");
  EXPECT_EQ(cores("0::/elsewhere/unseen\n"), 1) << "a container sees its own group as the root";
  EXPECT_EQ(cores("0::/\n"), 1);
}

TEST_F(CgroupTest, QuotasOfVersion1) {
  put("cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  put("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  const std::string membership = "12:memory:/other\n4:cpu,cpuacct:/job\n3:cpuset:/\n";
  EXPECT_EQ(cores(membership), 3);
  put("cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cores(membership), 0);
  put("cpu/job/cpu.cfs_quota_us", "100000\n");
  put("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores("4:cpu:/job\n"), 1);
  EXPECT_EQ(cores("4:cpuset:/job\n"), 0);
  EXPECT_EQ(cores("nonsense\n"), 0);
}

TEST_F(CgroupTest, ThreadsLeft) {
  EXPECT_EQ(detail::threads_left("0::/a\n", root_), -1);
  put("a/pids.max", "max\n");
  put("a/pids.current", "7\n");
  EXPECT_EQ(detail::threads_left("0::/a\n", root_), -1);
  put("a/pids.max", "100\n");
  EXPECT_EQ(detail::threads_left("0::/a\n", root_), 93);
  put("pids/a/pids.max", "5\n");
  put("pids/a/pids.current", "7\n");
  EXPECT_EQ(detail::threads_left("2:pids:/a\n", root_), 0);
}

int affinity_of_this_thread() {
  cpu_set_t mask;
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : -1;
}

// The variables are read when the OpenMP library is loaded, so each case needs its own process.
TEST(CoresDeathTest, OpenMPsBindingDoesNotCountAsOneCore) {
  if (testing::kSanitized) GTEST_SKIP() << "libomp binds nothing before its first team";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  unsetenv("OMP_NUM_THREADS");
  setenv("WEFT_TEST_CORES", std::to_string(core_count()).c_str(), 0);  // the child keeps it
  const int all = std::atoi(std::getenv("WEFT_TEST_CORES"));
  setenv("OMP_PROC_BIND", "true", 1);
  const auto run = [all] {
    if (core_count() != all || num_threads() != all) std::exit(1);
    // A thread that was started from the bound one can leave its core, and so can its teams.
    std::thread([all] {
      leave_thread_unbound();
      if (affinity_of_this_thread() < all) std::exit(2);
    }).join();
    std::thread([all] {
      set_num_threads(2);
      std::atomic<int> bound{0};
      parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
        if (affinity_of_this_thread() < all) ++bound;
      });
      if (bound > 0) std::exit(3);
    }).join();
    std::exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
  unsetenv("OMP_PROC_BIND");
  unsetenv("WEFT_TEST_CORES");
}

// OpenMP ends the process if it cannot start a thread.
TEST(TeamsDeathTest, AreAsLargeAsTheSystemAllows) {
  if (testing::kSanitized) GTEST_SKIP() << "not under a sanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    testing::use_up_threads();
    set_num_threads(4);
    std::atomic<int> ranges{0};
    parallel_for(4, 1, [&](std::int64_t begin, std::int64_t end) {
      ranges += static_cast<int>(end - begin);
    });
    std::exit(ranges == 4 && num_threads() == 1 ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST(TeamsTest, OneThreadCannotTakeAll) {
  std::thread([] {
    set_num_threads(1'000'000);
    EXPECT_LE(num_threads(), 1 + std::max(256, 8 * core_count()));
  }).join();
  // The threads of a thread's team are free again when it ends.
  std::thread([] {
    set_num_threads(2);
    EXPECT_EQ(num_threads(), 2);
  }).join();
}

int elements_of_a_team() {
  std::atomic<int> sum{0};
  parallel_for(100, 1,
               [&](std::int64_t begin, std::int64_t end) { sum += static_cast<int>(end - begin); });
  return sum;
}

TEST(ForkTest, AChildOfAProcessWithATeamGoesOn) {
  if (testing::kSanitized) GTEST_SKIP() << "TSan allows no threads in a child of fork()";
  const Scoped threads(&ThreadState::num_threads, 2);
  EXPECT_EQ(elements_of_a_team(), 100);
  const int before = fork_count();
  EXPECT_EQ(testing::status_of_child([] {
              if (elements_of_a_team() != 100 || num_threads() != 1) return 1;
              // Another thread has a team of its own.
              int sum = 0, team = 0;
              std::thread([&] {
                set_num_threads(2);
                sum = elements_of_a_team();
                team = num_threads();
              }).join();
              return sum == 100 && team == 2 ? 0 : 2;
            }),
            0);
  EXPECT_EQ(fork_count(), before);
  EXPECT_EQ(num_threads(), 2);
}

}  // namespace
}  // namespace weft
