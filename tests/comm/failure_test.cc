// What ranks and launchers store about the first failure.
#include "weft/comm/store/failure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

const Failure kKilled{2, "killed by signal 9", "all_reduce 17 (bucket 2)", 5};

TEST(FailureTest, IsFiveLinesOfText) {
  EXPECT_EQ(
      to_text(kKilled),
      "rank 2\nstep 5\ntimed_out 0\nphase all_reduce 17 (bucket 2)\ncause killed by signal 9");
  EXPECT_EQ(to_text({.rank = 0, .cause = "", .timed_out = true}),
            "rank 0\nstep -1\ntimed_out 1\nphase \ncause ");
}

TEST(FailureTest, ComesBackAsItWas) {
  for (const Failure& failure :
       {kKilled, Failure{0, "x"}, Failure{7, "", "", 1 << 20}, Failure{1, "", "", 2, true}}) {
    const Failure back = parse_failure(to_text(failure));
    EXPECT_EQ(back.rank, failure.rank);
    EXPECT_EQ(back.cause, failure.cause);
    EXPECT_EQ(back.phase, failure.phase);
    EXPECT_EQ(back.step, failure.step);
    EXPECT_EQ(back.timed_out, failure.timed_out);
  }
}

TEST(FailureTest, LinesAreKeptApartAndShort) {
  const std::string text = to_text({1, "a\nrank 3\r" + std::string(100'000, 'x'), "b\nc"});
  const Failure back = parse_failure(text);
  EXPECT_EQ(back.rank, 1);
  EXPECT_EQ(back.phase, "b c");
  EXPECT_EQ(back.cause.substr(0, 10), "a rank 3 x");
  EXPECT_EQ(back.cause.size(), 8192u);
}

TEST(FailureTest, RefusesOtherTexts) {
  for (const char* text :
       {"", "rank 2", "rank 2\nstep 5\ntimed_out 0\nphase x",
        "rank two\nstep 5\ntimed_out 0\nphase x\ncause y",
        "rank 2\nstep 5\ntimed_out 0\nphase x\ncause y\nmore",
        "rank2\nstep 5\ntimed_out 0\nphase x\ncause y",
        "step 5\nrank 2\ntimed_out 0\nphase x\ncause y",
        "rank 2x\nstep 5\ntimed_out 0\nphase x\ncause y",
        "rank 2\nstep 5\ntimed_out 2\nphase x\ncause y", "rank 2\nstep 5\nphase x\ncause y"}) {
    EXPECT_WEFT_ERROR(parse_failure(text), InvalidArgument, "who failed first");
  }
}

TEST(FailureTest, SaysWhatIsKnown) {
  EXPECT_EQ(describe(kKilled), "killed by signal 9 in all_reduce 17 (bucket 2) at step 5");
  EXPECT_EQ(describe({0, "exit status 1"}), "exit status 1");
  EXPECT_EQ(describe({0, "out of memory", "", 3}), "out of memory at step 3");
}

TEST(FailureTest, TheFirstOneStands) {
  MemoryStore store;
  EXPECT_EQ(find_failure(store, Deadline(milliseconds(0))), std::nullopt);
  EXPECT_EQ(note_failure(store, kKilled).rank, 2);
  EXPECT_EQ(note_failure(store, {0, "lost rank 2"}).rank, 2);
  const auto found = find_failure(store, Deadline(milliseconds(0)));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, "killed by signal 9");
  EXPECT_EQ(store.get(kFailureKey), to_text(kKilled));
  EXPECT_EQ(find_failure(store, Deadline(milliseconds(0)), kLostKey), std::nullopt);
}

TEST(FailureTest, SaysWhetherItsRankLives) {
  MemoryStore store;
  note_own_failure(store, {.rank = 2, .cause = "no memory"}, false);
  EXPECT_TRUE(has_survived(store, kKilled));
  note_end(store, kKilled);
  EXPECT_FALSE(has_survived(store, kKilled));
  EXPECT_TRUE(has_survived(store, {.rank = 1, .cause = "nobody came", .timed_out = true}));
  EXPECT_EQ(find_failure(store, Deadline(milliseconds(0)))->cause, "no memory");
}

TEST(FailureTest, AWatchSeesOnlyLaterFailuresOfOthers) {
  for (const bool before : {true, false}) {
    MemoryStore store;
    if (before) note_failure(store, kKilled);
    FailureWatch other(&store, 0), own(&store, kKilled.rank);
    if (!before) note_failure(store, kKilled);
    std::this_thread::sleep_for(Deadline::kCheckEvery);
    EXPECT_EQ(other.look().has_value(), !before);
    EXPECT_FALSE(own.look());
  }
}

TEST(FailureTest, IsWaitedFor) {
  MemoryStore store;
  std::thread launcher([other = store.duplicate()] {
    std::this_thread::sleep_for(milliseconds(20));
    note_failure(*other, kKilled);
  });
  const auto found = find_failure(store, Deadline(milliseconds(30'000)));
  launcher.join();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
}

}  // namespace
}  // namespace weft::comm
