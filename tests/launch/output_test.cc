// Lines of ranks: split, merged, shown. Times are made up.
#include "weft/launch/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "weft/launch/process.h"

namespace weft::launch {
namespace {

using std::chrono::milliseconds;
using Lines = std::vector<std::string>;
constexpr StandardStream kOut = StandardStream::out, kErr = StandardStream::err;

TEST(LineSplitter, CutsAtLineEnds) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.add("one\ntw"), Lines{"one"});
  EXPECT_EQ(splitter.open(), "tw");
  EXPECT_EQ(splitter.add("o\n\nthree"), (Lines{"two", ""}));
  EXPECT_EQ(splitter.finish(), "three");
  EXPECT_EQ(splitter.finish(), std::nullopt);
}

TEST(LineSplitter, OfALineDrawnSeveralTimesTheLastCounts) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.add("\r10%\r20"), Lines{});
  EXPECT_EQ(splitter.open(), "20");
  EXPECT_EQ(splitter.add("%\r"), Lines{});
  EXPECT_EQ(splitter.open(), "20%");
  EXPECT_EQ(splitter.add("\r\x1b[K30%"), Lines{});
  EXPECT_EQ(splitter.open(), "30%");
  EXPECT_EQ(splitter.add("\r\x1b[K40%\r\nDOS\r\n"), (Lines{"40%", "DOS"}));
  EXPECT_EQ(splitter.open(), "");
}

TEST(LineSplitter, BarsWithoutEndTakeNoRoom) {
  LineSplitter splitter;
  const std::string bar = '\r' + std::string(1000, '=');
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(splitter.add(bar), Lines{});
  EXPECT_EQ(splitter.finish(), bar.substr(1));
}

TEST(LineSplitter, CutsWhatIsTooLong) {
  LineSplitter splitter;
  const std::string most(LineSplitter::kMostLineBytes, 'x');
  EXPECT_EQ(splitter.add(most + most + "y\nz"), (Lines{most, most, "y"}));
  EXPECT_EQ(splitter.open(), "z");
}

class LineMergerTest : public ::testing::Test {
 protected:
  LineMerger make(int ranks, int first_rank = 0) {
    return LineMerger(first_rank, std::vector<bool>(ranks, true), milliseconds(200),
                      [this](StandardStream stream, const std::string& line) {
                        shown.push_back((stream == kErr ? "err " : "") + line);
                      });
  }
  static LineMerger::Clock::time_point at(int ms) {
    return LineMerger::Clock::time_point(milliseconds(ms));
  }
  Lines shown;
};

TEST_F(LineMergerTest, TheSameLineOfAllIsShownOnceAndAtOnce) {
  LineMerger merger = make(4);
  for (const int rank : {2, 0, 3}) merger.add(rank, kOut, "hello", at(rank));
  EXPECT_EQ(shown, Lines{});
  merger.add(1, kOut, "hello", at(10));
  EXPECT_EQ(shown, Lines{"[0-3] hello"});
  EXPECT_EQ(merger.next_due(), std::nullopt);
}

TEST_F(LineMergerTest, AfterTheWindowWithThoseThatSaidIt) {
  LineMerger merger = make(6, 8);
  for (const int rank : {0, 1, 2, 5}) merger.add(rank, kOut, "hello", at(0));
  EXPECT_EQ(merger.next_due(), at(200));
  merger.show_due(at(199));
  EXPECT_EQ(shown, Lines{});
  merger.show_due(at(200));
  EXPECT_EQ(shown, Lines{"[8-10,13] hello"});
  merger.add(3, kOut, "hello", at(201));
  merger.show_all();
  EXPECT_EQ(shown.back(), "[11] hello");
}

TEST_F(LineMergerTest, LinesThatDifferInNumbersStandSideBySide) {
  LineMerger merger = make(3);
  const auto say = [&](int rank) {
    merger.add(rank, kOut, "start", at(0));
    merger.add(rank, kOut, "rank " + std::to_string(rank), at(0));
    merger.add(rank, kOut, "loss 0." + std::string(rank + 1, '5'), at(0));
    merger.add(rank, kOut, "end", at(0));
  };
  for (const int rank : {1, 0, 2}) say(rank);
  merger.show_all();
  EXPECT_EQ(shown, (Lines{"[0-2] start", "[0] rank 0", "[1] rank 1", "[2] rank 2", "[0] loss 0.5",
                          "[1] loss 0.55", "[2] loss 0.555", "[0-2] end"}));
}

TEST_F(LineMergerTest, TheOrderOfARankIsKept) {
  LineMerger merger = make(2);
  for (const char* line : {"a", "b", "a", "c"}) merger.add(0, kOut, line, at(0));
  for (const char* line : {"b", "a", "x", "c", "a"}) merger.add(1, kOut, line, at(1));
  merger.show_all();
  EXPECT_EQ(shown, (Lines{"[0] a", "[0-1] b", "[0-1] a", "[1] x", "[0-1] c", "[1] a"}));
}

TEST_F(LineMergerTest, ARankThatSaysTheSameTwiceIsShownTwice) {
  LineMerger merger = make(2);
  for (int i = 0; i < 2; ++i) merger.add(0, kOut, "again", at(i));
  for (int i = 0; i < 3; ++i) merger.add(1, kOut, "again", at(i));
  merger.show_all();
  EXPECT_EQ(shown, (Lines{"[0-1] again", "[0-1] again", "[1] again"}));
}

TEST_F(LineMergerTest, StreamsAreKeptApart) {
  LineMerger merger = make(2);
  merger.add(0, kOut, "x", at(0));
  merger.add(1, kErr, "x", at(0));
  merger.show_all();
  EXPECT_EQ(shown, (Lines{"err [1] x", "[0] x"}));
}

TEST_F(LineMergerTest, BothStreamsOfARankAreShownAsTheyCame) {
  LineMerger merger = make(2);
  merger.add(0, kOut, "other", at(0));
  merger.add(1, kOut, "a", at(0));
  merger.add(1, kErr, "b", at(0));
  merger.add(1, kOut, "c", at(0));
  merger.show_all();
  EXPECT_EQ(shown, (Lines{"[1] a", "err [1] b", "[1] c", "[0] other"}));
}

TEST_F(LineMergerTest, NobodyWaitsForAStreamThatHasEnded) {
  LineMerger merger = make(3);
  merger.end(2, kOut);
  for (const int rank : {0, 1}) merger.add(rank, kOut, "x", at(0));
  EXPECT_EQ(shown, Lines{"[0-1] x"});
  merger.add(0, kErr, "y", at(0));
  merger.add(1, kErr, "y", at(0));
  EXPECT_EQ(shown.size(), 1u);
  merger.end(2, kErr);
  merger.show_due(at(0));
  EXPECT_EQ(shown.back(), "err [0-1] y");
}

TEST_F(LineMergerTest, OneRankIsShownAsItIs) {
  LineMerger merger = make(1);
  merger.add(0, kErr, "x", at(0));
  EXPECT_EQ(shown, Lines{"err x"});
}

// Lines of a rank that always prints something new go in front of a line that waits for it.
TEST_F(LineMergerTest, NoLineWaitsLongerThanTheWindow) {
  LineMerger merger = make(2);
  merger.add(0, kOut, "waits", at(0));
  for (int ms = 10; ms < 300; ms += 10) {
    merger.add(1, kOut, std::string(ms / 10, 'x'), at(ms));
    merger.show_due(at(ms));
    EXPECT_EQ(std::ranges::count(shown, "[0] waits"), ms >= 200) << ms;
  }
}

TEST_F(LineMergerTest, ManyLinesWaitForARankThatIsLate) {
  LineMerger merger = make(2);
  for (const int rank : {0, 1}) {
    for (int i = 0; i < 20000; ++i) merger.add(rank, kOut, std::to_string(i), at(0));
  }
  ASSERT_EQ(shown.size(), 20000u);
  EXPECT_EQ(shown.back(), "[0-1] 19999");
}

TEST_F(LineMergerTest, AndYetTheirBytesAreBounded) {
  LineMerger merger = make(2);
  for (int i = 0; i < 10; ++i) merger.add(0, kOut, std::string(1 << 20, 'a' + i), at(0));
  EXPECT_GE(shown.size(), 5u);
}

std::string read_all(int fd) {
  std::string text;
  char bytes[4096];
  pollfd ready{fd, POLLIN, 0};
  while (::poll(&ready, 1, 0) == 1) {
    const ssize_t n = ::read(fd, bytes, sizeof bytes);
    if (n <= 0) break;
    text.append(bytes, static_cast<std::size_t>(n));
  }
  return text;
}

TEST(ScreenTest, WritesEachStreamToItsOwn) {
  auto [out, to_out] = make_pipe();
  auto [err, to_err] = make_pipe();
  Screen screen(to_out.get(), to_err.get());
  EXPECT_FALSE(screen.is_terminal(kOut));
  EXPECT_EQ(screen.waits_for(), -1);
  screen.line(kOut, "a");
  screen.line(kErr, "b");
  screen.live(kErr, "bar");  // not a terminal, so it is not shown
  EXPECT_EQ(screen.waits_for(), to_out.get());
  screen.write_some();
  EXPECT_EQ(screen.waits_for(), -1);
  EXPECT_EQ(read_all(out.get()), "a\n");
  EXPECT_EQ(read_all(err.get()), "b\n");
}

TEST(ScreenTest, DoesNotWaitForWhoDoesNotRead) {
  auto [out, to_out] = make_pipe();
  Screen screen(to_out.get(), STDERR_FILENO);
  const std::string text(1000, 'x');
  for (int i = 0; i < 2000; ++i) screen.line(kOut, text);
  EXPECT_TRUE(screen.full());
  screen.write_some();
  screen.write_some();
  EXPECT_TRUE(screen.full());
  std::size_t got = 0;
  while (screen.waits_for() >= 0) {
    got += read_all(out.get()).size();
    screen.write_some();
  }
  got += read_all(out.get()).size();
  EXPECT_EQ(got, 2000 * 1001u);
  EXPECT_FALSE(screen.full());
}

TEST(ScreenTest, FindsOutThatNobodyReadsAnyMore) {
  std::signal(SIGPIPE, SIG_IGN);
  auto [out, to_out] = make_pipe();
  auto [err, to_err] = make_pipe();
  Screen screen(to_out.get(), to_err.get());
  out.close();
  screen.line(kOut, "a");
  screen.line(kErr, "b");
  screen.line(kOut, "c");
  screen.write_all();
  EXPECT_TRUE(screen.broken(kOut));
  EXPECT_FALSE(screen.broken(kErr));
  EXPECT_EQ(read_all(err.get()), "b\n");
  screen.line(kOut, "d");
  EXPECT_EQ(screen.waits_for(), -1);
}

TEST(ScreenTest, FindsOutThatADiskIsFull) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  Screen screen(full.get(), STDERR_FILENO);
  screen.line(kOut, "a");
  screen.write_all();
  EXPECT_EQ(screen.error(kOut), ENOSPC);
  EXPECT_EQ(screen.error(kErr), 0);
}

TEST(ScreenTest, MayWaitForSoLongAndNotLonger) {
  auto [out, to_out] = make_pipe();
  auto [err, to_err] = make_pipe();
  Screen screen(to_out.get(), to_err.get());
  screen.line(kOut, std::string(1 << 20, 'x'));
  screen.line(kErr, "behind it");
  const std::size_t lost = screen.write_for(milliseconds(20));
  EXPECT_EQ(screen.waits_for(), -1);
  EXPECT_TRUE(screen.broken(kOut));
  EXPECT_FALSE(screen.full());
  EXPECT_EQ(read_all(err.get()), "behind it\n");
  EXPECT_EQ(lost + read_all(out.get()).size(), (1U << 20) + 1);
  screen.line(kErr, "after it");
  EXPECT_EQ(screen.write_for(milliseconds(20)), 0U);
  EXPECT_EQ(read_all(err.get()), "after it\n");
}

TEST(ScreenTest, LinesPassAboveTheLiveOne) {
  int terminal[2];
  if (::openpty(&terminal[0], &terminal[1], nullptr, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "no terminals here: " << std::strerror(errno);
  }
  const Descriptor reader(terminal[0]), shown(terminal[1]);
  auto [out, to_out] = make_pipe();
  Screen screen(to_out.get(), shown.get());
  EXPECT_TRUE(screen.is_terminal(kErr));
  screen.live(kErr, "10%");
  screen.live(kErr, "10%");
  screen.live(kOut, "");
  screen.line(kErr, "warning");
  screen.line(kOut, "elsewhere");
  screen.live(kErr, "20%");
  screen.live(kErr, "");
  screen.line(kErr, "end");
  screen.write_all();
  EXPECT_EQ(read_all(reader.get()), "\r\x1b[K10%\r\x1b[Kwarning\r\n10%\r\x1b[K20%\r\x1b[Kend\r\n");
}

}  // namespace
}  // namespace weft::launch
