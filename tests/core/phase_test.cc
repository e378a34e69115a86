// What a launcher sees of a process, and faults on purpose. The processes are forks of this one.
#include "weft/core/runtime/phase.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

/// How a process that runs `f` ends or stops.
int wait_status_of(const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 0;
    try {
      f();
    } catch (const Error& error) {
      status = error.code() == ErrorCode::Internal          ? 10
               : error.code() == ErrorCode::InvalidArgument ? 11
                                                            : 12;
    }
    ::_exit(status);
  }
  int status = -1;
  if (child < 0) return status;  // -1 would mean all processes
  ::waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return status;
}

/// Runs f() in a process that a launcher observes; returns what the launcher sees after its end.
Status seen_of(const std::function<void()>& f) {
  const StatusPage page;
  wait_status_of([&] {
    ::setenv(StatusPage::kVariable, std::to_string(page.fd()).c_str(), 1);
    f();
  });
  return page.read();
}

TEST(StatusPage, OfAProcessThatHasSaidNothingIsEmpty) {
  const Status seen = seen_of([] {});
  EXPECT_EQ(seen.phase, "");
  EXPECT_EQ(seen.operation, "");
  EXPECT_EQ(seen.step, -1);
  EXPECT_EQ(seen.describe(), "");
}

TEST(StatusPage, ShowsWhatAKilledProcessWasIn) {
  const Status seen = seen_of([] {
    thread_state().step = 5;
    const PhaseScope phase("backward");
    const PhaseScope operation("all_reduce",
                               [] { return std::string("all_reduce 17 (bucket 2)"); });
    std::raise(SIGKILL);
  });
  EXPECT_EQ(seen.phase, "backward");
  EXPECT_EQ(seen.operation, "all_reduce 17 (bucket 2)");
  EXPECT_EQ(seen.step, 5);
  EXPECT_EQ(seen.describe(), "backward during all_reduce 17 (bucket 2)");
}

/// A process that runs `f`, which may look at page_of(), and then waits until this object's end.
class WaitingProcess {
 public:
  explicit WaitingProcess(const std::function<void()>& f) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    pid = ::fork();
    if (pid == 0) {
      f();
      EXPECT_EQ(::write(ends[1], "r", 1), 1);
      ::close(ends[1]);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char ready = 0;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1);
    ::close(ends[0]);
  }
  ~WaitingProcess() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  WaitingProcess(const WaitingProcess&) = delete;
  WaitingProcess& operator=(const WaitingProcess&) = delete;

  pid_t pid = -1;
};

TEST(StatusPage, IsFoundIfAProcessSharesIt) {
  const WaitingProcess silent([] {}), shares([] {
    share_status();
    share_status();  // changes nothing
    thread_state().step = 7;
    static const PhaseScope phase("forward");
    own_black_box()->sums().samples += 32;
  });
  EXPECT_EQ(StatusPage::of_process(silent.pid), nullptr);
  const auto page = StatusPage::of_process(shares.pid);
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(page->read().phase, "forward");
  EXPECT_EQ(page->read().step, 7);
  EXPECT_EQ(page->black_box().sums().samples, 32);
}

// It has the page, too, but what stands there is of the process that shares it.
TEST(StatusPage, OfAParentIsNotThatOfItsChild) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const WaitingProcess shares([&] {
    share_status();
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    EXPECT_EQ(::write(ends[1], &child, sizeof child), ssize_t{sizeof child});
  });
  pid_t child = -1;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), ssize_t{sizeof child});
  EXPECT_NE(StatusPage::of_process(shares.pid), nullptr);
  EXPECT_EQ(StatusPage::of_process(child), nullptr);
  ::kill(child, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(StatusPage, OfALauncherIsThatOfItsRank) {
  const StatusPage page;
  const WaitingProcess rank([&] {
    ::setenv(StatusPage::kVariable, std::to_string(page.fd()).c_str(), 1);
    share_status();  // there is one
    static const PhaseScope phase("backward");
  });
  const auto found = StatusPage::of_process(rank.pid);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->read().phase, "backward");
  EXPECT_EQ(page.read().phase, "backward");
  EXPECT_EQ(StatusPage::of_process(::getpid()), nullptr);
}

TEST(StatusPage, OfARankIsNotThatOfAProgramItStarts) {
  const StatusPage page;
  const auto take = [&](const char* phase_name) {
    ::setenv(StatusPage::kVariable, std::to_string(page.fd()).c_str(), 1);
    share_status();
    static const PhaseScope phase(phase_name);
  };
  const WaitingProcess rank([&] { take("forward"); });
  const WaitingProcess started([&] { take("evaluation"); });
  EXPECT_EQ(page.read().phase, "forward");
  const auto of_rank = StatusPage::of_process(rank.pid);
  const auto of_started = StatusPage::of_process(started.pid);
  ASSERT_TRUE(of_rank && of_started);
  EXPECT_EQ(of_rank->read().phase, "forward");
  EXPECT_EQ(of_started->read().phase, "evaluation");
}

TEST(StatusPage, OfARankThatHasEndedIsTakenByTheNext) {
  const StatusPage page;
  const auto take = [&](const char* phase_name) {
    ::setenv(StatusPage::kVariable, std::to_string(page.fd()).c_str(), 1);
    const PhaseScope phase(phase_name);
    std::raise(SIGKILL);
  };
  wait_status_of([&] { take("forward"); });
  wait_status_of([&] { take("backward"); });
  EXPECT_EQ(page.read().phase, "backward");
}

TEST(StatusPage, OfNoProcessIsNone) {
  EXPECT_EQ(StatusPage::of_process(-1), nullptr);
  EXPECT_EQ(StatusPage::of_process(1 << 30), nullptr);
}

TEST(StatusPage, ShowsTheOuterPhaseWhenTheInnerOneHasEnded) {
  const Status seen = seen_of([] {
    const PhaseScope outer("forward");
    {
      const PhaseScope inner("backward");
    }
    {
      const PhaseScope operation("barrier", [] { return "barrier 3"; });
    }
    ::_exit(0);
  });
  EXPECT_EQ(seen.describe(), "forward");
  EXPECT_EQ(seen_of([] { const PhaseScope phase("save"); }).describe(), "");
}

TEST(StatusPage, ShowsWhereAnExceptionCameFrom) {
  const Status seen = seen_of([] {
    const PhaseScope outer("forward");
    const PhaseScope inner("backward");
    const PhaseScope operation("broadcast", [] { return "broadcast 1"; });
    WEFT_THROW(Shape, "conv2d", "got 3");
  });
  EXPECT_EQ(seen.describe(), "backward during broadcast 1");
  const Status later = seen_of([] {
    try {
      const PhaseScope phase("save");
      throw std::runtime_error("a full disk, which the program can do without");
    } catch (const std::exception&) {
    }
    {
      const PhaseScope phase("forward");
    }
    ::_exit(0);
  });
  EXPECT_EQ(later.describe(), "");
}

TEST(BusyScope, IsFoundByItsRankWhileItLasts) {
  const int status = wait_status_of([] {
    const auto begin = [](const char* name, int rank) {
      const Scoped as_rank(&ThreadState::rank, rank);
      return std::make_unique<const BusyScope>(name);
    };
    EXPECT_EQ(busy_with(1), nullptr);
    {
      const auto saves = begin("save", 1), evaluates = begin("evaluation", 3);
      EXPECT_STREQ(busy_with(1), "save");
      EXPECT_STREQ(busy_with(3), "evaluation");
      for (const int rank : {0, 2, 4}) EXPECT_EQ(busy_with(rank), nullptr);
      {
        const auto draws = begin("drawing", 1);
        EXPECT_STREQ(busy_with(1), "drawing");
      }
      EXPECT_STREQ(busy_with(1), "save");
    }
    for (const int rank : {1, 3}) EXPECT_EQ(busy_with(rank), nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(status, 0);
}

TEST(BusyScope, IsAPhase) {
  const Status seen = seen_of([] {
    const BusyScope busy("save");
    ::_exit(0);
  });
  EXPECT_EQ(seen.phase, "save");
}

TEST(StatusPage, CutsOffLongTexts) {
  const Status seen = seen_of([] {
    const PhaseScope operation("x", [] { return std::string(1000, 'x'); });
    ::_exit(0);
  });
  EXPECT_EQ(seen.operation, std::string(240, 'x'));
}

TEST(StatusPage, AnythingElseInItsVariableIsLeftAlone) {
  // Now another file has this descriptor's number; its kind and even its size may be the same.
  struct stat page{};
  ::fstat(StatusPage().fd(), &page);
  const int zeros = ::memfd_create("zeros", 0);
  ASSERT_EQ(::ftruncate(zeros, page.st_size), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  for (const std::string& value : {std::string("x"), std::string("9999"), std::string(),
                                   std::to_string(ends[0]), std::to_string(zeros)}) {
    const int status = wait_status_of([&] {
      ::setenv(StatusPage::kVariable, value.c_str(), 1);
      const PhaseScope phase("save");
      const PhaseScope operation("x", [] { return (std::raise(SIGABRT), "never asked for"); });
    });
    EXPECT_EQ(status, 0) << value;
  }
  for (const int fd : {ends[0], ends[1], zeros}) ::close(fd);
}

// --- Faults --------------------------------------------------------------------------------------

TEST(Fault, IsRead) {
  const Fault whole = Fault::parse("stop:rank=12:step=0:phase=save");
  EXPECT_EQ(whole.kind, Fault::Kind::stop);
  EXPECT_EQ(whole.rank, 12);
  EXPECT_EQ(whole.step, 0);
  EXPECT_EQ(whole.phase, "save");
  const Fault least = Fault::parse("exit:rank=0");
  EXPECT_EQ(least.kind, Fault::Kind::exit);
  EXPECT_EQ(least.step, -1);
  EXPECT_EQ(least.phase, "");
  EXPECT_EQ(Fault::parse("raise:phase=rendezvous:rank=1").phase, "rendezvous");
  EXPECT_EQ(Fault::parse("raise:phase=connect:rank=1").phase, "connect");
  EXPECT_EQ(Fault::parse("kill:rank=1:phase=allgather").phase, "all_gather");
  EXPECT_EQ(Fault::parse("kill:rank=1:phase=reducescatter").phase, "reduce_scatter");
  EXPECT_EQ(Fault::parse("kill:rank=1:phase=allreduce12").phase, "all_reduce#12");
}

TEST(Fault, MayBeADelay) {
  const Fault fault = Fault::parse("delay=20ms:rank=1:phase=forward");
  EXPECT_EQ(fault.kind, Fault::Kind::delay);
  EXPECT_EQ(fault.delay.count(), 20);
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.phase, "forward");
  EXPECT_EQ(Fault::parse("delay=2s:rank=0").delay.count(), 2000);
  EXPECT_EQ(Fault::parse("delay=2147483647s:rank=0").delay.count(), 2147483647000);
}

TEST(Fault, AnythingElseIsRefused) {
  for (const char* text : {"",
                           "kill",
                           "kill:",
                           "kil:rank=1",
                           "kill:rank=1:",
                           "kill:rank=-1",
                           "kill:rank=",
                           "kill:rank=1x",
                           "kill:rank",
                           "kill:rank=1:rank=1",
                           "kill:rank=1:step=1:step=2",
                           "kill:rank=1:phase=",
                           "kill:rank=1:phase=backward",
                           "kill:rank=1:phase=12",
                           "kill:rank=1:phase=allreduce1x",
                           "kill:rank=1:phase=save:phase=save",
                           "kill:rank=1::step=1",
                           "kill:step=1",
                           " kill:rank=1",
                           "kill:rank=99999999999",
                           "kill=:rank=1",
                           "kill=1s:rank=1",
                           "delay:rank=1",
                           "delay=:rank=1",
                           "delay=20:rank=1",
                           "delay=ms:rank=1",
                           "delay=-1ms:rank=1",
                           "delay=1us:rank=1",
                           "delay=2147483648s:rank=1",
                           "delay=20ms"}) {
    EXPECT_WEFT_ERROR(Fault::parse(text), InvalidArgument,
                      "WEFT_FAULT is '" + std::string(text) + "', expected KIND:rank=R");
  }
}

/// For rank 1, which is in step 4 and then in step 5, in phase forward.
int wait_status_with(const char* fault, const char* restarts = nullptr) {
  return wait_status_of([&] {
    ::setenv("WEFT_FAULT", fault, 1);
    if (restarts) ::setenv("TORCHELASTIC_RESTART_COUNT", restarts, 1);
    thread_state().rank = 1;
    fault_point();  // outside any phase
    for (const int step : {4, 5}) {
      thread_state().step = step;
      const PhaseScope phase("forward");
      fault_point();
    }
  });
}

TEST(FaultPoint, EndsTheProcessByTheKindOfFault) {
  const int killed = wait_status_with("kill:rank=1");
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL) << killed;
  const int stopped = wait_status_with("stop:rank=1");
  EXPECT_TRUE(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP) << stopped;
  EXPECT_EQ(wait_status_with("exit:rank=1"), W_EXITCODE(3, 0));
  EXPECT_EQ(wait_status_with("raise:rank=1"), W_EXITCODE(10, 0));
  EXPECT_EQ(wait_status_with("rise:rank=1"), W_EXITCODE(11, 0));
}

TEST(FaultPoint, DelaysARankEachTime) {
  const auto seconds_with = [](const char* fault) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(wait_status_with(fault), 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_GE(seconds_with("delay=60ms:rank=1"), 0.12);  // in both steps
  EXPECT_GE(seconds_with("delay=120ms:rank=1:step=5:phase=forward"), 0.12);
  for (const char* fault : {"delay=1000s:rank=0", "delay=1000s:rank=1:phase=save"}) {
    EXPECT_LT(seconds_with(fault), 1000) << fault;
  }
}

TEST(FaultPoint, StrikesTheRankAtTheStepInThePhaseThatAreNamed) {
  for (const char* fault : {"exit:rank=1:step=4", "exit:rank=1:step=5:phase=forward"}) {
    EXPECT_EQ(wait_status_with(fault), W_EXITCODE(3, 0)) << fault;
  }
  for (const char* fault : {"exit:rank=0", "exit:rank=1:step=6", "exit:rank=1:phase=save"}) {
    EXPECT_EQ(wait_status_with(fault), 0) << fault;
  }
  const Status seen = seen_of([] {
    ::setenv("WEFT_FAULT", "kill:rank=0:step=5:phase=forward", 1);
    for (thread_state().step = 0;; ++thread_state().step) {
      const PhaseScope phase("forward");
      fault_point();
    }
  });
  EXPECT_EQ(seen.step, 5);
}

TEST(FaultPoint, MayHaveOthersAndLinksBesideIt) {
  EXPECT_EQ(wait_status_with("link=0-1:1MB/s"), 0);
  for (const char* faults : {"link=1-0:1MB/s,raise:rank=1:step=5,link=2-1:1MB/s,exit:rank=1:step=4",
                             "exit:rank=1,link=1-0:1MB/s"}) {
    EXPECT_EQ(wait_status_with(faults), W_EXITCODE(3, 0)) << faults;
  }
  for (const char* wrong : {"link=0-1:1MB/s,", ",link=0-1:1MB/s", "link=0-1:1MB/s,,exit:rank=1",
                            "link=0-1:1MB/s,kil:rank=1", "links=0-1:1MB/s"}) {
    EXPECT_EQ(wait_status_with(wrong), W_EXITCODE(11, 0)) << wrong;
  }
}

TEST(FaultPoint, StrikesInTheMiddleOfAnAllReduce) {
  const int status = wait_status_of([] {
    ::setenv("WEFT_FAULT", "exit:rank=0:phase=allreduce", 1);
    {
      const PhaseScope other("broadcast", [] { return ""; }), inner("forward");
      fault_point();
    }
    const PhaseScope operation("all_reduce", [] { return ""; });
    fault_point();
  });
  EXPECT_EQ(status, W_EXITCODE(3, 0));
}

TEST(FaultPoint, StrikesInAPhaseThatIsPartOfAnother) {
  const auto status_with = [](const char* fault) {
    return wait_status_of([&] {
      ::setenv("WEFT_FAULT", fault, 1);
      const PhaseScope operation("all_reduce", [] { return ""; });
      fault_point("connect");
    });
  };
  EXPECT_EQ(status_with("exit:rank=0:phase=connect"), W_EXITCODE(3, 0));
  EXPECT_EQ(status_with("exit:rank=0:phase=allreduce"), 0);
}

TEST(FaultPoint, SparesARunThatWasRestarted) {
  EXPECT_EQ(wait_status_with("kill:rank=1", "1"), 0);
  EXPECT_EQ(wait_status_with("exit:rank=1", "0"), W_EXITCODE(3, 0));
  EXPECT_EQ(wait_status_with("rise:rank=1", "1"), W_EXITCODE(11, 0));
}

}  // namespace
}  // namespace weft
