// Finding and describing programs, and queued signals; weftrun_test tests the processes themselves.
#include "weft/launch/process.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::launch {
namespace {

TEST(FindProgram, LooksInPath) {
  const testing::TempFolder folder;
  testing::write_file(folder.path("tool"), "#!/bin/sh\n");
  testing::write_file(folder.path("text"), "");
  ::chmod(folder.path("tool").c_str(), 0755);
  const std::string before = ::getenv("PATH");
  ::setenv("PATH", ("/nowhere:" + folder.root()).c_str(), 1);
  EXPECT_EQ(find_program("tool"), folder.path("tool"));
  EXPECT_EQ(find_program(folder.path("tool")), folder.path("tool"));
  EXPECT_WEFT_ERROR(find_program("text"), Io, "there is no program 'text' in PATH");
  EXPECT_WEFT_ERROR(find_program(folder.path("text")), Io, "is no program that may be executed");
  EXPECT_WEFT_ERROR(find_program(folder.path("none")), Io, "there is no program " + folder.root());
  EXPECT_WEFT_ERROR(find_program(folder.root()), Io, "is no program that may be executed");
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.root());
  ::setenv("PATH", "/nowhere", 1);
  EXPECT_WEFT_ERROR(find_program("tool"), Io, "the one in this folder is ./tool");
  std::filesystem::current_path(here);
  ::setenv("PATH", before.c_str(), 1);
}

TEST(WaitStatus, IsDescribedAndBecomesAShellsStatus) {
  EXPECT_EQ(describe_end(W_EXITCODE(3, 0)), "exit status 3");
  EXPECT_EQ(describe_end(SIGKILL), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(describe_end(W_EXITCODE(0, SIGSEGV) | WCOREFLAG), "killed by signal 11 (SIGSEGV)");
  EXPECT_EQ(describe_end(40), "killed by signal 40");  // it has no name
  EXPECT_EQ(exit_status(W_EXITCODE(3, 0)), 3);
  EXPECT_EQ(exit_status(SIGTERM), 143);
}

TEST(SignalQueueTest, GivesSignalsInTurn) {
  const SignalQueue queue;
  EXPECT_EQ(queue.next(), 0);
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(queue.next(), SIGTERM);
  EXPECT_EQ(queue.next(), 0);
  EXPECT_FALSE(sigismember(&queue.mask_before(), SIGTERM));
}

TEST(SignalQueueTest, LeavesWhatIsIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  const SignalQueue queue;
  ::kill(::getpid(), SIGHUP);
  EXPECT_EQ(queue.next(), 0);
  std::signal(SIGHUP, SIG_DFL);
}

TEST(SignalQueueTest, LetsSignalsThroughWhereAsked) {
  static volatile std::sig_atomic_t came = 0;
  const SignalQueue queue;
  std::signal(SIGQUIT, [](int) { came = 1; });
  EXPECT_EQ(queue.unblocked([] {
    ::kill(::getpid(), SIGQUIT);
    return came;
  }),
            1);
  ::kill(::getpid(), SIGQUIT);
  EXPECT_EQ(queue.next(), SIGQUIT);
  std::signal(SIGQUIT, SIG_DFL);
}

/// A child that waits to be killed.
pid_t waiting_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  return child;
}

TEST(Children, AreKnownAndNobodyElse) {
  EXPECT_FALSE(has_children());
  EXPECT_EQ(other_children(-1), std::vector<pid_t>{});
  const pid_t first = waiting_child(), second = waiting_child();
  EXPECT_TRUE(has_children());
  EXPECT_EQ(other_children(second), std::vector<pid_t>{first});
  std::vector<pid_t> both = other_children(-1);
  std::ranges::sort(both);
  EXPECT_EQ(both, (std::vector<pid_t>{std::min(first, second), std::max(first, second)}));
  ::kill(first, SIGKILL);
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(first), &info, WEXITED | WNOWAIT);
  EXPECT_TRUE(has_children());
  EXPECT_EQ(other_children(-1), std::vector<pid_t>{second});  // this call has waited for the first
  EXPECT_EQ(::waitpid(first, nullptr, WNOHANG), -1);
  ::kill(second, SIGKILL);
  ::waitpid(second, nullptr, 0);
  EXPECT_FALSE(has_children());
}

TEST(FileLimitTest, IsTheHardOneWhileItLives) {
  rlimit before{}, now{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{50, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &low);
  {
    const FileLimit limit("a test", 60);
    EXPECT_EQ(limit.before().rlim_cur, 50U);
    ::getrlimit(RLIMIT_NOFILE, &now);
    EXPECT_EQ(now.rlim_cur, before.rlim_max);
  }
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, 50U);
  EXPECT_WEFT_ERROR(FileLimit("a test", std::int64_t{1} << 62), Library,
                    "a test needs 4611686018427387904 file descriptors in this process");
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, 50U);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(ScratchFolderTest, GoesWithItsOwner) {
  std::string path;
  {
    const ScratchFolder folder;
    path = folder.path();
    testing::write_file(path + "/x", "");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_WEFT_ERROR(make_folder("/nowhere/x"), Io, "cannot make a folder /nowhere/x");

  const char* const set = std::getenv("TMPDIR");
  const std::string before = set ? set : "";
  ::setenv("TMPDIR", "/nowhere", 1);
  EXPECT_WEFT_ERROR(ScratchFolder(), Io, "/nowhere, which the environment variable TMPDIR names");
  set ? ::setenv("TMPDIR", before.c_str(), 1) : ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace weft::launch
