// Operations: their order, their Work, their errors, and their logs and traces.
#include "weft/comm/group/operation_queue.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/comm/store/failure.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/hooked_store.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/use_up_threads.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr ProcessGroupOptions kOptions{.timeout = milliseconds(30'000)};

using Numbers = std::vector<float>;

Numbers numbers_of(const Tensor& x) { return x.to_vector<float>(); }

// The error that wait() throws.
std::optional<Error> error_of(const Work& work) {
  try {
    work.wait();
  } catch (const Error& error) {
    return error;
  }
  return {};
}

#define EXPECT_FAILS(work, code, text) EXPECT_WEFT_ERROR((work).wait(), code, text)

// A group with a short timeout, but not for the meeting of the ranks.
ProcessGroup impatient_group(ProcessGroup& ranks, milliseconds timeout) {
  ranks.barrier().wait();  // so that they start together
  const BackendMaker make = [](const std::shared_ptr<Store>& store, int rank, int size,
                               const Deadline&) {
    return thread_backend()(store, rank, size, Deadline(kOptions.timeout));
  };
  return ProcessGroup(make, std::make_shared<PrefixStore>("impatient", ranks.store()), ranks.rank(),
                      ranks.size(), {.timeout = timeout});
}

// --- Order and Work ------------------------------------------------------------------------------

RANKS_TEST(OperationQueueTest, OperationsRunInTheOrderOfTheirCalls, 3, kOptions) {
  // Each operation doubles or triples the previous result: no other order gives this one.
  const Tensor chain = full({3}, group.rank() == 0 ? 1 : 0);
  std::vector<Work> works;
  std::vector<Tensor> others;
  works.push_back(group.all_reduce(chain));  // 1
  works.push_back(group.all_reduce(chain));  // 3
  for (int i = 0; i < 100; ++i) {
    others.push_back(full({i}, i));
    works.push_back(group.all_reduce(others.back()));
  }
  works.push_back(group.broadcast(chain, 1));  // 3
  works.push_back(group.all_reduce(chain));    // 9
  for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
  EXPECT_EQ(numbers_of(chain), Numbers(3, 9));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(numbers_of(others[static_cast<std::size_t>(i)]),
              Numbers(static_cast<std::size_t>(i), static_cast<float>(3 * i)));
  }
}

TEST(WorkTest, StandsForAnOperation) {
  EXPECT_WEFT_ERROR(Work().wait(), InvalidArgument, "stands for no operation");
  EXPECT_WEFT_ERROR(Work().wait(milliseconds(1)), InvalidArgument, "stands for no operation");
  EXPECT_WEFT_ERROR(Work().done(), InvalidArgument, "stands for no operation");
}

TEST(WorkTest, AWaitThatGivesUpDoesNotEndTheOperation) {
  std::promise<void> given_up;
  run_ranks(
      2,
      [&](ProcessGroup& group) {
        const Tensor x = ones({2});
        if (group.rank() == 1) {
          given_up.get_future().wait();
          group.all_reduce(x).wait(milliseconds(30'000));
        } else {
          const Work work = group.all_reduce(x);
          EXPECT_WEFT_ERROR(work.wait(milliseconds(20)), Timeout,
                            "not done after 20 ms; it goes on");
          EXPECT_FALSE(work.done());
          given_up.set_value();
          work.wait();
          EXPECT_TRUE(work.done());
        }
        EXPECT_EQ(numbers_of(x), Numbers(2, 2));
      },
      kOptions);
}

TEST(WorkTest, AWaitMayBeWithoutALimit) {
  EXPECT_FALSE(Deadline(milliseconds::max()).passed());
  EXPECT_TRUE(Deadline(milliseconds::min()).passed());
  run_ranks(
      2,
      [](ProcessGroup& group) {
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(20));  // rank 0 waits
        group.barrier().wait(milliseconds::max());
      },
      kOptions);
}

TEST(WorkTest, SeveralThreadsMayWait) {
  std::promise<void> waiting;
  std::latch ended(2);
  run_ranks(
      2,
      [&](ProcessGroup& group) {
        const Tensor x = ones({2});
        if (group.rank() == 1) {
          waiting.get_future().wait();
          group.all_reduce(x).wait();
          ended.arrive_and_wait();
          return;
        }
        for (const bool fails : {false, true}) {
          const Work work = group.all_reduce(x);
          std::atomic<int> failed{0};
          std::vector<std::thread> threads;
          for (int i = 0; i < 4; ++i) {
            threads.emplace_back([&failed, work] { failed += error_of(work).has_value(); });
          }
          fails ? group.abort() : waiting.set_value();
          for (std::thread& thread : threads) thread.join();
          EXPECT_EQ(failed, fails ? 4 : 0);
          EXPECT_TRUE(work.done());
        }
        ended.arrive_and_wait();
      },
      kOptions);
}

RANKS_TEST(WorkTest, OutlivesItsGroup, 2, kOptions) {
  auto other = group.subgroup({0, 1});
  const Tensor x = ones({2});
  const Work done = other->all_reduce(x);
  done.wait();
  if (group.rank() == 0) {
    const Work pending = other->recv(x, 1), queued = other->barrier();
    other.reset();
    done.wait();
    for (const Work& work : {pending, queued}) {
      EXPECT_FAILS(work, Comm, "the group was destroyed before this was done");
    }
  }
  group.barrier().wait();
}

RANKS_TEST(OperationQueueTest, TrafficIsCounted, 2, kOptions) {
  const Tensor x = ones({10});
  const bool sends = group.rank() == 0;
  (sends ? group.send(x, 1) : group.recv(x, 0)).wait();
  // The counters are from the last operation that is done.
  const Traffic traffic = group.traffic();
  EXPECT_EQ(traffic.bytes_sent, sends ? 40 : 0);
  EXPECT_EQ(traffic.bytes_received, sends ? 0 : 40);
  EXPECT_EQ(traffic.messages_sent, sends ? 1 : 0);
}

// --- Failures ------------------------------------------------------------------------------------

TEST(OperationQueueTest, TheFirstFailureEndsTheGroup) {
  std::promise<void> queued;  // both operations of rank 1, before the first one can fail
  run_ranks(
      2,
      [&](ProcessGroup& group) {
        if (group.rank() == 0) {
          queued.get_future().wait();
          EXPECT_FAILS(group.send(ones({10}), 1), Comm, "");
          return;
        }
        const Scoped step(&ThreadState::step, std::int64_t{5});
        const PathScope module("layer3");
        const ProcessGroup::Tag tag("halo");
        const Tensor x = ones({11});
        const Work first = group.recv(x, 0), second = group.all_reduce(x);
        queued.set_value();
        const std::string where =
            "rank 1 calls operation 1, recv of 11 f32 (halo) at step 5 in layer3;";
        EXPECT_FAILS(first, Comm, where);
        EXPECT_FAILS(second, Comm, where);
        EXPECT_WEFT_ERROR(
            static_cast<void>(group.all_reduce(x)), Comm,
            "[all_reduce] this group has ended, of which there has to be a new one: ");
        EXPECT_WEFT_ERROR(static_cast<void>(group.barrier()), Comm, where);
        EXPECT_WEFT_ERROR(static_cast<void>(group.subgroup({0})), Comm, where);
        EXPECT_WEFT_ERROR(group.monitored_barrier(milliseconds(1)), Comm, where);
      },
      kOptions);
}

TEST(OperationQueueTest, ATimeoutNamesWhoWasWaitedFor) {
  std::promise<void> failed;
  run_ranks(
      2,
      [&](ProcessGroup& ranks) {
        ProcessGroup group = impatient_group(ranks, milliseconds(200));
        const Tensor x = ones({100});
        if (group.rank() == 1) {
          failed.get_future().wait();
          EXPECT_FAILS(group.all_reduce(x), PeerFailed,
                       "(rank 0 was the first to give up: [threads] ");
          return;
        }
        const ProcessGroup::Tag tag("bucket 2");
        const auto error = error_of(group.all_reduce(x));
        const auto noted = find_failure(*group.store(), Deadline(milliseconds(0)));
        failed.set_value();
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), ErrorCode::Timeout);
        const std::string text = error->what();
        EXPECT_HAS(text,
                   " in all_reduce 1 (bucket 2) on rank 0 (waiting for rank 1, not seen "
                   "yet)");
        ASSERT_TRUE(noted);
        EXPECT_EQ(noted->rank, 0);
        EXPECT_TRUE(noted->timed_out);
        EXPECT_EQ(noted->phase, "all_reduce 1 (bucket 2)");
      },
      kOptions);
}

RANKS_TEST(OperationQueueTest, WhoeverWaitsInVainSaysWhatTheLauncherSaw, 3, kOptions) {
  const auto part = group.subgroup({1, 2});
  group.barrier().wait();
  if (group.rank() == 2) {
    note_failure(*group.store(), {2, "killed by signal 9", "all_reduce", 5});
    return;
  }
  EXPECT_FAILS((part ? *part : group).all_reduce(ones({100})), PeerFailed,
               "(rank 2 failed first: killed by signal 9 in all_reduce at step 5)");
}

// Without a launcher: the rank that noticed the failure tells the others, which only see that it
// leaves.
RANKS_TEST(OperationQueueTest, WhoeverWaitsInVainSaysWhatAnotherRankSaw, 3, kOptions) {
  if (group.rank() == 1) return;
  const Tensor x = ones({3});
  if (group.rank() == 0) {
    const auto error = error_of(group.recv(x, 1));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::PeerFailed);
    EXPECT_TRUE(std::string(error->what()).ends_with(" in recv 1 on rank 0")) << error->what();
  } else {
    EXPECT_FAILS(group.recv(x, 0), PeerFailed,
                 " in recv 1 on rank 2 (rank 0 lost a rank before: [threads] ");
  }
}

// An error that rank 1 has handled, of whatever kind, has nothing to do with a later group's.
RANKS_TEST(OperationQueueTest, WhoeverWaitsInVainDoesNotSayWhatAnEarlierGroupSaw, 2, kOptions) {
  for (const bool lost_a_rank : {true, false}) {
    if (group.rank() == 1) {
      note_own_failure(*group.store(), {.rank = 1, .cause = "an older error"}, lost_a_rank);
    }
    group.barrier().wait();
    const auto later = group.duplicate();
    if (group.rank() == 1) later->abort();
    if (group.rank() == 0) {
      const auto error = error_of(later->all_reduce(ones({3})));
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::PeerFailed);
      EXPECT_EQ(std::string(error->what()).find("older"), std::string::npos) << error->what();
    }
    group.barrier().wait();
  }
}

// All waiting ranks learn it from the one that notices first.
RANKS_TEST(OperationQueueTest, WhoeverWaitsForARankThatLeftSaysSo, 3, kOptions) {
  group.barrier().wait();
  if (group.rank() == 1) return;
  EXPECT_FAILS(group.all_reduce(ones({3})), PeerFailed,
               "(rank 1 left the group after barrier 1; all ranks must make the same calls)");
}

TEST(OperationQueueTest, SubgroupsCallRanksByTheirNumbersInTheRun) {
  std::promise<void> failed;
  run_ranks(
      4,
      [&](ProcessGroup& ranks) {
        ProcessGroup group = impatient_group(ranks, milliseconds(200));
        const auto part = group.subgroup({1, 3});
        if (group.rank() == 1) {
          EXPECT_FAILS(part->all_reduce(ones({3})), Timeout,
                       " in all_reduce 1 on rank 1 (0 of the group of ranks 1, 3) (waiting for "
                       "rank 3, not seen yet)");
          failed.set_value();
        } else if (group.rank() == 3) {
          failed.get_future().wait();
          EXPECT_FAILS(part->all_reduce(ones({3})), PeerFailed,
                       "(rank 1 was the first to give up: ");
        }
      },
      kOptions);
}

// Ranks 0 and 2 are left of three.
RANKS_TEST(OperationQueueTest, RanksAreCalledByTheirNumbersInARunThatHasLostSome, 2, kOptions) {
  for (const char* const backend : {"threads", "ring", "shm"}) {
    SCOPED_TRACE(backend);
    const auto left = [&](const std::string& what, milliseconds timeout) {
      return std::make_shared<ProcessGroup>(
          testing::maker_of(backend),
          std::make_shared<PrefixStore>(detail::concat(backend, what), group.store()), group.rank(),
          2, ProcessGroupOptions{.timeout = timeout}, Generation{1, {0, 2}});
    };
    const bool first = group.rank() == 0;
    const auto here = left("waits", milliseconds(1000));
    const std::string me = "rank 0 (0 of the group of ranks 0, 2)";
    if (first) {
      EXPECT_WEFT_ERROR(here->monitored_barrier(milliseconds(200)), Timeout,
                        "rank 2 did not come within 200 ms, seen on " + me);
    }
    const auto same = here->duplicate(), alone = here->subgroup({group.rank()});
    EXPECT_EQ(same->number_in_run(1), 2);
    EXPECT_EQ(alone->number_in_run(0), first ? 0 : 2);
    if (first) {
      EXPECT_FAILS(same->recv(ones({3}), 1), Timeout, "rank 2 has sent 0 of 12 bytes");
      EXPECT_FAILS(here->all_reduce(ones({3})), Timeout, " on " + me + " (waiting for rank 2, ");
    }
    group.barrier().wait();

    const auto differ = left("differ", milliseconds(30'000));
    EXPECT_FAILS(differ->all_reduce(ones({first ? 3 : 5})), Comm,
                 "rank 0 calls operation 1, all_reduce of 3 f32, rank 2 calls operation 1, "
                 "all_reduce of 5 f32; all ranks must call the same operations");
    auto ends = left("ends", milliseconds(30'000));
    if (first) {
      EXPECT_FAILS(ends->all_reduce(ones({3})), PeerFailed, "rank 2 closed its connection");
    }
    ends.reset();
    group.barrier().wait();
  }
}

TEST(OperationQueueTest, NumbersOfRanksIncrease) {
  for (const std::vector<int>& numbers : {std::vector{2, 0}, {1, 1}, {-1, 0}, {0, 1, 2}}) {
    EXPECT_WEFT_ERROR(ProcessGroup(thread_backend(), std::make_shared<MemoryStore>(), 0, 2,
                                   kOptions, {.number = 1, .ranks = numbers}),
                      InvalidArgument, "the numbers of 2 ranks are given as rank");
  }
}

RANKS_TEST(OperationQueueTest, AbortEndsAllAtOnce, 2, kOptions) {
  const Tensor x = ones({3});
  if (group.rank() == 1) {
    EXPECT_FAILS(group.recv(x, 0), PeerFailed, "rank 0");
    return;
  }
  const Work running = group.recv(x, 1), queued = group.all_reduce(x);
  std::thread([&] { group.abort(); }).join();
  EXPECT_FAILS(running, Comm, "the group was aborted");
  EXPECT_FAILS(queued, Comm, " in rank 0");
  EXPECT_WEFT_ERROR(static_cast<void>(group.all_reduce(x)), Comm, "the group was aborted");
  group.abort();
}

RANKS_TEST(OperationQueueTest, AbortBeforeAnythingRan, 2, kOptions) {
  group.abort();
  EXPECT_WEFT_ERROR(static_cast<void>(group.barrier()), Comm, "the group was aborted");
}

// --- Threads and processes -----------------------------------------------------------------------

// Records where an operation runs; the other ranks are not needed.
class Looking final : public Backend {
 public:
  Looking(int rank, int size, std::function<void()> look)
      : Backend(rank, size), look_(std::move(look)) {}
  const char* name() const override { return "looking"; }
  void exchange(std::span<const Outgoing>, std::span<const Incoming>, const Deadline&) override {
    look_();
  }
  void barrier(const Deadline&) override {}  // for the meeting, in the caller's thread
  void abort() noexcept override {}

 private:
  std::function<void()> look_;
};

TEST(OperationQueueTest, OperationsRunAsTheirCallerInAThreadOfTheirOwn) {
  bool looked = false;
  const auto look = [&] {
    looked = true;
    EXPECT_EQ(detail::thread_name(), "comm");
    EXPECT_EQ(thread_state().rank, 7);
    EXPECT_EQ(thread_state().num_threads, 1);
    EXPECT_EQ(thread_state().generators, nullptr);
    EXPECT_EQ(thread_state().multiply_adds, nullptr);
    EXPECT_EQ(module_path(), "block");
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGPIPE), 1) << "a rank that is gone would end the process";
  };
  const BackendMaker make = [&](const std::shared_ptr<Store>&, int rank, int size,
                                const Deadline&) {
    return std::make_unique<Looking>(rank, size, look);
  };
  const auto store = std::make_shared<MemoryStore>();
  auto other = std::async(std::launch::async, [&] {
    return std::make_unique<ProcessGroup>(make, store, 1, 2, kOptions);
  });
  ProcessGroup group(make, store, 0, 2, kOptions);
  EXPECT_STREQ(group.backend(), "looking");
  std::int64_t counter = 0;
  const Scoped rank(&ThreadState::rank, 7);
  const Scoped cores(&ThreadState::num_threads, 4);
  const Scoped counting(&ThreadState::multiply_adds, &counter);
  const Scoped generators(&ThreadState::generators, &default_generators());
  Work work;
  {
    const std::string name = "block";  // destroyed before the operation runs
    const PathScope path(name.c_str());
    work = group.send(ones({3}), 1);
  }
  work.wait();
  EXPECT_TRUE(looked);
}

TEST(OperationQueueTest, AChildOfForkIsToldAndCleansUp) {
  if (weft::testing::kSanitized) GTEST_SKIP() << "not under a sanitizer";
  run_ranks(
      2,
      [](ProcessGroup& threads) {
        // A child shares this backend's connections: the parent would notice what the child does to
        // them.
        auto group = std::make_unique<ProcessGroup>(
            ring_backend("127.0.0.1"), std::make_shared<PrefixStore>("ring", threads.store()),
            threads.rank(), 2, kOptions);
        const Tensor x = ones({3});
        if (threads.rank() == 0) {
          const Work pending = group->recv(x, 1);
          const pid_t child = fork();
          if (child == 0) {
            alarm(60);
            const auto is_internal = [](const std::optional<Error>& error) {
              return error && error->code() == ErrorCode::Internal;
            };
            bool told = is_internal(error_of(pending));
            try {
              static_cast<void>(group->all_reduce(x));
              told = false;
            } catch (const Error& error) {
              told = told && is_internal(error);
            }
            group.reset();
            _exit(told ? 0 : 1);
          }
          int status = -1;
          waitpid(child, &status, 0);
          EXPECT_EQ(status, 0);
          threads.barrier().wait();
          pending.wait();
        } else {
          threads.barrier().wait();
          group->send(x, 0).wait();
        }
      },
      kOptions);
}

TEST(OperationQueueDeathTest, NoThreadToBeHadIsAnError) {
  if (weft::testing::kSanitized) GTEST_SKIP() << "not under a sanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    alarm(60);
    run_ranks(2, [](ProcessGroup& group) {
      if (group.rank() == 1) {
        group.barrier().wait();
        return;
      }
      weft::testing::use_up_threads();
      try {
        group.barrier().wait();
      } catch (const Error& error) {
        std::_Exit(error.code() == ErrorCode::Library ? 0 : 1);
      }
      std::_Exit(2);
    });
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// A user's backend that refuses an operation.
struct RefusesBarriers final : Backend {
  explicit RefusesBarriers(std::unique_ptr<Backend> own)
      : Backend(own->rank(), own->size()), inner(std::move(own)) {}
  const char* name() const override { return "refuses barriers"; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    inner->exchange(out, in, deadline);
  }
  void abort() noexcept override { inner->abort(); }
  void queued(const char* name, const Buffer& /*x*/, const Buffer& /*y*/) override {
    const bool refused = rank() == 1 && name == std::string_view("barrier");
    WEFT_CHECK(!refused, Unsupported, this->name(), "got one");
  }

  std::unique_ptr<Backend> inner;
};

// The next operation takes its number, as on the other rank.
TEST(OperationQueueTest, WhatTheBackendRefusesIsNotCounted) {
  run_ranks(
      2,
      [](ProcessGroup& threads) {
        ProcessGroup group(backend_over<RefusesBarriers>(thread_backend()),
                           std::make_shared<PrefixStore>("refuses", threads.store()),
                           threads.rank(), 2,
                           {.timeout = kOptions.timeout, .check_fingerprints = true});
        if (group.rank() == 1) {
          EXPECT_WEFT_ERROR(static_cast<void>(group.barrier()), Unsupported, "got one");
        }
        const Tensor x = ones({2});
        group.all_reduce(x).wait();
        EXPECT_EQ(numbers_of(x), Numbers(2, 2));
      },
      kOptions);
}

// --- Logs and traces -----------------------------------------------------------------------------

class Lines final : public LogSink {
 public:
  void write(Level level, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(level, Level::warning);
    lines_.emplace_back(message);
    if (lines_.size() == 1) first_.set_value();
  }
  void wait_for_one() { first_.get_future().wait_for(kOptions.timeout); }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::promise<void> first_;
};

std::vector<std::string> lines_of_slow_rank_0(
    const std::function<Work(ProcessGroup&)>& rank_0,
    const std::function<Work(ProcessGroup&)>& rank_1,
    const weft::testing::HookedStore::Hook& store_fails = [](const std::string&) {}) {
  constexpr ProcessGroupOptions slow{.timeout = milliseconds(30'000), .slow = milliseconds(20)};
  Lines log;
  run_ranks(
      2,
      [&](ProcessGroup& ranks) {
        const auto store = std::make_shared<PrefixStore>("slow", ranks.store());
        ProcessGroup group(thread_backend(),
                           std::make_shared<weft::testing::HookedStore>(store, store_fails),
                           ranks.rank(), 2, slow);
        if (group.rank() == 0) {
          Work work;
          {
            const Scoped<LogSink*> logging(&ThreadState::log, &log);
            work = rank_0(group);
          }
          work.wait();
        } else {
          log.wait_for_one();
          std::this_thread::sleep_for(milliseconds(60));  // time for a second line
          rank_1(group).wait();
        }
      },
      slow);
  return log.lines();
}

TEST(OperationQueueTest, ALongWaitIsToldOnceToTheCallersLog) {
  const auto call = [](ProcessGroup& group) {
    const ProcessGroup::Tag tag("bucket 2");
    return group.all_reduce(ones({100}));
  };
  EXPECT_EQ(lines_of_slow_rank_0(call, call),
            std::vector<std::string>{"all_reduce 1 (bucket 2): waiting for 20 ms for rank 1, not "
                                     "seen yet"});
}

TEST(OperationQueueTest, ALongWaitIsToldWithoutTheStoreToo) {
  const auto call = [](ProcessGroup& group) { return group.all_reduce(ones({100})); };
  for (const std::string failing : {"progress/1", "progress/"}) {  // of rank 1; of all
    EXPECT_EQ(lines_of_slow_rank_0(call, call,
                                   [&](const std::string& key) {
                                     if (key.starts_with(failing)) weft::testing::store_times_out();
                                   }),
              std::vector<std::string>{"all_reduce 1: waiting for 20 ms"});
  }
}

TEST(OperationQueueTest, ALongWaitForAMessageNamesItsSender) {
  const Tensor x = ones({3});
  EXPECT_EQ(lines_of_slow_rank_0([&](ProcessGroup& group) { return group.recv(x, 1); },
                                 [](ProcessGroup& group) { return group.send(ones({3}), 0); }),
            std::vector<std::string>{"recv 1: waiting for 20 ms for rank 1"});
}

TEST(OperationQueueTest, RanksTellHowFarTheyAre) {
  std::latch seen_by_all(2);
  run_ranks(2,
            [&](ProcessGroup& group) {
              const Scoped step(&ThreadState::step, std::int64_t{41});
              const PathScope module("layer3");
              group.barrier().wait();
              group.all_reduce(ones({3})).wait();
              const Deadline deadline(milliseconds(30'000));
              std::string seen;
              // The other rank may have reported the barrier first.
              while (!seen.starts_with("2 ") && !deadline.passed()) {
                std::this_thread::sleep_for(milliseconds(1));
                seen = group.store()->get("progress/" + std::to_string(1 - group.rank()), deadline);
              }
              EXPECT_EQ(seen, "2 all_reduce 2 at step 41 in layer3");
              seen_by_all.arrive_and_wait();
            },
            {.timeout = milliseconds(30'000), .slow = milliseconds(20)});
}

TEST(OperationQueueTest, RanksTellHowFarTheyAreOnceTheStoreAnswers) {
  std::atomic<int> failed{0};
  run_ranks(
      2,
      [&](ProcessGroup& ranks) {
        const auto store = std::make_shared<PrefixStore>("group", ranks.store());
        const std::string own = "progress/" + std::to_string(ranks.rank());
        int times = 2;
        const auto fails = [&](const std::string& key) {
          if (key != own || times == 0) return;
          --times;
          ++failed;
          weft::testing::store_times_out();
        };
        ProcessGroup group(thread_backend(),
                           std::make_shared<weft::testing::HookedStore>(store, fails), ranks.rank(),
                           2, {.timeout = milliseconds(30'000), .slow = milliseconds(20)});
        group.barrier().wait();
        EXPECT_EQ(store->get(own, Deadline(kOptions.timeout)), "1 barrier 1");
      },
      kOptions);
  EXPECT_EQ(failed, 4);
}

TEST(OperationQueueTest, SpansShowOperationsWithTagAndBytes) {
  Tracer tracer;
  {
    const Scoped tracing(&ThreadState::tracer, &tracer);
    const Scoped step(&ThreadState::step, std::int64_t{5});
    run_ranks(
        2,
        [](ProcessGroup& group) {
          Work reduced, gathered;
          const Tensor x = ones({10}), y = zeros({2, 10});
          {
            const std::string name = "layer3";
            const PathScope module(name.c_str());
            const ProcessGroup::Tag tag("bucket 2");
            {
              const ProcessGroup::Tag inner("inner");
            }
            reduced = group.all_reduce(x);
          }
          gathered = group.all_gather(y, x);
          gathered.wait();
        },
        kOptions);
  }
  const weft::testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const json trace = json::parse(std::ifstream(folder.path("trace.json")));
  std::map<std::pair<int, int>, std::string> rows;
  std::map<int, std::vector<json>> spans;  // per rank
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") {
      rows[{event["pid"], event["tid"]}] = event["args"]["name"];
    }
    if (event["ph"] == "X" && event["cat"] == "comm") spans[event["pid"]].push_back(event);
  }
  for (const int rank : {0, 1}) {
    ASSERT_EQ(spans[rank].size(), 2u) << trace;
    const json &first = spans[rank][0], &second = spans[rank][1];
    EXPECT_EQ(first["name"], "all_reduce");
    EXPECT_EQ(first["args"],
              json({{"bytes", 40}, {"number", 1}, {"module", "layer3.bucket 2"}, {"step", 5}}));
    EXPECT_EQ(second["name"], "all_gather");
    EXPECT_EQ(second["args"], json({{"bytes", 40}, {"number", 2}, {"step", 5}}));
    EXPECT_EQ((rows[{rank, first["tid"]}]), "comm");
  }
}

}  // namespace
}  // namespace weft::comm
