// mlp_elastic, whose ranks are killed, beside one process that takes the same steps.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "weft/comm/store/socket.h"
#include "weft/core/runtime/phase.h"
#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

using Ranks = std::vector<int>;

class ElasticRun : public testing::LaunchedTest {
 protected:
  ElasticRun() : LaunchedTest("timeout 100 launch/weftrun --nproc-per-node 3 --min-nproc 1") {}
  ~ElasticRun() override { unsetenv("WEFT_FAULT"); }

  /// The ranks that took part, in the order in which they changed.
  std::vector<Ranks> members(const std::string& out) const {
    std::vector<Ranks> found;
    const auto record = nlohmann::json::parse(
        testing::read_file(folder.path(out + "/membership.json")), nullptr, false);
    if (!record.is_object()) return found;
    for (const auto& entry : record["ranks"]) found.push_back(entry["ranks"].get<Ranks>());
    return found;
  }
  /// The first step that was taken by the ranks that are there at the end.
  std::int64_t last_change(const std::string& out) const {
    const auto record = nlohmann::json::parse(
        testing::read_file(folder.path(out + "/membership.json")), nullptr, false);
    return record.is_object() ? record["ranks"].back()["step"].get<std::int64_t>() : -1;
  }
  void expect_replayed(const std::string& out, const std::string& options = "") const {
    succeed("replay", false, "as_ranks",
            kOptions + options + "--membership " + folder.path(out + "/membership.json"));
    EXPECT_EQ(largest_difference(out, "replay"), 0);
  }
  /// How often all ranks were there again.
  int returns() const {
    const std::string text = log(), line = " on ranks 0, 1, 2\n";
    int count = 0;
    for (std::size_t at = 0; (at = text.find(line, at)) != std::string::npos; ++at) ++count;
    return count;
  }
  /// Starts the weftrun of one of several nodes, here all on one host.
  pid_t start_on(int node, const std::string& nodes, const std::string& out,
                 const std::string& options) {
    launcher = "launch/weftrun " + nodes + " --rdzv-endpoint 127.0.0.1:" + std::to_string(port_) +
               " --node-rank " + std::to_string(node);
    log_name = "log_" + std::to_string(node);
    return start(out, true, "mlp_elastic", options);
  }
  /// The process of a rank that weftrun has started.
  static pid_t process_of(pid_t weftrun, int rank) {
    std::istringstream children(testing::read_file("/proc/" + std::to_string(weftrun) + "/task/" +
                                                   std::to_string(weftrun) + "/children"));
    for (pid_t child; children >> child;) {
      std::istringstream environment(
          testing::read_file("/proc/" + std::to_string(child) + "/environ"));
      for (std::string text; std::getline(environment, text, '\0');)
        if (text == "RANK=" + std::to_string(rank)) return child;
    }
    return -1;
  }

  /// What a process is doing; nothing if there is none.
  static Status status_of_process(pid_t process) {
    const auto page = StatusPage::of_process(process);
    return page ? page->read() : Status();
  }

  // 40 images: each of three ranks has batches of 4, 4, 4 and 2.
  const std::string kOptions = "--batch-size 4 --seed 7 ";
  const std::string kBuckets = "--bucket-cap-mb 1e-6 ", kZero = "--zero --lr 0.001 ";

  /// Counts a kill that the others have survived, for the table of a soak.
  void count(const std::string& point) { ++kills_[point]; }
  void TearDown() override {
    for (const auto& [point, number] : kills_) {
      std::printf("| %s | %d |\n", point.c_str(), number);
    }
  }

 protected:
  const int port_ = comm::port_of(comm::listen_on("127.0.0.1", 0));

 private:
  std::map<std::string, int> kills_;
};

TEST_F(ElasticRun, WithoutAFailureItTakesTheStepsOfDdp) {
  succeed("elastic", true, "mlp_elastic", kOptions + "--epochs 2");
  succeed("ddp", true, "mlp_ddp", kOptions + "--epochs 2");
  EXPECT_EQ(largest_difference("elastic", "ddp"), 0);
  EXPECT_EQ(members("elastic"), (std::vector<Ranks>{{0, 1, 2}}));
  expect_replayed("elastic");
}

// A rank that comes back has the same command, and takes the weights of the others.
TEST_F(ElasticRun, BeginsWithTheWeightsOfAFile) {
  succeed("first", false, "mlp", "--batch-size 4 --seed 8 --epochs 1");
  const std::string weights = "--weights " + folder.path("first/model.safetensors") + ' ';
  succeed("elastic", true, "mlp_elastic", kOptions + weights + "--epochs 2");
  succeed("ddp", true, "mlp_ddp", kOptions + weights + "--epochs 2");
  EXPECT_EQ(largest_difference("elastic", "ddp"), 0);

  launcher = "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts 1";
  setenv("WEFT_FAULT", "kill:rank=1:step=5:phase=forward", 1);
  const pid_t weftrun = start("back", true, "mlp_elastic", kOptions + weights + "--epochs 1000000");
  unsetenv("WEFT_FAULT");
  await([&] { return returns() > 0; });
  ASSERT_EQ(::kill(weftrun, SIGINT), 0);
  EXPECT_EQ(finish(weftrun), 130) << log();
  EXPECT_EQ(members("back"), (std::vector<Ranks>{{0, 1, 2}, {0, 2}, {0, 1, 2}}));
  expect_replayed("back", weights);
}

/// Few faults in CI; in a soak WEFT_FAULT_REPEATS of them.
int repeats(int few) {
  const char* const given = std::getenv("WEFT_FAULT_REPEATS");
  return given ? std::atoi(given) : few;
}

/// A point of a step, and a fault there. Each of the four parameters has a bucket of its own, which
/// is an all-reduce, and the fifth all-reduce of a step is its vote. In the first step of an epoch
/// another vote comes before, which deals out the epoch.
struct Point {
  const char* what;
  std::string phase;
};
const Point kPoints[] = {{"forward", "forward"},
                         {"the first bucket", "allreduce0"},
                         {"a middle bucket", "allreduce1"},
                         {"the last bucket", "allreduce3"},
                         {"before the vote", "vote"},
                         {"in the vote", "allreduce4"},
                         {"after the vote", "voted"},
                         {"in optimizer.step()", "optimizer"}};

std::string kill_at(const std::string& phase, int rank, int step = -1) {
  return "kill:rank=" + std::to_string(rank) + (step < 0 ? "" : ":step=" + std::to_string(step)) +
         ":phase=" + phase;
}

TEST_F(ElasticRun, TheOthersGoOn) {
  for (int i = 0; i < repeats(5) * 8 / 5; ++i) {
    const auto& [what, phase] = kPoints[i % 8];
    const int rank = (i + i / 8) % 3, step = 5 + i / 8 % 3;
    SCOPED_TRACE(::testing::Message() << what << ", rank " << rank << ", step " << step);
    setenv("WEFT_FAULT", kill_at(phase, rank, step).c_str(), 1);
    succeed("run", true, "mlp_elastic", kOptions + kBuckets + "--epochs 3");
    unsetenv("WEFT_FAULT");
    EXPECT_HAS(log(), "rank " + std::to_string(rank) + ": killed by signal 9 (SIGKILL)");
    EXPECT_HAS(log(), "the others go on");
    Ranks left = {0, 1, 2};
    std::erase(left, rank);
    EXPECT_EQ(members("run"), (std::vector<Ranks>{{0, 1, 2}, left}));
    // The step is taken again, unless it was complete.
    const std::int64_t from = last_change("run");
    EXPECT_TRUE(from == step || (from == step + 1 && i % 8 >= 5)) << from;
    expect_replayed("run");
    count(what);
  }
}

TEST_F(ElasticRun, AnotherRankFailsWhileTheyRegroup) {
  for (int i = 0; i < repeats(5) / 5; ++i) {
    const int first = i % 3, second = (i + 1 + i / 3 % 2) % 3;
    SCOPED_TRACE(::testing::Message() << first << ", then " << second);
    setenv("WEFT_FAULT",
           (kill_at("forward", first, 5) + ',' + kill_at("regroup", second, 5)).c_str(), 1);
    succeed("two", true, "mlp_elastic", kOptions + "--epochs 3");
    unsetenv("WEFT_FAULT");
    EXPECT_HAS(log(),
               "rank " + std::to_string(second) + ": killed by signal 9 (SIGKILL) in regroup ");
    EXPECT_EQ(members("two"), (std::vector<Ranks>{{0, 1, 2}, {3 - first - second}}));
    EXPECT_EQ(last_change("two"), 5);
    expect_replayed("two");
    count("in regrouping");
  }
}

// Kills the rank that sends the state, which is the lowest. Then the rank that comes back gets it
// from the next one.
TEST_F(ElasticRun, ARankFailsWhileAPeerIsCopied) {
  launcher = "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts 1";
  for (int i = 0; i < repeats(5) / 5; ++i) {
    const int back = 1 + i % 2;
    const std::string out = "copy" + std::to_string(i);
    setenv("WEFT_FAULT", (kill_at("forward", back, 5 + i) + ',' + kill_at("copy", 0)).c_str(), 1);
    const pid_t weftrun = start(out, true, "mlp_elastic", kOptions + "--epochs 1000000");
    unsetenv("WEFT_FAULT");
    await([&] { return !members(out).empty() && members(out).back() == Ranks{1, 2}; });
    ASSERT_EQ(::kill(weftrun, SIGINT), 0);
    EXPECT_EQ(finish(weftrun), 130) << log();
    EXPECT_HAS(log(), "rank 0: killed by signal 9 (SIGKILL) in copy state");
    Ranks without = {0, 1, 2};
    std::erase(without, back);
    EXPECT_EQ(members(out), (std::vector<Ranks>{{0, 1, 2}, without, {1, 2}}));
    expect_replayed(out);
    count("while a peer is copied");
  }
}

// Kills the rank that comes back, while another rank is slow to send the state, and at about the
// time when it sends.
TEST_F(ElasticRun, ARankFailsWhileItIsCopied) {
  launcher = "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts 2";
  for (int i = 0; i < repeats(5) / 5; ++i) {
    const int back = 1 + i % 2;
    const bool at_once = i < 5, zero = i / 2 % 2 != 0;
    const std::string out = "copied" + std::to_string(i);
    setenv("WEFT_FAULT",
           (kill_at("forward", back, 5 + i) + ",delay=500ms:rank=0:phase=copy").c_str(), 1);
    const pid_t weftrun =
        start(out, true, "mlp_elastic", kOptions + (zero ? kZero : "") + "--epochs 1000000");
    unsetenv("WEFT_FAULT");
    pid_t victim = -1, again = -1;
    await([&] {
      victim = process_of(weftrun, back);
      return status_of_process(victim).phase == "copy state";
    });
    if (!at_once) std::this_thread::sleep_for(std::chrono::milliseconds(490 + 5 * (i % 5)));
    ASSERT_GT(victim, 0) << log();
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    await([&] {
      again = process_of(weftrun, back);
      return again != victim && status_of_process(again).phase == "forward";
    });
    ASSERT_EQ(::kill(weftrun, SIGINT), 0);
    EXPECT_EQ(finish(weftrun), 130) << log();
    if (at_once) {
      EXPECT_HAS(log(), "killed by signal 9 (SIGKILL) in copy state");
    }
    EXPECT_EQ(members(out).back(), (Ranks{0, 1, 2}));
    expect_replayed(out, zero ? "--adam --lr 0.001 " : "");
    count("while a peer is copied: the one that gets it");
  }
}

// --- ZeRO ----------------------------------------------------------------------------------------

TEST_F(ElasticRun, WithPartsOfTheStateOnTwoRanksEach) {
  const std::string phases[] = {"allreduce1", "voted", "optimizer", "send"};
  for (int i = 0; i < repeats(4); ++i) {
    const int rank = (i + i / 4) % 3, step = 5 + i / 4 % 6;
    SCOPED_TRACE(phases[i % 4]);
    setenv("WEFT_FAULT", kill_at(phases[i % 4], rank, step).c_str(), 1);
    succeed("run", true, "mlp_elastic", kOptions + kZero + "--epochs 3");
    unsetenv("WEFT_FAULT");
    Ranks left = {0, 1, 2};
    std::erase(left, rank);
    EXPECT_EQ(members("run"), (std::vector<Ranks>{{0, 1, 2}, left}));
    expect_replayed("run", "--adam --lr 0.001 ");
  }
}

TEST_F(ElasticRun, ARankThatComesBackGetsItsPartsOfTheState) {
  launcher = "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts 1";
  setenv("WEFT_FAULT", kill_at("optimizer", 1, 5).c_str(), 1);
  const pid_t weftrun = start("back", true, "mlp_elastic", kOptions + kZero + "--epochs 1000000");
  unsetenv("WEFT_FAULT");
  await([&] { return returns() > 0; });
  ASSERT_EQ(::kill(weftrun, SIGINT), 0);
  EXPECT_EQ(finish(weftrun), 130) << log();
  EXPECT_EQ(members("back"), (std::vector<Ranks>{{0, 1, 2}, {0, 2}, {0, 1, 2}}));
  expect_replayed("back", "--adam --lr 0.001 ");
}

// Rank 1 has come back, and each rank has its parts and waits until all have theirs. Rank 1 is
// killed in this barrier, the other ranks before it.
TEST_F(ElasticRun, ARankFailsWhenThePartsAreDealt) {
  launcher = "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts 2";
  for (int i = 0; i < repeats(5) / 5; ++i) {
    const int victim = (1 + i) % 3;
    const std::string out = "dealt" + std::to_string(i), third = "dealt2";
    setenv("WEFT_FAULT",
           (kill_at("optimizer", 1, 5 + i) + ',' +
            (victim == 1 ? "delay=500ms:rank=0:phase=" + third : kill_at(third, victim)))
               .c_str(),
           1);
    const pid_t weftrun = start(out, true, "mlp_elastic", kOptions + kZero + "--epochs 1000000");
    unsetenv("WEFT_FAULT");
    if (victim == 1) {
      await([&] { return members(out).size() == 2; });  // its first process has ended
      await([&] {
        const pid_t process = process_of(weftrun, victim);
        return status_of_process(process).operation.starts_with("barrier") &&
               ::kill(process, SIGKILL) == 0;
      });
    }
    await([&] { return returns() > 0; });
    ASSERT_EQ(::kill(weftrun, SIGINT), 0);
    EXPECT_EQ(finish(weftrun), 130) << log();
    EXPECT_HAS(log(), "rank " + std::to_string(victim) +
                          ": killed by signal 9 (SIGKILL) in regroup" +
                          (victim == 1 ? " during barrier" : ""));
    EXPECT_EQ(members(out).back(), (Ranks{0, 1, 2}));
    expect_replayed(out, "--adam --lr 0.001 ");
    count("with `--zero`, when parts are dealt: in, or before, the barrier at the end");
  }
}

// The second rank dies before it has sent what only these two have. The same command goes on from
// the checkpoint of the epoch's beginning, also with two ranks.
TEST_F(ElasticRun, TwoNeighboursEndARunWithPartsWhichGoesOnFromItsCheckpoint) {
  const std::string options = kOptions + kZero + "--epochs 3 --resume latest";
  for (const char* const ranks : {"3", "2"}) {
    launcher = "timeout 100 launch/weftrun --nproc-per-node 3 --min-nproc 1";
    const std::string out = std::string("lost") + ranks;
    setenv("WEFT_FAULT", (kill_at("forward", 1, 5) + ',' + kill_at("regroup", 2)).c_str(), 1);
    EXPECT_NE(run(out, true, "mlp_elastic", options), 0);
    unsetenv("WEFT_FAULT");
    EXPECT_HAS(log(), "a rank and its mirror have failed, and with them both copies of a part of");
    launcher = std::string("timeout 100 launch/weftrun --min-nproc 1 --nproc-per-node ") + ranks;
    succeed(out, true, "mlp_elastic", options);
    EXPECT_EQ(members(out), ranks == std::string("3") ? (std::vector<Ranks>{{0, 1, 2}})
                                                      : (std::vector<Ranks>{{0, 1, 2}, {0, 1}}));
    EXPECT_EQ(last_change(out), ranks == std::string("3") ? 0 : 4);
    expect_replayed(out, "--adam --lr 0.001 ");
  }
}

TEST_F(ElasticRun, ARankFailsWhileItWritesACheckpointOfParts) {
  setenv("WEFT_FAULT", kill_at("save", 0).c_str(), 1);
  succeed("save", true, "mlp_elastic", kOptions + kZero + "--epochs 3");
  EXPECT_EQ(members("save"), (std::vector<Ranks>{{0, 1, 2}, {1, 2}}));
  expect_replayed("save", "--adam --lr 0.001 ");
}

TEST_F(ElasticRun, ARankFailsWhileItWritesACheckpoint) {
  setenv("WEFT_FAULT", kill_at("save", 0).c_str(), 1);
  succeed("save", true, "mlp_elastic", kOptions + "--epochs 3");
  EXPECT_EQ(members("save"), (std::vector<Ranks>{{0, 1, 2}, {1, 2}}));
  expect_replayed("save");
  // The next rank has written the checkpoint.
  unsetenv("WEFT_FAULT");
  succeed("save", true, "mlp_elastic", kOptions + "--epochs 5 --resume latest");
  EXPECT_EQ(members("save"), (std::vector<Ranks>{{0, 1, 2}, {1, 2}, {0, 1, 2}}));
  expect_replayed("save");
}

TEST_F(ElasticRun, OptionsOfCheckpointsThatItLacksAreRefused) {
  EXPECT_NE(run("refused", true, "mlp_elastic", kOptions + "--checkpoint-every 3"), 0);
  EXPECT_HAS(log(), "keeps one checkpoint, written between two epochs");
  succeed("mlp", false, "mlp", kOptions + "--epochs 1");
  EXPECT_NE(run("refused", true, "mlp_elastic",
                kOptions + "--resume " + folder.path("mlp/checkpoint.safetensors")),
            0);
  EXPECT_HAS(log(), "it is no checkpoint of mlp_elastic");
}

TEST_F(ElasticRun, ARecordThatWasChangedIsNoRun) {
  const auto replay = [&](const std::string& text) {
    std::ofstream(folder.path("changed.json")) << text;
    EXPECT_EQ(
        run("replay", false, "as_ranks", kOptions + "--membership " + folder.path("changed.json")),
        1);
  };
  const std::string good = R"([{"step": 0, "ranks": [0]}])";
  for (const std::string bad :
       {"[]", "{}", "3", R"([{"ranks": [0]}])", R"([{"step": 0}])",
        R"([{"step": "0", "ranks": [0]}])", R"([{"step": 0, "ranks": []}])",
        R"([{"step": 0, "ranks": [0, 0]}])", R"([{"step": 0, "ranks": ["0"]}])",
        R"([{"step": 0, "ranks": 0}])", R"([{"step": 0, "ranks": {"a": 0}}])"}) {
    replay(R"({"ranks": )" + bad + R"(, "epochs": )" + good + R"(, "steps": 3})");
    EXPECT_HAS(log(), "changed.json is no membership.json of mlp_elastic") << bad;
  }
  replay(R"({"ranks": )" + good + R"(, "epochs": [{"step": 0, "ranks": []}], "steps": 3})");
  EXPECT_HAS(log(), "changed.json is no membership.json of mlp_elastic");
  for (const char* const rest : {"", R"(, "steps": 3.5)"}) {
    replay(R"({"ranks": )" + good + R"(, "epochs": )" + good + rest + "}");
    EXPECT_HAS(log(), "changed.json is no membership.json of mlp_elastic");
  }
  replay(R"({"ranks": [{"step": 0, "ranks": [0, 3]}], "epochs": [{"step": 0, "ranks": [0, 1]}],
             "steps": 3})");
  EXPECT_HAS(log(), "rank 3 takes part in step 0, but epoch 0 was not dealt to it");
}

TEST_F(ElasticRun, OneOfTwoGoesOnOverARing) {
  launcher = "timeout 100 launch/weftrun --nproc-per-node 2 --min-np 1";
  setenv("WEFT_FAULT", "kill:rank=0:step=5:phase=allreduce", 1);
  succeed("ring", true, "mlp_elastic", kOptions + "--epochs 2 --backend ring");
  EXPECT_EQ(members("ring"), (std::vector<Ranks>{{0, 1}, {1}}));
  unsetenv("WEFT_FAULT");
  expect_replayed("ring");
}

// The ranks that wait for it end, since it is not known to have failed.
TEST_F(ElasticRun, ARankThatHangsEndsTheRun) {
  setenv("WEFT_FAULT", "stop:rank=1:step=5:phase=forward", 1);
  setenv("WEFT_TIMEOUT", "1", 1);
  EXPECT_EQ(run("stopped", true, "mlp_elastic", kOptions + "--epochs 3"), 1) << log();
  unsetenv("WEFT_TIMEOUT");
  EXPECT_HAS(log(), "rank 1 did not respond (stopped)");
}

// Rank 2 is the second of the two that are left.
TEST_F(ElasticRun, AfterAChangeRanksAreCalledByTheirNumbers) {
  const std::string first = kill_at("forward", 1, 3) + ',';
  setenv("WEFT_TIMEOUT", "2", 1);
  setenv("WEFT_FAULT", (first + "stop:rank=2:step=6:phase=forward").c_str(), 1);
  EXPECT_EQ(run("stopped", true, "mlp_elastic", kOptions + "--epochs 3"), 1) << log();
  EXPECT_HAS(log(), "rank 2 did not respond (stopped)");
  EXPECT_HAS(log(), "[shm] rank 2 has not come");
  EXPECT_HAS(log(), " on rank 0 (0 of the group of ranks 0, 2) (waiting for rank 2, ");
  EXPECT_HAS(log(), "| generation 1: ranks 0, 2 differ first at ");
  EXPECT_HAS(log(), ": rank 2 has not begun it\n");

  // When rank 1 is back, its group has the same ranks as the first one.
  launcher = "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts 1";
  setenv("WEFT_FAULT", kill_at("forward", 1, 3).c_str(), 1);
  const pid_t weftrun = start("back", true, "mlp_elastic", kOptions + "--epochs 1000000");
  await([&] { return returns() > 0; });
  const pid_t last = process_of(weftrun, 2);
  ASSERT_GT(last, 0) << log();
  ASSERT_EQ(::kill(last, SIGSTOP), 0);
  EXPECT_EQ(finish(weftrun), 1) << log();
  EXPECT_HAS(log(), "| generation 2: ranks 0-2 differ first at ");
  EXPECT_HAS(log(), ": rank 2 has not ");
  unsetenv("WEFT_TIMEOUT");

  launcher = "timeout 100 launch/weftrun --nproc-per-node 3 --min-nproc 2";
  setenv("WEFT_FAULT", (first + kill_at("forward", 2, 6)).c_str(), 1);
  EXPECT_EQ(run("killed", true, "mlp_elastic", kOptions + "--epochs 3"), 137) << log();
  EXPECT_HAS(log(), "[shm] rank 2 closed its connection");
  EXPECT_HAS(log(), "(rank 2 failed first: killed by signal 9 (SIGKILL) in forward at step 6)");
}

TEST_F(ElasticRun, WithFewerThanTheLeastTheRunEnds) {
  launcher = "timeout 100 launch/weftrun --nproc-per-node 3 --min-nproc 3";
  setenv("WEFT_FAULT", "kill:rank=1:step=5:phase=forward", 1);
  EXPECT_EQ(run("ended", true, "mlp_elastic", kOptions + "--epochs 3"), 137) << log();
  EXPECT_HAS(log(), "rank 1 failed first");
}

TEST_F(ElasticRun, ANodeIsLostAndComesBack) {
  const std::string options = kOptions + "--epochs 1000000";
  const auto start_node = [&](int node) {
    return start_on(node, "--nnodes 1:3", "nodes", options);
  };
  const pid_t second = start_node(1);
  pid_t third = start_node(2);
  const pid_t first = start_node(0);  // the last one, since it does not wait long for the others
  await([&] { return members("nodes") == std::vector<Ranks>{{0, 1, 2}}; });
  ASSERT_EQ(::kill(third, SIGKILL), 0);
  ::waitpid(third, nullptr, 0);
  await([&] { return members("nodes").back() == Ranks{0, 1}; });
  third = start_node(2);
  await([&] { return members("nodes").back() == Ranks{0, 1, 2}; });
  ASSERT_EQ(::kill(first, SIGINT), 0);
  for (const pid_t weftrun : {first, second, third}) EXPECT_EQ(finish(weftrun), 130) << log();
  // The list does not begin with all ranks if the node was lost before the first step.
  std::vector<Ranks> found = members("nodes");
  if (found.front() == Ranks{0, 1, 2}) found.erase(found.begin());
  EXPECT_EQ(found, (std::vector<Ranks>{{0, 1}, {0, 1, 2}}));
  expect_replayed("nodes");
}

TEST_F(ElasticRun, WithPartsANodeOfTwoRanksMayBeLost) {
  const std::string options = kOptions + kZero + "--epochs 1000000";
  const auto start_node = [&](int node) {
    return start_on(node, "--nnodes 1:2 --nproc-per-node 2", "parts", options);
  };
  const pid_t second = start_node(1), first = start_node(0);
  await([&] { return members("parts") == std::vector<Ranks>{{0, 1, 2, 3}}; });
  ASSERT_EQ(::kill(second, SIGKILL), 0);
  ::waitpid(second, nullptr, 0);
  await([&] { return members("parts").back() == Ranks{0, 1}; });
  ASSERT_EQ(::kill(first, SIGINT), 0);
  EXPECT_EQ(finish(first), 130) << log();
  expect_replayed("parts", "--adam --lr 0.001 ");
}

// A thin link names ranks of the run, but groups number their ranks anew after a change.
TEST_F(ElasticRun, AThinLinkIsRefused) {
  setenv("WEFT_FAULT", "link=0-1:100MB/s", 1);
  EXPECT_EQ(run("thin", true, "mlp_elastic", kOptions), 1) << log();
  EXPECT_HAS(log(),
             "WEFT_FAULT has 'link=0-1:100MB/s', and with weftrun --min-nproc or --nnodes MIN:MAX");
}

// Ranks are killed at any moment.
TEST_F(ElasticRun, KilledRanksComeBack) {
  const int kills = repeats(3);
  launcher =
      "launch/weftrun --nproc-per-node 3 --min-nproc 1 --max-restarts " + std::to_string(kills);
  const pid_t weftrun = start("back", true, "mlp_elastic", kOptions + "--epochs 1000000");
  await([&] { return !members("back").empty(); });
  for (int i = 0; i < kills; ++i) {
    const pid_t victim = process_of(weftrun, (i + 2) % 3);
    ASSERT_GT(victim, 0) << log();
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    await([&] { return returns() > i; });
  }
  ASSERT_EQ(::kill(weftrun, SIGINT), 0);
  EXPECT_EQ(finish(weftrun), 130) << log();
  EXPECT_HAS(log(), "and it is started again");
  expect_replayed("back");
  for (int i = 0; i < kills; ++i) count("at any moment, and it comes back");
}

}  // namespace
}  // namespace weft
