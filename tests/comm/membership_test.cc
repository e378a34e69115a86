#include "weft/comm/membership.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace weft::comm {
namespace {

using Ranks = Membership::Ranks;

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest() { launcher.begin(3); }

  Membership member() const { return Membership(store.duplicate()); }
  std::optional<Ranks> ranks(int generation) const {
    return member().ranks(generation, Deadline(std::chrono::milliseconds(0)));
  }
  std::optional<Failure> failure(int generation) const {
    return find_failure(*member().keys(generation), Deadline(std::chrono::milliseconds(0)));
  }

  MemoryStore store;
  Membership launcher{store.duplicate()};
};

bool anybody(int) { return true; }

TEST_F(MembershipTest, AFailureMakesTheNextGeneration) {
  EXPECT_EQ(ranks(0), (Ranks{0, 1, 2}));
  EXPECT_EQ(ranks(1), std::nullopt);
  EXPECT_TRUE(launcher.lose({.rank = 0, .cause = "killed"}, 1));
  EXPECT_EQ(ranks(1), (Ranks{1, 2}));
  EXPECT_TRUE(member().has_failed(0));
  EXPECT_FALSE(member().has_failed(1));
  EXPECT_TRUE(launcher.lose({.rank = 2, .cause = "too"}, 1));
  EXPECT_EQ(ranks(2), (Ranks{1}));
  // The first failure of a group is not replaced.
  EXPECT_EQ(failure(0)->rank, 0);
  EXPECT_EQ(failure(1)->rank, 2);
  EXPECT_EQ(failure(1)->cause, "too");
  EXPECT_FALSE(failure(2));
}

TEST_F(MembershipTest, WithTooFewTheRunEnds) {
  EXPECT_TRUE(launcher.lose({.rank = 1, .cause = "killed"}, 2));
  EXPECT_FALSE(launcher.lose({.rank = 0, .cause = "killed"}, 2));
  EXPECT_EQ(ranks(2), Ranks{});
  EXPECT_TRUE(launcher.lose({.rank = 2, .cause = "follows"}, 2));  // no group loses it any more
  EXPECT_EQ(member().await_invitation(1), -1);
  EXPECT_FALSE(member().grows(2, anybody));
}

TEST_F(MembershipTest, ThoseThatHaveFinishedAreNotWaitedFor) {
  member().leave(0, 0);
  EXPECT_EQ(ranks(1), (Ranks{1, 2}));
  EXPECT_FALSE(member().has_failed(0));  // the others may still be in its last vote
  EXPECT_TRUE(launcher.lose({.rank = 1, .cause = "killed"}, 1));
  EXPECT_EQ(ranks(2), Ranks{2});
  member().leave(2, 0);
  EXPECT_EQ(ranks(3), Ranks{});
  member().leave(2, 0);  // the second call changes nothing
  EXPECT_EQ(ranks(4), std::nullopt);
}

// Rank 2's failure makes generation 1, in which rank 1 waits for rank 0, which has finished.
TEST_F(MembershipTest, WhoWaitsForOneThatHasFinishedHearsOfIt) {
  EXPECT_TRUE(launcher.lose({.rank = 2, .cause = "killed"}, 1));
  member().leave(0, 0);
  EXPECT_TRUE(member().has_failed(1));
  EXPECT_EQ(ranks(2), Ranks{1});
}

TEST_F(MembershipTest, ARankComesBackWhenItIsInvited) {
  EXPECT_TRUE(launcher.lose({.rank = 0, .cause = "killed"}, 1));
  EXPECT_FALSE(member().grows(1, anybody));
  int generation = 0;
  std::thread back([&] { generation = member().await_invitation(0); });
  static_cast<void>(store.duplicate()->get("elastic/waiting/0"));
  EXPECT_FALSE(member().grows(1, [](int rank) { return rank != 0; }));
  EXPECT_TRUE(member().grows(1, anybody));
  back.join();
  EXPECT_EQ(generation, 2);
  EXPECT_EQ(ranks(2), (Ranks{0, 1, 2}));
  EXPECT_TRUE(member().grows(1, anybody));  // asked again: no other generation
  EXPECT_FALSE(member().grows(2, anybody));
  EXPECT_EQ(ranks(3), std::nullopt);
}

// The launcher notices its end before it is invited, or after.
TEST_F(MembershipTest, ARankThatWaitsMayFail) {
  EXPECT_TRUE(launcher.lose({.rank = 0, .cause = "killed"}, 2));
  store.duplicate()->set("elastic/waiting/0", "");
  EXPECT_TRUE(launcher.lose({.rank = 0, .cause = "again"}, 2));
  EXPECT_FALSE(member().grows(1, anybody));
  store.duplicate()->set("elastic/waiting/0", "");
  EXPECT_TRUE(member().grows(1, anybody));
  EXPECT_EQ(ranks(3), (Ranks{0, 1, 2}));
  EXPECT_TRUE(launcher.lose({.rank = 0, .cause = "once more"}, 2));
  EXPECT_EQ(failure(3)->cause, "once more");
  EXPECT_EQ(ranks(4), (Ranks{1, 2}));
}

}  // namespace
}  // namespace weft::comm
