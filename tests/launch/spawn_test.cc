// A program that starts itself as its ranks.
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

using testing::becomes_true;
using testing::Weftrun;

/// tests/launch/spawned as the only rank of a weftrun, which provides the folder and watches the
/// processes.
class Spawned : public Weftrun {
 public:
  explicit Spawned(const std::string& mode)
      : Weftrun({"--grace", "60", "tests/launch/spawned", mode, "last argument"}) {}
};

TEST(Spawn, RunsEachRankAndReturnsWhenAllHaveEnded) {
  Spawned run("well");
  EXPECT_EQ(run.finish(), 0) << run.err();
  EXPECT_EQ(run.file("rank0"), "2 0 last argument\n");
  EXPECT_EQ(run.file("rank1"), "2 1 last argument\n");
  EXPECT_EQ(run.out(), "all have ended\n");
}

TEST(Spawn, CarriesTheFirstErrorToTheCaller) {
  Spawned run("error");
  EXPECT_EQ(run.finish(), 1);
  EXPECT_TRUE(run.out().starts_with("Shape: [spawn] rank 1: [conv2d] got 3 at ")) << run.out();
  Spawned other("other");
  EXPECT_EQ(other.finish(), 1);
  EXPECT_EQ(other.out().find("Library: [spawn] rank 1: not weft's"), 0u) << other.out();
}

TEST(Spawn, LostOutputOfARankIsAnErrorToo) {
  Spawned run("full");
  EXPECT_EQ(run.finish(), 1);
  EXPECT_HAS(run.out(), "[spawn] rank 0: ");
  EXPECT_HAS(run.out(), "some of the output is lost");
}

TEST(Spawn, ARankThatIsKilledIsAnErrorToo) {
  Spawned run("killed");
  EXPECT_EQ(run.finish(), 1);
  EXPECT_TRUE(run.out().starts_with("PeerFailed: [spawn] rank 1: killed by signal 9 (SIGKILL)"))
      << run.out();
}

TEST(Spawn, ASignalIsPassedOnAndRaisedAgain) {
  Spawned run("signal");
  for (const char* rank : {"rank0", "rank1"}) {
    ASSERT_TRUE(becomes_true([&] { return run.has_file(rank); }));
  }
  run.signal(SIGQUIT);
  EXPECT_EQ(run.finish(), 128 + SIGQUIT);  // the status of weftrun, which has passed the signal on
  EXPECT_EQ(run.out(), "");
}

// They have ended when the call returns.
TEST(Spawn, WhatARankLeavesBehindEndsToo) {
  Spawned run("stray");
  EXPECT_EQ(run.finish(), 0) << run.out() << run.err();
  EXPECT_TRUE(run.has_file("stray"));
}

// A supervisor may ignore SIGCHLD, and its programs inherit this: then the kernel does not keep
// their children until they are waited for.
TEST(Spawn, SeesItsRanksEndWhereSigchldIsIgnored) {
  Spawned run("ignored");
  EXPECT_EQ(run.finish(), 0) << run.err();
  EXPECT_EQ(run.out(), "all have ended\n");
}

TEST(Spawn, MayBeCalledTwice) {
  Spawned run("twice");
  EXPECT_EQ(run.finish(), 0) << run.err();
  for (const char* file : {"firstrank0", "firstrank1", "rank0", "rank1"}) {
    EXPECT_TRUE(run.has_file(file)) << file;
  }
  EXPECT_EQ(run.out(), "all have ended\n");
}

/// The same for tests/launch/spawned_program.
class SpawnedProgram : public Weftrun {
 public:
  explicit SpawnedProgram(const std::string& mode)
      : Weftrun({"--grace", "60", "tests/launch/spawned_program", "--mode", mode, "--trace",
                 "DIR/trace.json"}) {}
};

TEST(SpawnInProgram, ItsRanksMeet) {
  for (const char* address : {"env", "tcp"}) {
    SpawnedProgram run(address);
    EXPECT_EQ(run.finish(), 0) << run.err();
    EXPECT_EQ(run.out(), "[0] sum 3\nall have ended\n") << address;
    EXPECT_HAS(run.file("trace.json"), "all_reduce") << address;
  }
}

TEST(SpawnInProgram, SaysWhichRankFailed) {
  SpawnedProgram run("fail");
  EXPECT_EQ(run.finish(), 1);
  EXPECT_HAS(run.err(), "spawned_program: error: [spawn] rank 1: [conv2d] got 3 at ");
  EXPECT_EQ(run.out(), "");
}

TEST(SpawnInProgram, ASignalComesToEachRankOnce) {
  SpawnedProgram run("signal");
  for (const char* file : {"ready0", "ready1"}) {
    ASSERT_TRUE(becomes_true([&] { return run.has_file(file); }));
  }
  run.signal(SIGINT);
  EXPECT_EQ(run.finish(), 128 + SIGINT);
  EXPECT_EQ(run.file("signals0"), "1\n");
  EXPECT_EQ(run.file("signals1"), "1\n");
}

}  // namespace
}  // namespace weft::launch
