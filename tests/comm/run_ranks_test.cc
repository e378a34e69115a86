// Ranks as threads of one process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <mutex>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/use_up_threads.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr ProcessGroupOptions kOptions{.timeout = milliseconds(30'000)};

TEST(RunRanksTest, EveryRankRunsInAThreadOfItsOwn) {
  std::mutex mutex;
  std::set<std::string> names;
  std::set<std::thread::id> threads{std::this_thread::get_id()};
  run_ranks(
      4,
      [&](ProcessGroup& group) {
        EXPECT_EQ(group.size(), 4);
        EXPECT_STREQ(group.backend(), "threads");
        EXPECT_EQ(group.options().timeout, kOptions.timeout);
        EXPECT_EQ(thread_state().rank, group.rank());
        const std::lock_guard lock(mutex);
        names.insert(detail::thread_name());
        threads.insert(std::this_thread::get_id());
      },
      kOptions);
  EXPECT_EQ(names, (std::set<std::string>{"rank 0", "rank 1", "rank 2", "rank 3"}));
  EXPECT_EQ(threads.size(), 5u);
}

TEST(RunRanksTest, RanksShareTheCallersStateAndCores) {
  std::int64_t counter = 0;
  manual_seed(7);
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped step(&ThreadState::step, std::int64_t{3});
  const Scoped counting(&ThreadState::multiply_adds, &counter);
  const Scoped cores(&ThreadState::num_threads, 4);
  const Scoped generators(&ThreadState::generators, &default_generators());
  const PathScope module("trainer");
  const auto cores_of_ranks = [](int n) {
    std::atomic<int> each{0};
    run_ranks(
        n,
        [&](ProcessGroup&) {
          EXPECT_TRUE(thread_state().deterministic);
          EXPECT_EQ(thread_state().step, 3);
          EXPECT_EQ(thread_state().multiply_adds, nullptr);
          EXPECT_EQ(module_path(), "trainer");
          EXPECT_NE(default_generator().initial_seed(), 7u);
          each = thread_state().num_threads;
        },
        kOptions);
    return each.load();
  };
  EXPECT_EQ(cores_of_ranks(1), 4);
  EXPECT_EQ(cores_of_ranks(2), 2);
  EXPECT_EQ(cores_of_ranks(5), 1);
  EXPECT_EQ(thread_state().rank, 0);
}

TEST(RunRanksTest, TheErrorOfARankReachesTheCaller) {
  std::atomic<int> told{0};
  const auto f = [&](ProcessGroup& group) {
    group.barrier().wait();
    if (group.rank() == 1) {
      const Scoped step(&ThreadState::step, std::int64_t{5});
      throw std::runtime_error("no more data");
    }
    try {
      group.all_reduce(ones({3})).wait();
    } catch (const Error& error) {
      told += error.code() == ErrorCode::PeerFailed &&
              std::string(error.what()).find("(rank 1 failed first: no more data)") !=
                  std::string::npos;
      throw;
    }
  };
  EXPECT_WEFT_ERROR(run_ranks(3, f, kOptions), Library, "no more data at");
  EXPECT_EQ(told, 2);
  EXPECT_WEFT_ERROR(run_ranks(3, f, kOptions), Library, " in rank 1");
}

TEST(RunRanksTest, AnErrorNamesItsRankOnce) {
  const auto text_of = [](const std::function<void(ProcessGroup&)>& f) -> std::string {
    try {
      run_ranks(2, f, kOptions);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto thrown = [&](const std::string& text) {
    return text_of([&](ProcessGroup& group) {
      WEFT_CHECK(group.rank() == 0, Shape, "model", text);
      group.barrier().wait();
    });
  };
  EXPECT_TRUE(thrown("rank 12 does not fit").ends_with(" in rank 1"));
  EXPECT_LACKS(thrown("rank 1 does not fit"), " in rank 1");
  const std::string of_group =
      text_of([](ProcessGroup& group) { group.all_reduce(ones({3 + group.rank()})).wait(); });
  EXPECT_HAS(of_group, "rank 0 calls operation 1, all_reduce of 3 f32, rank 1 calls operation 1");
  EXPECT_FALSE(std::regex_search(of_group, std::regex("(,| in) rank [01]$"))) << of_group;
}

TEST(RunRanksTest, ARankThatFailsEarlyKeepsNobodyWaiting) {
  EXPECT_WEFT_ERROR(run_ranks(
                        4,
                        [](ProcessGroup& group) {
                          WEFT_CHECK(group.rank() != 2, Io, "data", "no such file");
                          group.barrier().wait();
                        },
                        kOptions),
                    Io, "[data] no such file at");
}

TEST(RunRanksTest, ErrorsThatOthersCausedComeSecond) {
  std::promise<void> aborted;
  EXPECT_WEFT_ERROR(run_ranks(
                        2,
                        [&](ProcessGroup& group) {
                          if (group.rank() == 0) {
                            group.abort();
                            aborted.set_value();
                            group.barrier().wait();
                          }
                          aborted.get_future().wait();
                          std::this_thread::sleep_for(milliseconds(20));
                          WEFT_THROW(Shape, "model", "does not fit");
                        },
                        kOptions),
                    Shape, "does not fit");
  EXPECT_WEFT_ERROR(run_ranks(
                        2,
                        [](ProcessGroup& group) {
                          group.abort();
                          group.barrier().wait();
                        },
                        kOptions),
                    Comm, "the group was aborted");
}

TEST(RunRanksTest, RunsInsideARank) {
  std::atomic<int> ran{0};
  run_ranks(
      2,
      [&](ProcessGroup& outer) {
        run_ranks(
            2,
            [&](ProcessGroup& inner) {
              const Tensor x = ones({1});
              inner.all_reduce(x).wait();
              ran += static_cast<int>(x.item<float>());
            },
            kOptions);
        outer.barrier().wait();
      },
      kOptions);
  EXPECT_EQ(ran, 8);
}

TEST(RunRanksTest, NeedsARank) {
  EXPECT_WEFT_ERROR(run_ranks(0, [](ProcessGroup&) {}), InvalidArgument, "got 0 ranks");
}

TEST(RunRanksTest, StaticObjectsOfAStaticProgramMayRunThem) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(std::system("tests/comm/static_objects"), 0);
}

TEST(RunRanksDeathTest, NoThreadToBeHadIsAnError) {
  if (testing::kSanitized) GTEST_SKIP() << "not under a sanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    alarm(60);
    testing::use_up_threads();
    try {
      run_ranks(2, [](ProcessGroup&) { std::_Exit(2); });
    } catch (const Error& error) {
      std::_Exit(error.code() == ErrorCode::Library ? 0 : 1);
    }
    std::_Exit(3);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::comm
