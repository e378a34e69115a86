// How weftrun shows the output of its ranks, in files and on a terminal.
#include <pty.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstring>
#include <stdexcept>

#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

using testing::lines_by_rank;
using testing::Weftrun;
using Words = std::vector<std::string>;

Words shell(Words options, const std::string& script) {
  for (const std::string& word : {std::string("sh"), std::string("-c"), script}) {
    options.push_back(word);
  }
  return options;
}

TEST(WeftrunOutput, ShowsEachRanksLinesInOrderAndWhole) {
  // Halves of lines, with output of other ranks in between.
  Weftrun run(shell({"-np", "4"},
                    "for i in 1 2 3; do printf \"same $i \"; sleep 0.02; echo end; "
                    "printf \"own $RANK$i \" >&2; sleep 0.02; echo end >&2; done; printf last"));
  EXPECT_EQ(run.finish(), 0);
  const auto out = lines_by_rank(run.out()), err = lines_by_rank(run.err());
  for (int rank = 0; rank < 4; ++rank) {
    const std::string own = "own " + std::to_string(rank);
    EXPECT_EQ(out.at(rank), (Words{"same 1 end", "same 2 end", "same 3 end", "last"}));
    EXPECT_EQ(err.at(rank), (Words{own + "1 end", own + "2 end", own + "3 end"}));
  }
  EXPECT_EQ(out.size(), 4u);
  EXPECT_EQ(err.size(), 4u);
}

TEST(WeftrunOutput, LosesNothingOfMuch) {
  Weftrun run(shell({"-np", "2"}, "seq $((RANK * 1000000)) $((RANK * 1000000 + 50000))"));
  EXPECT_EQ(run.finish(), 0);
  const auto lines = lines_by_rank(run.out());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(lines.at(rank).size(), 50001u);
    for (int i = 0; i <= 50000; ++i) {
      ASSERT_EQ(lines.at(rank)[i], std::to_string(rank * 1000000 + i));
    }
  }
}

TEST(WeftrunOutput, OneRankIsShownAsItIs) {
  Weftrun run(shell({"-np", "1"}, "printf 'a\\rb'; printf '[c' >&2"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(run.out(), "a\rb");
  EXPECT_EQ(run.err(), "[c");
}

TEST(WeftrunOutput, OnlyRankZeroHasAnInput) {
  Weftrun run(shell({"-np", "2"}, "readlink /proc/$$/fd/0"));
  EXPECT_EQ(run.finish(), 0);
  // The test's weftrun itself reads /dev/null; the tests below use a terminal.
  EXPECT_EQ(lines_by_rank(run.out()).at(1), Words{"/dev/null"});
}

TEST(WeftrunOutput, ShowsTheRanksAskedFor) {
  Weftrun run(shell({"-np", "3", "--local-ranks-filter", "0,2"},
                    "echo $RANK; [ $RANK = 1 ] && echo why >&2 && exit 3; sleep 0.2"));
  EXPECT_EQ(run.finish(), 3);
  const auto lines = lines_by_rank(run.out());
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines.at(0), Words{"0"});
  EXPECT_EQ(lines.at(2), Words{"2"});
  // But the output of a rank that failed is always shown.
  EXPECT_HAS(run.err(), "|   why\n");
}

TEST(WeftrunOutput, GoesToFilesAsAsked) {
  Weftrun run(shell({"-np", "2", "--log-dir", "DIR/logs", "-t", "1", "-r", "0:2", "--rdzv-id",
                     "job", "--max-restarts", "1", "--grace", "60"},
                    "echo out $RANK; echo err $RANK >&2; exit $((RANK == 0))"));
  EXPECT_EQ(run.finish(), 1);
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run.path("logs"))) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().string();
    EXPECT_EQ(name.find(run.path("logs/job_")), 0u);
    files[name.substr(name.find("/attempt_") + 1)] = testing::read_file(name);
  }
  EXPECT_EQ(files, (std::map<std::string, std::string>{{"attempt_0/0/stdout.log", "out 0\n"},
                                                       {"attempt_0/0/stderr.log", "err 0\n"},
                                                       {"attempt_0/1/stdout.log", "out 1\n"},
                                                       {"attempt_1/0/stdout.log", "out 0\n"},
                                                       {"attempt_1/0/stderr.log", "err 0\n"},
                                                       {"attempt_1/1/stdout.log", "out 1\n"}}));
  EXPECT_EQ(lines_by_rank(run.out()).at(0), (Words{"out 0", "out 0"}));
  const auto err = lines_by_rank(run.err());
  EXPECT_FALSE(err.contains(0));
  EXPECT_EQ(err.at(1), (Words{"err 1", "err 1"}));
  EXPECT_HAS(run.err(), "|   err 0\n");
}

TEST(WeftrunOutput, FilesStayInTheirFolderWhateverTheRunIsCalled) {
  Weftrun run({"--log-dir", "DIR/logs", "-r", "3", "--rdzv-id", "../me/first", "true"});
  EXPECT_EQ(run.finish(), 0) << run.err();
  const std::filesystem::directory_iterator logs(run.path("logs"));
  ASSERT_NE(logs, std::filesystem::directory_iterator());
  EXPECT_EQ(logs->path().filename().string().find(".._me_first_"), 0u);
}

TEST(WeftrunOutput, WhatIsLostIsAnError) {
  const testing::TempFolder folder;
  for (const std::string arguments : {"-np 2 echo a", "--help"}) {
    const std::string log = folder.path("log");
    const int status =
        std::system(("launch/weftrun " + arguments + " >/dev/full 2>" + log).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
    EXPECT_HAS(testing::read_file(log),
               "weftrun: error: [stdout] some of the output is lost: No space left");
  }
}

TEST(WeftrunOutput, ATemporaryFolderThatIsNoneIsNamed) {
  const testing::TempFolder folder;
  const std::string log = folder.path("log");
  const int status = std::system(("TMPDIR=/nowhere launch/weftrun true 2>" + log).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_HAS(testing::read_file(log),
             "cannot make temporary files in /nowhere, which the "
             "environment variable TMPDIR names: No such file");
}

TEST(WeftrunOutput, ALogThatCannotBeMadeIsAnError) {
  Weftrun run({"-np", "2", "--log-dir", "/proc/no", "touch", "DIR/ran"});
  EXPECT_EQ(run.finish(), 1);
  EXPECT_HAS(run.err(), "/proc/no");
  EXPECT_FALSE(run.has_file("ran"));
}

/// weftrun at a terminal of its own, on which the test types.
class AtTerminal {
 public:
  enum class Others { can_be_made, cannot };
  explicit AtTerminal(const std::string& script, Others others = Others::can_be_made) {
    winsize size = {.ws_row = 30, .ws_col = 77};
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ < 0) throw std::runtime_error(std::string("no terminal: ") + std::strerror(errno));
    if (pid_ == 0) {
      if (others == Others::cannot && !hide_terminals()) ::_exit(kCannotHide);
      ::execl("launch/weftrun", "weftrun", "-np", "2", "sh", "-c", script.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~AtTerminal() {
    ::close(terminal_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, WNOHANG);
  }
  AtTerminal(const AtTerminal&) = delete;
  AtTerminal& operator=(const AtTerminal&) = delete;

  void type(const std::string& text) const {
    EXPECT_EQ(::write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// Whether the text comes in time; shown() is everything that came.
  bool shows(const std::string& text) {
    return wait_for([&] { return shown_.find(text) != std::string::npos; });
  }
  int finish() {
    wait_for([] { return false; });
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  const std::string& shown() const { return shown_; }

  static constexpr int kCannotHide = 126;

 private:
  // For this process only: an empty /dev/pts, as in a minimal root file system.
  static bool hide_terminals() {
    const int own = CLONE_NEWNS;
    return (::unshare(own) == 0 || ::unshare(own | CLONE_NEWUSER) == 0) &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", "/dev/pts", "tmpfs", 0, nullptr) == 0;
  }

  template <class Condition>
  bool wait_for(Condition&& condition) {
    while (!condition()) {
      pollfd ready{terminal_, POLLIN, 0};
      const auto most = std::chrono::milliseconds(testing::kDeadline).count();
      char bytes[4096];
      if (::poll(&ready, 1, static_cast<int>(most)) != 1) return false;
      const ssize_t n = ::read(terminal_, bytes, sizeof bytes);
      if (n <= 0) return condition();
      shown_.append(bytes, static_cast<std::size_t>(n));
    }
    return true;
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

class WeftrunTerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    int terminal[2];
    if (::openpty(&terminal[0], &terminal[1], nullptr, nullptr, nullptr) != 0) {
      GTEST_SKIP() << "no terminals here: " << std::strerror(errno);
    }
    ::close(terminal[0]);
    ::close(terminal[1]);
  }
};

TEST_F(WeftrunTerminal, WhatIsTypedIsForRankZero) {
  AtTerminal run("if [ $RANK = 0 ]; then printf 'name? '; fi; read x; echo \"got <$x>\"");
  ASSERT_TRUE(run.shows("name? "));  // though the line has no end
  run.type("abc\n");
  EXPECT_EQ(run.finish(), 0) << run.shown();
  EXPECT_HAS(run.shown(), "[0] name? got <abc>");
  EXPECT_HAS(run.shown(), "[1] got <>");
}

TEST_F(WeftrunTerminal, ControlCReachesTheRanks) {
  AtTerminal run(
      "trap 'echo $RANK caught it; exit 0' INT; echo ready; while :; do sleep 0.02; done");
  ASSERT_TRUE(run.shows("ready"));
  run.type("\x03");
  EXPECT_EQ(run.finish(), 130) << run.shown();
  EXPECT_HAS(run.shown(), "[0] 0 caught it");
  EXPECT_HAS(run.shown(), "[1] 1 caught it");
}

TEST_F(WeftrunTerminal, RanksWriteToPipesWhereNoMoreCanBeMade) {
  AtTerminal run("[ -t 1 ] && echo terminal || echo pipe", AtTerminal::Others::cannot);
  const int status = run.finish();
  if (status == AtTerminal::kCannotHide) GTEST_SKIP() << "no mounts of its own here";
  EXPECT_EQ(status, 0) << run.shown();
  EXPECT_HAS(run.shown(), "pipe\r\n");
}

TEST_F(WeftrunTerminal, RanksSeeOneAsWideAndRankZerosBarMoves) {
  const testing::TempFolder folder;
  AtTerminal run(
      "[ -t 1 ] && [ -t 2 ] && stty size <&2; for i in 1 2 3; do printf '\\r%s0%%' $i >&2; "
      "until [ -e " +
      folder.root() + "/$i ]; do sleep 0.02; done; done; echo >&2");
  for (const int i : {1, 2, 3}) {
    EXPECT_TRUE(run.shows("\r\x1b[K" + std::to_string(i) + "0%")) << run.shown();
    testing::write_file(folder.path(std::to_string(i)), "");
  }
  EXPECT_EQ(run.finish(), 0) << run.shown();
  EXPECT_HAS(run.shown(), "] 30 77");
  EXPECT_HAS(run.shown(), "] 30%\r\n");
  EXPECT_LACKS(run.shown(), "] 10%");
}

}  // namespace
}  // namespace weft::launch
