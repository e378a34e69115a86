// Several nodes: one weftrun each, here all on one host, which meet and end together.
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "weft/comm/membership.h"
#include "weft/comm/store/socket.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/launch/report.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

using testing::becomes_true;
using testing::Weftrun;
using Words = std::vector<std::string>;

class WeftrunNodes : public ::testing::Test {
 protected:
  std::unique_ptr<Weftrun> start(int node, Words options, const std::string& script) const {
    Words words = {"--nnodes",        nodes,
                   "--node-rank",     std::to_string(node),
                   "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port)};
    words.insert(words.end(), options.begin(), options.end());
    for (const std::string& word : {std::string("sh"), std::string("-c"), script}) {
      words.push_back(word);
    }
    return std::make_unique<Weftrun>(words);
  }

  std::string nodes = "2";
  const int port = comm::port_of(comm::listen_on("127.0.0.1", 0));
};

TEST_F(WeftrunNodes, ShareOutTheRanks) {
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
      ">>$DIR/ranks; echo $MASTER_ADDR $MASTER_PORT $WEFT_STORE >$DIR/places";
  const auto later = start(1, {"-np", "1"}, script);
  const auto first = start(0, {"-np", "2"}, script);
  EXPECT_EQ(first->finish(), 0) << first->err();
  EXPECT_EQ(later->finish(), 0) << later->err();
  std::istringstream in(first->file("ranks"));
  std::set<std::string> ranks;
  for (std::string line; std::getline(in, line);) ranks.insert(line);
  EXPECT_EQ(ranks, (std::set<std::string>{"0 0 3 2 0 2", "1 1 3 2 0 2"}));
  EXPECT_EQ(later->file("ranks"), "2 0 3 1 1 2\n");
  EXPECT_EQ(first->file("places"), later->file("places"));
  EXPECT_TRUE(first->file("places").starts_with("127.0.0.1 ")) << first->file("places");
}

TEST_F(WeftrunNodes, AFailureOnOneEndsAllWithItsStatus) {
  for (const int failing : {0, 1}) {
    const auto script = [&](int node) {
      return node == failing ? "exit 9" : "trap 'exit 0' TERM; while :; do sleep 0.02; done";
    };
    const Words options = {"-np", "1", "--grace", "0.1", "--report", "DIR/report.json"};
    const auto first = start(0, options, script(0)), second = start(1, options, script(1));
    EXPECT_EQ(first->finish(), 9) << first->err();
    EXPECT_EQ(second->finish(), 9) << second->err();
    const auto& failed = failing == 0 ? first : second;
    const auto& other = failing == 0 ? second : first;
    EXPECT_HAS(failed->err(), "+-- rank " + std::to_string(failing) + " failed first");
    const std::string text = other->report()["other_failure"];
    EXPECT_TRUE(text.starts_with("rank " + std::to_string(failing) + " on ")) << text;
    EXPECT_TRUE(other->err().ends_with("weftrun: " + text + "\n")) << other->err();
  }
}

TEST_F(WeftrunNodes, StartAnewTogether) {
  const std::string script =
      "echo $TORCHELASTIC_RESTART_COUNT >>$DIR/tries; "
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ] && exit 9; "
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; sleep 60";
  const Words options = {"-np", "1", "--grace", "0.1", "--max-restarts", "1"};
  const auto first = start(0, options, script), second = start(1, options, script);
  EXPECT_EQ(first->finish(), 0) << first->err();
  EXPECT_EQ(second->finish(), 0) << second->err();
  EXPECT_EQ(first->file("tries"), "0\n1\n");
  EXPECT_EQ(second->file("tries"), "0\n1\n");
}

TEST_F(WeftrunNodes, ASignalToOneEndsAll) {
  const std::string script = "touch $DIR/ready; exec sleep 60";
  const auto first = start(0, {"--grace", "0.1"}, script);
  const auto second = start(1, {"--grace", "0.1"}, script);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  second->signal(SIGTERM);
  EXPECT_EQ(second->finish(), 143);
  EXPECT_EQ(first->finish(), 143);
  EXPECT_HAS(first->err(), "signal 15 to the weftrun of node 1");
}

TEST_F(WeftrunNodes, TheEndOfNodeZerosWeftrunIsTheEndOfAll) {
  const std::string script = "touch $DIR/ready; exec sleep 60";
  const auto first = start(0, {"--grace", "0.1"}, script);
  const auto second = start(1, {"--grace", "0.1"}, script);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  first->signal(SIGKILL);
  EXPECT_EQ(first->finish(), 137);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_HAS(second->err(), "the weftrun of node 0 is gone");
}

// Longer than a store may take to answer.
TEST_F(WeftrunNodes, AStoppedWeftrunOfNodeZeroIsNotTakenForLost) {
  const std::string script = "touch $DIR/ready; exec sleep 9";
  const auto first = start(0, {}, script), second = start(1, {}, script);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  first->signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(8));
  first->signal(SIGCONT);
  EXPECT_EQ(first->finish(), 0) << first->err();
  EXPECT_EQ(second->finish(), 0) << second->err();
}

TEST_F(WeftrunNodes, WhoWaitsSaysForWhom) {
  const auto wait_for = [](const Weftrun& run, const std::string& line) {
    EXPECT_TRUE(becomes_true([&] { return run.err().find(line) != std::string::npos; }))
        << run.err();
  };
  const auto second = start(1, {}, "true");
  wait_for(*second, "weftrun: waiting for node 0 of 2 at tcp://127.0.0.1:" + std::to_string(port));
  const auto first = start(0, {}, "true");
  EXPECT_EQ(first->finish(), 0) << first->err();
  EXPECT_EQ(second->finish(), 0) << second->err();
  const auto alone = start(0, {}, "true");
  wait_for(*alone, "weftrun: waiting for node 1 of 2\n");
}

TEST_F(WeftrunNodes, WaitingForTheOthersCanBeInterrupted) {
  const auto alone = start(0, {}, "true");
  ASSERT_TRUE(becomes_true([&] { return !alone->processes().empty(); }));
  // It waits from the moment when it listens.
  comm::connect_to("127.0.0.1", port, comm::Deadline(testing::kDeadline));
  alone->signal(SIGINT);
  EXPECT_EQ(alone->finish(), 130);
}

TEST_F(WeftrunNodes, OfTwoWithOneNodeRankTheSecondIsRefused) {
  const std::string script = "touch $DIR/ready; until [ -e $DIR/go ]; do sleep 0.02; done";
  const auto first = start(0, {}, script), second = start(1, {}, script);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  const auto third = start(1, {}, "touch $DIR/ready");
  EXPECT_EQ(third->finish(), 1);
  EXPECT_FALSE(third->has_file("ready"));
  const std::string host = " on " + host_name();
  EXPECT_HAS(third->err(),
             "two nodes have --node-rank 1: this one (pid " + std::to_string(third->pid()) + host +
                 ") and the one that came first (pid " + std::to_string(second->pid()) + host +
                 "): give each its own, from 0 to 1");
  for (const auto* run : {&first, &second}) testing::write_file((*run)->path("go"), "");
  for (const auto* run : {&first, &second}) EXPECT_EQ((*run)->finish(), 0) << (*run)->err();
}

// --- With --nnodes MIN:MAX -----------------------------------------------------------------------

bool says(const Weftrun& run, const std::string& line) {
  return becomes_true([&] { return run.err().find(line) != std::string::npos; });
}

const char* const kUntilGo =
    "echo $RANK $WORLD_SIZE $WEFT_ELASTIC >$DIR/ready; "
    "until [ -e $DIR/go ]; do sleep 0.02; done";

TEST_F(WeftrunNodes, ANodeMayBeLostAndTakeItsPlaceAgain) {
  nodes = "1:2";
  const auto first = start(0, {}, kUntilGo);
  {
    const auto second = start(1, {}, kUntilGo);
    ASSERT_TRUE(becomes_true([&] { return second->file("ready") == "1 2 0\n"; }));
    ASSERT_TRUE(becomes_true([&] { return first->file("ready") == "0 2 0\n"; }));
    second->signal(SIGKILL);
    EXPECT_EQ(second->finish(), 137);
  }
  const auto again = start(1, {}, kUntilGo);  // before it is missed
  EXPECT_TRUE(says(*first, "node 1 is gone, or its machine cannot be reached; the others go on"));
  EXPECT_TRUE(says(*first, "weftrun: node 1 has come"));
  EXPECT_TRUE(becomes_true([&] { return again->file("ready") == "1 2 1\n"; }));
  EXPECT_HAS(again->err(), "until the weftrun that was this node before is taken for lost");
  for (const auto* run : {&first, &again}) testing::write_file((*run)->path("go"), "");
  for (const auto* run : {&first, &again}) EXPECT_EQ((*run)->finish(), 0) << (*run)->err();
}

TEST_F(WeftrunNodes, ANodeMayComeLater) {
  nodes = "1:3";
  const auto first = start(0, {}, kUntilGo);
  EXPECT_TRUE(says(*first, "weftrun: waiting for 1 to 3 nodes"));
  ASSERT_TRUE(becomes_true([&] { return first->file("ready") == "0 3 0\n"; }));
  const auto third = start(2, {}, kUntilGo);
  EXPECT_TRUE(becomes_true([&] { return third->file("ready") == "2 3 1\n"; }));
  EXPECT_TRUE(says(*first, "weftrun: node 2 has come"));
  const auto other = start(1, {"-np", "2"}, "true");
  EXPECT_EQ(other->finish(), 1);
  EXPECT_HAS(other->err(), "node 0 has 1 ranks, and this one 2: with --nnodes MIN:MAX give all");
  for (const auto* run : {&first, &third}) testing::write_file((*run)->path("go"), "");
  for (const auto* run : {&first, &third}) EXPECT_EQ((*run)->finish(), 0) << (*run)->err();
}

TEST_F(WeftrunNodes, WithFewerThanTheLeastTheRunEnds) {
  nodes = "2:3";
  const auto first = start(0, {"--grace", "0.1"}, kUntilGo);
  const auto second = start(1, {"--grace", "0.1"}, kUntilGo);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  second->signal(SIGKILL);
  EXPECT_EQ(second->finish(), 137);
  EXPECT_EQ(first->finish(), 1);
  EXPECT_HAS(first->err(), "node 1 is gone, or its machine cannot be reached\n");
}

// Its weftrun stays until the others have ended.
TEST_F(WeftrunNodes, AllRanksOfANodeMayFail) {
  nodes = "1:2";
  const auto first = start(0, {}, kUntilGo), second = start(1, {}, "exit 9");
  EXPECT_TRUE(says(*second, "rank 1: exit status 9; the others go on"));
  ASSERT_TRUE(becomes_true([&] { return first->has_file("ready"); }));
  testing::write_file(first->path("go"), "");
  EXPECT_EQ(first->finish(), 0) << first->err();
  EXPECT_EQ(second->finish(), 0) << second->err();
}

// What its ranks have said must not count for the ranks of its second life.
TEST_F(WeftrunNodes, ANodeWhoseRanksHaveFailedMayBeLostTwice) {
  nodes = "1:2";
  const auto first =
      start(0, {}, "echo $WEFT_STORE >$DIR/store; touch $DIR/ready; " + std::string(kUntilGo));
  std::unique_ptr<Weftrun> second = start(1, {}, "exit 9");
  EXPECT_TRUE(says(*second, "rank 1: exit status 9; the others go on"));
  ASSERT_TRUE(becomes_true([&] { return first->has_file("ready"); }));
  const std::string place = first->file("store");
  comm::Membership list(
      std::make_shared<comm::TcpStore>("127.0.0.1", std::stoi(place.substr(place.find(':') + 1)),
                                       "", comm::Deadline(testing::kDeadline)));
  int generation = 1;  // without rank 1, which has failed
  EXPECT_TRUE(list.ranks(generation, comm::Deadline(testing::kDeadline)));
  for (int life = 0; life < 2; ++life) {
    second->signal(SIGKILL);
    second->finish();
    const auto lost = [&] {
      const std::string line = "node 1 is gone, or its machine cannot be reached; the others go on";
      const std::string text = first->err();
      const std::size_t found = text.find(line);
      return life == 0 ? found != std::string::npos : found != text.rfind(line);
    };
    EXPECT_TRUE(becomes_true(lost)) << first->err();
    if (life == 1) break;
    second = start(1, {}, kUntilGo);
    ASSERT_TRUE(becomes_true([&] { return second->has_file("ready"); }));
    while (list.ranks(generation + 1, comm::Deadline(std::chrono::milliseconds(0)))) ++generation;
  }
  // It was announced before the line that the test has awaited.
  EXPECT_TRUE(list.ranks(generation + 1, comm::Deadline(std::chrono::milliseconds(0))));
  testing::write_file(first->path("go"), "");
  EXPECT_EQ(first->finish(), 0) << first->err();
}

/// Stops the weftrun until node 0 has missed it.
void stop_until_lost(const Weftrun& run, const Weftrun& first) {
  run.signal(SIGSTOP);
  EXPECT_TRUE(says(first, "node 1 is gone, or its machine cannot be reached; the others go on"));
}

TEST_F(WeftrunNodes, ASilentNodeThatLivesHasToBeStartedAgain) {
  nodes = "1:2";
  const auto first = start(0, {}, kUntilGo), second = start(1, {"--grace", "0.1"}, kUntilGo);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  stop_until_lost(*second, *first);
  second->signal(SIGCONT);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_HAS(second->err(), "this node was silent, and taken for lost; start it again");
  EXPECT_EQ(first->err().find("node 1 has come"), std::string::npos) << first->err();
  const auto again = start(1, {}, kUntilGo);
  EXPECT_TRUE(becomes_true([&] { return again->file("ready") == "1 2 1\n"; }));
  EXPECT_TRUE(says(*first, "weftrun: node 1 has come"));
  for (const auto* run : {&first, &again}) testing::write_file((*run)->path("go"), "");
  for (const auto* run : {&first, &again}) EXPECT_EQ((*run)->finish(), 0) << (*run)->err();
}

// Neither a failing rank of it in the grace time nor a signal to it ends the run of the others.
TEST_F(WeftrunNodes, AWeftrunWhosePlaceIsTakenHasNoSay) {
  for (const bool fails : {true, false}) {
    SCOPED_TRACE(fails);
    nodes = "1:2";
    const auto first = start(0, {}, kUntilGo);
    const auto second = start(
        1, {"--grace", "5"}, "touch $DIR/ready; until [ -e $DIR/go ]; do sleep 0.02; done; exit 9");
    for (const auto* run : {&first, &second}) {
      ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
    }
    stop_until_lost(*second, *first);
    const auto again = start(1, {}, kUntilGo);
    EXPECT_TRUE(says(*first, "weftrun: node 1 has come"));
    if (fails) testing::write_file(second->path("go"), "");
    second->signal(SIGCONT);
    if (!fails) second->signal(SIGINT);
    EXPECT_NE(second->finish(), 0);
    if (!fails) {
      EXPECT_HAS(second->err(), "another weftrun has taken the place of this node");
    }
    for (const auto* run : {&first, &again}) testing::write_file((*run)->path("go"), "");
    for (const auto* run : {&first, &again}) EXPECT_EQ((*run)->finish(), 0) << (*run)->err();
  }
}

TEST_F(WeftrunNodes, ASilentNodeZeroIsMissed) {
  nodes = "1:2";
  const auto first = start(0, {}, kUntilGo), second = start(1, {"--grace", "0.1"}, kUntilGo);
  for (const auto* run : {&first, &second}) {
    ASSERT_TRUE(becomes_true([&] { return (*run)->has_file("ready"); }));
  }
  first->signal(SIGSTOP);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_HAS(second->err(), "the weftrun of node 0 is gone, or its machine cannot be reached");
}

TEST_F(WeftrunNodes, KnowEachOtherByTheTokenFile) {
  const testing::TempFolder folder;
  const std::string token = folder.path("token"), other = folder.path("other");
  testing::write_file(token, "the very same secret\n");
  testing::write_file(other, "another\n");
  ::chmod(token.c_str(), 0600);
  ::chmod(other.c_str(), 0600);
  const auto first = start(0, {"--token-file", token}, "echo \"$WEFT_STORE_TOKEN\"");
  const auto stranger = start(1, {"--token-file", other}, "true");
  EXPECT_EQ(stranger->finish(), 1);
  EXPECT_HAS(stranger->err(), "refuses the token");
  EXPECT_HAS(stranger->err(), "the same --token-file");
  const auto second = start(1, {"--token-file", token}, "true");
  EXPECT_EQ(first->finish(), 0) << first->err();
  EXPECT_EQ(second->finish(), 0) << second->err();
  EXPECT_EQ(first->out(), "the very same secret\n");
}

TEST_F(WeftrunNodes, ATokenFileOthersMayReadIsRefused) {
  const testing::TempFolder folder;
  testing::write_file(folder.path("token"), "secret");
  ::chmod(folder.path("token").c_str(), 0640);
  const auto run = start(0, {"--token-file", folder.path("token")}, "true");
  EXPECT_EQ(run->finish(), 1);
  EXPECT_HAS(run->err(), "chmod 600");
}

TEST(WeftrunBeyondLoopback, NeedsAToken) {
  Weftrun run({"--nnodes", "2", "--rdzv-endpoint", "0.0.0.0:29400", "true"});
  EXPECT_EQ(run.finish(), 1);
  EXPECT_HAS(run.err(), "--token-file");
}

}  // namespace
}  // namespace weft::launch
