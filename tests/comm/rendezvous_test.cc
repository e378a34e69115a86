// Ranks that meet, do not come, come twice or do not fit together, in a store and in a file.
#include "weft/comm/store/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "weft/comm/store/failure.h"
#include "weft/comm/store/file_store.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{30'000}, kShort{300};
constexpr const char* kHost = "127.0.0.1";

using Keys = std::shared_ptr<Store>;
using Meet = std::function<Keys(const Joining& joining, milliseconds time)>;

// A process like this one on another host, so it is unknown whether it still runs.
Member elsewhere(int rank, std::string address = kHost) {
  Member member = this_member(rank, std::move(address));
  member.host = "node" + std::to_string(rank);
  member.boot = "boot of " + member.host;
  return member;
}

// Another process of this machine that has ended.
Member ended(int rank) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  Member member = this_member(rank, kHost);
  member.pid = child;
  ::waitpid(child, nullptr, 0);
  return member;
}

Joining joining(Member me, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {std::move(me), std::move(ranks), "ring"};
}
Joining here(int rank, int size) { return joining(this_member(rank, kHost), size); }

std::future<Keys> start(const Meet& meet, Joining j, milliseconds time = kLong) {
  return std::async(std::launch::async, [=] { return meet(j, time); });
}

// A place where ranks meet, and the store that they use.
struct Place {
  Meet meet;
  std::function<std::unique_ptr<Store>()> store;
};

// Waits until rank `rank` waits there for the others.
void wait_for(const Place& place, int rank) {
  place.store()->get("rendezvous/rank/" + std::to_string(rank), Deadline(kLong));
}

Place in_memory(const testing::TempFolder&) {
  const auto store = std::make_shared<MemoryStore>();
  return {[=](const Joining& j, milliseconds time) {
            return join(store->duplicate(), j, Deadline(time));
          },
          [=] { return store->duplicate(); }};
}

Place by_tcp(const testing::TempFolder&) {
  const auto server = std::make_shared<TcpStoreServer>(TcpStoreServer::Options{});
  return {[=](const Joining& j, milliseconds time) {
            const Deadline deadline(time);
            return join(std::make_shared<TcpStore>(kHost, server->port(), "", deadline), j,
                        deadline);
          },
          [=] { return server->store(); }};
}

Place in_file(const testing::TempFolder& folder) {
  const std::string path = folder.path("run");
  return {[=](const Joining& j, milliseconds time) {
            return join_in_file(path, j, kLong, Deadline(time));
          },
          [=] { return std::make_unique<FileStore>(path); }};
}

struct Kind {
  const char* name;
  Place (*make)(const testing::TempFolder& folder);
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class RendezvousTest : public ::testing::TestWithParam<Kind> {
 protected:
  const testing::TempFolder folder_;
  const Place place_ = GetParam().make(folder_);
  const Meet& meet_ = place_.meet;
};

TEST_P(RendezvousTest, AllMeet) {
  constexpr int kSize = 4;
  std::vector<std::future<Keys>> ranks;
  for (int r = kSize - 1; r >= 0; --r) ranks.push_back(start(meet_, here(r, kSize)));
  std::vector<Keys> keys;
  for (auto& rank : ranks) keys.push_back(rank.get());
  keys[0]->set("key", "value");
  for (const Keys& k : keys) EXPECT_EQ(k->get("key"), "value");
  EXPECT_EQ(folder_.files(), 0);
}

// The second meeting in the same store finds nothing of the first.
TEST_P(RendezvousTest, ProcessesMayMeetAgain) {
  for (int run = 0; run < 3; ++run) {
    auto other = start(meet_, here(1, 2));
    const Keys mine = meet_(here(0, 2), kLong), others = other.get();
    EXPECT_EQ(mine->try_get("key"), std::nullopt);
    mine->set("key", "value");
    EXPECT_EQ(others->get("key"), "value");
  }
}

TEST_P(RendezvousTest, WhoDoesNotComeIsNamedByAll) {
  auto other = start(meet_, here(3, 5));
  wait_for(place_, 3);
  const std::string text = "ranks 1, 2, 4 of 5 have not come";
  EXPECT_WEFT_ERROR(meet_(here(0, 5), kShort), Timeout, text);
  EXPECT_WEFT_ERROR(other.get(), Timeout, text);
  EXPECT_EQ(folder_.files(), 0);
}

TEST_P(RendezvousTest, WithoutRankZeroTheOthersNameIt) {
  EXPECT_WEFT_ERROR(meet_(here(1, 2), kShort), Timeout, "rank 0 of 2 has not come");
}

TEST_P(RendezvousTest, TheSameRankTwiceIsAnErrorOnBoth) {
  for (const int twice : {0, 1}) {
    SCOPED_TRACE(twice);
    const testing::TempFolder folder;
    const Place place = GetParam().make(folder);
    std::vector<std::future<Keys>> ranks;
    for (const int rank : {0, 1}) ranks.push_back(start(place.meet, here(rank, 3)));
    for (const int rank : {0, 1}) wait_for(place, rank);
    const Member second = elsewhere(twice);
    EXPECT_WEFT_ERROR(place.meet(joining(second, 3), kLong), InvalidArgument,
                      "rank " + std::to_string(twice) + " has joined twice");
    for (auto& rank : ranks) EXPECT_WEFT_ERROR(rank.get(), InvalidArgument, describe(second));
    EXPECT_EQ(folder.files(), 0);
  }
}

TEST_P(RendezvousTest, DifferentWorldsOrBackendsAreAnErrorOnAll) {
  Joining gloo = here(1, 2);
  gloo.backend = "gloo";
  for (const Joining& other : {here(1, 3), gloo}) {
    const testing::TempFolder folder;
    const Meet meet = GetParam().make(folder).meet;
    auto first = start(meet, here(0, 2)), second = start(meet, other);
    EXPECT_WEFT_ERROR(first.get(), InvalidArgument, "has world size ");
    EXPECT_WEFT_ERROR(second.get(), InvalidArgument, "all need the same");
  }
}

TEST_P(RendezvousTest, HostsThatCannotReachEachOtherAreAnErrorOnAll) {
  auto first = start(meet_, joining(elsewhere(0, "192.0.2.1"), 2));
  auto second = start(meet_, joining(elsewhere(1), 2));
  const std::string text = "rank 1 listens on 127.0.0.1";
  EXPECT_WEFT_ERROR(first.get(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(second.get(), InvalidArgument, text);
}

TEST_P(RendezvousTest, HostsThatReachEachOtherMeet) {
  auto other = start(meet_, joining(elsewhere(1, "192.0.2.2"), 2));
  EXPECT_NO_THROW(meet_(joining(elsewhere(0, "192.0.2.1"), 2), kLong));
  EXPECT_NO_THROW(other.get());
}

std::string name_of(const ::testing::TestParamInfo<Kind>& kind) { return kind.param.name; }

INSTANTIATE_TEST_SUITE_P(All, RendezvousTest,
                         ::testing::Values(Kind{"Memory", in_memory}, Kind{"Tcp", by_tcp},
                                           Kind{"File", in_file}),
                         name_of);

TEST(Rendezvous, ARankThatTheLauncherSawFailEndsTheWait) {
  const auto store = std::make_shared<MemoryStore>();
  const Meet meet = [&](const Joining& j, milliseconds time) {
    return join(store->duplicate(), j, Deadline(time));
  };
  auto first = start(meet, here(0, 3)), second = start(meet, here(1, 3));
  ASSERT_EQ(first.wait_for(kShort), std::future_status::timeout);
  note_failure(*store, {.rank = 2, .cause = "killed by signal 9"});
  EXPECT_WEFT_ERROR(first.get(), PeerFailed,
                    "rank 2 failed before all ranks had met: killed by signal 9");
  EXPECT_WEFT_ERROR(second.get(), PeerFailed, "rank 2 failed");
}

// The ranks left of a run that has lost ranks 0 and 2.
TEST(Rendezvous, RanksAreCalledByTheirNumbers) {
  const auto meet = [](const std::shared_ptr<Store>& store, int rank, milliseconds time) {
    return std::async(std::launch::async, [=, other = store->duplicate()]() mutable {
      return join(std::move(other), {this_member(rank, kHost), {1, 3}, "ring", true},
                  Deadline(time));
    });
  };
  const auto store = std::make_shared<MemoryStore>(), other = std::make_shared<MemoryStore>();
  auto first = meet(store, 1, kLong), second = meet(store, 3, kLong);
  EXPECT_EQ(member_of(*first.get(), 3)->rank, 3);
  EXPECT_EQ(member_of(*second.get(), 0), std::nullopt);
  try {
    meet(other, 1, kShort).get();
    FAIL() << "rank 3 has not come";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_HAS(error.what(), "rank 3 of ranks 1, 3 has not come");
    EXPECT_LACKS(error.what(), "start all");  // they run already
  }
}

// --- Files that are left -------------------------------------------------------------------------

class RendezvousFileTest : public ::testing::Test {
 protected:
  // As if `member` had joined a run there and had been killed.
  void leave(const Member& member) const {
    FileStore(path_).set("rendezvous/rank/" + std::to_string(member.rank), to_text(member));
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.path("run");
  const Meet meet_ = in_file(folder_).meet;
};

TEST_F(RendezvousFileTest, AFileOfAnEndedProcessIsReplaced) {
  for (const bool all : {true, false}) {
    leave(ended(0));
    if (all) leave(ended(1));
    auto other = start(meet_, here(1, 2));
    // It waits in the old file, or for a new one.
    ASSERT_EQ(other.wait_for(kShort), std::future_status::timeout);
    const Keys keys = meet_(here(0, 2), kLong);
    keys->set("key", "value");
    EXPECT_EQ(other.get()->get("key"), "value");
    EXPECT_EQ(folder_.files(), 0);
  }
}

TEST_F(RendezvousFileTest, AFileFromBeforeTheLastBootIsReplaced) {
  Member before = this_member(0, kHost);
  before.boot = "earlier";
  leave(before);
  auto other = start(meet_, here(1, 2));
  EXPECT_NO_THROW(meet_(here(0, 2), kLong));
  EXPECT_NO_THROW(other.get());
}

TEST_F(RendezvousFileTest, AnEmptyFileWillDo) {
  testing::write_file(path_, "");
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  auto other = start(meet_, here(1, 2));
  EXPECT_NO_THROW(meet_(here(0, 2), kLong));
  EXPECT_NO_THROW(other.get());
}

TEST_F(RendezvousFileTest, WhatMayStillRunOnAnotherHostIsAnErrorWithARemedy) {
  leave(elsewhere(0));
  EXPECT_WEFT_ERROR(meet_(here(0, 2), kLong), InvalidArgument,
                    "if the former is of an earlier run, remove " + path_);
  EXPECT_EQ(folder_.files(), 1);
}

TEST_F(RendezvousFileTest, NoFileThatIsNoStoreIsTouched) {
  testing::write_file(path_, "important");
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  EXPECT_WEFT_ERROR(meet_(here(0, 2), kLong), Io, "give another path");
  EXPECT_EQ(testing::read_file(path_), "important");
}

// Rank 0 is killed while it waits: the ranks that wait with it report it, and remove the file.
TEST_F(RendezvousFileTest, WhatAKilledRankZeroLeftGoesWithTheOthers) {
  leave(ended(0));
  EXPECT_WEFT_ERROR(meet_(here(1, 2), kShort), Timeout, "rank 0 of 2 has not come");
  EXPECT_EQ(folder_.files(), 0);
}

// --- Members -------------------------------------------------------------------------------------

TEST(Member, PassesThroughTheStore) {
  const Member member = this_member(3, "10.0.0.1");
  EXPECT_EQ(parse_member(to_text(member)), member);
  EXPECT_EQ(member.pid, ::getpid());
  for (const std::string text : {"", "junk", "1\na\nb\nc\nd\nx\n2\ne\n3\n"}) {
    EXPECT_WEFT_ERROR(parse_member(text), Comm, "where a process is described");
  }
}

TEST(Member, IsToldFromOthers) {
  const Member one = this_member(0, kHost), again = this_member(0, kHost);
  EXPECT_FALSE(one == again);
  EXPECT_TRUE(same_process(one, again));
  EXPECT_TRUE(same_network(one, again));
  Member other = one;
  other.start += 1;  // its number has been given to another process
  EXPECT_FALSE(same_process(one, other));
  EXPECT_TRUE(has_ended(other));
  other = one;
  other.network = "net:[1]";
  EXPECT_FALSE(same_network(one, other));
}

TEST(Member, EndsWithItsProcess) {
  EXPECT_FALSE(has_ended(this_member(0, kHost)));
  EXPECT_TRUE(has_ended(ended(0)));
  EXPECT_FALSE(has_ended(elsewhere(0)));
  Member in_container = ended(0);
  in_container.pids = "pid:[1]";
  EXPECT_FALSE(has_ended(in_container));

  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_start(child), std::nullopt) << "a process nobody has waited for has ended too";
  ::waitpid(child, nullptr, 0);
  EXPECT_GT(process_start(::getpid()).value_or(0), 0);
}

// /proc may hide it.
TEST(Member, OfAnotherUserIsNotKnownToHaveEnded) {
  Member hidden = this_member(0, kHost);
  hidden.start += 1;  // as if it could not be found
  ASSERT_TRUE(has_ended(hidden));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setuid(65534) != 0 ? 2 : has_ended(hidden) ? 1 : 0);
  int status = -1;
  ::waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this user may not become another one";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace weft::comm
