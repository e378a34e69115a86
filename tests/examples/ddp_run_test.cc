// The programs that use DistributedDataParallel.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

class DdpRun : public testing::LaunchedTest, public ::testing::WithParamInterface<const char*> {
 protected:
  DdpRun() : LaunchedTest("launch/weftrun --nproc-per-node 2") {}

  static std::string backend() { return std::string(" --backend ") + GetParam(); }
};

// In f64 sums in another order differ by 1e-16 of their size.
TEST_P(DdpRun, TwoRanksOfHalfTheBatchAreOneProcess) {
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 --lr 0.1 ";
  ASSERT_EQ(run("one", false, "mlp", options + "--batch-size 8"), 0) << log();
  ASSERT_EQ(run("two", true, "mlp_ddp", options + "--batch-size 4" + backend()), 0) << log();
  const auto one = metrics("one"), two = metrics("two");
  ASSERT_EQ(one["losses"].size(), 10U);
  ASSERT_EQ(two["losses"].size(), 10U);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(two["losses"][i].get<double>(), one["losses"][i].get<double>(), 1e-9) << i;
  }
  EXPECT_LT(largest_difference("one", "two"), 1e-9);
  EXPECT_EQ(two["world_size"], 2);
  EXPECT_EQ(two["test"]["accuracy"], one["test"]["accuracy"]);
}

TEST_P(DdpRun, StoppedAndResumedIsTheSameRun) {
  const std::string options = "--batch-size 4 --epochs 3 --lr 0.1" + backend();
  ASSERT_EQ(run("whole", true, "mlp_ddp", options), 0) << log();
  ASSERT_EQ(run("part", true, "mlp_ddp", options + " --limit-steps 7"), 0) << log();
  ASSERT_EQ(run("part", true, "mlp_ddp",
                options + " --seed 5 --resume " + folder.path("part/checkpoint.safetensors")),
            0)
      << log();
  EXPECT_EQ(metrics("part")["losses"], metrics("whole")["losses"]);
  EXPECT_EQ(largest_difference("part", "whole"), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, DdpRun, ::testing::Values("shm", "gloo", "ring"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(DdpRun, OneRankTellsForAll) {
  ASSERT_EQ(run("out", true, "mlp_ddp", "--epochs 1 --batch-size 4"), 0) << log();
  const std::string text = log();
  for (const char* once : {"Sequential(", "epoch 0  5/5", "trained in"}) {
    EXPECT_NE(text.find(once), std::string::npos) << text;
    EXPECT_EQ(text.find(once), text.rfind(once)) << text;
  }
  EXPECT_EQ(text.find("warning"), std::string::npos) << text;
}

// Rows for the threads of both ranks, times by one clock.
TEST_P(DdpRun, TheTraceHasBothRanks) {
  const std::string file = folder.path("trace.json");
  ASSERT_EQ(run("out", true, "mlp_ddp", "--epochs 1 --batch-size 4 --trace " + file + backend()), 0)
      << log();
  const auto trace = nlohmann::json::parse(testing::read_file(file));
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> rows;
  struct Times {
    double begin, end;
  };
  std::map<int, std::map<int, Times>> reductions;  // by rank and number
  std::map<int, std::set<int>> steps;
  for (const auto& event : trace["traceEvents"]) {
    const int rank = event["pid"];
    const auto& args = event["args"];
    if (event["name"] == "process_name") processes[rank] = args["name"];
    if (event["name"] == "thread_name") rows[{rank, event["tid"]}] = args["name"];
  }
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] != "all_reduce") continue;
    const int rank = event["pid"];
    const auto& args = event["args"];
    EXPECT_EQ((rows[{rank, event["tid"]}]), "comm");
    EXPECT_EQ(args["module"], "bucket 0");
    EXPECT_EQ(args["bytes"], 101770 * 4);
    steps[rank].insert(args["step"].get<int>());
    const double begin = event["ts"];
    reductions[rank][args["number"]] = {begin, begin + event["dur"].get<double>()};
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(steps[rank], (std::set{0, 1, 2, 3, 4})) << rank;
    EXPECT_EQ(reductions[rank].size(), 5U) << rank;
  }
  // Nobody is done before all have begun.
  for (const auto& [number, first] : reductions[0]) {
    ASSERT_TRUE(reductions[1].contains(number));
    const Times second = reductions[1][number];
    EXPECT_LT(first.begin, second.end) << number;
    EXPECT_LT(second.begin, first.end) << number;
  }
}

TEST_F(DdpRun, TheErrorOfARankIsShownLastAndIsTheStatus) {
  EXPECT_EQ(run("out", true, "mlp_ddp", "--data " + folder.path("nowhere")), 1);
  EXPECT_NE(log().find("nowhere: no such folder"), std::string::npos) << log();
  EXPECT_EQ(run("out", true, "mlp_ddp", "--epohcs 1"), 2);
  EXPECT_NE(log().find("did you mean --epochs?"), std::string::npos) << log();
}

TEST_F(DdpRun, AloneItIsAWorldOfOne) {
  ASSERT_EQ(run("one", false, "mlp", "--epochs 1 --no-shuffle"), 0) << log();
  ASSERT_EQ(run("alone", false, "mlp_ddp", "--epochs 1 --no-shuffle"), 0) << log();
  EXPECT_EQ(metrics("alone")["losses"], metrics("one")["losses"]);
  EXPECT_EQ(largest_difference("alone", "one"), 0);
}

}  // namespace
}  // namespace weft
