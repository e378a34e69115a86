// The programs that use DistributedDataParallel.
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

using comm::testing::missing_backend;

class DdpRun : public testing::LaunchedTest, public ::testing::WithParamInterface<const char*> {
 protected:
  DdpRun() : LaunchedTest("launch/weftrun --nproc-per-node 2") {}

  /// Losses and weights agree to rounding in f64.
  void expect_same_run(const std::string& a, const std::string& b) const {
    const auto x = metrics(a)["losses"], y = metrics(b)["losses"];
    ASSERT_GT(x.size(), 1U);
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i].get<double>(), y[i].get<double>(), 1e-9) << i;
    EXPECT_LT(largest_difference(a, b), 1e-9);
  }
  static std::string backend() { return std::string(" --backend ") + GetParam(); }
};

// In f64 sums in another order differ by 1e-16 of their size.
TEST_P(DdpRun, TwoRanksOfHalfTheBatchAreOneProcess) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 --lr 0.1 ";
  ASSERT_EQ(run("one", false, "mlp", options + "--batch-size 8"), 0) << log();
  ASSERT_EQ(run("two", true, "mlp_ddp", options + "--batch-size 4" + backend()), 0) << log();
  expect_same_run("one", "two");
  const auto one = metrics("one"), two = metrics("two");
  EXPECT_EQ(two["world_size"], 2);
  EXPECT_EQ(two["test"]["accuracy"], one["test"]["accuracy"]);
  EXPECT_EQ(two["backend"], GetParam());
  // Rank 0 sends about its gradients, 100,000 numbers, in each of 10 steps.
  EXPECT_NEAR(two["bytes_sent"].get<double>(), 10 * 8 * 101'770, 2e6);
  EXPECT_GT(two["allreduce_ms"], 0);
  EXPECT_GT(two["exposed_ms"], 0);
}

TEST_P(DdpRun, StoppedAndResumedIsTheSameRun) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  const std::string options = "--batch-size 4 --epochs 3 --lr 0.1" + backend();
  ASSERT_EQ(run("whole", true, "mlp_ddp", options), 0) << log();
  ASSERT_EQ(run("part", true, "mlp_ddp", options + " --limit-steps 7"), 0) << log();
  ASSERT_EQ(run("part", true, "mlp_ddp", options + " --seed 5 --resume latest"), 0) << log();
  EXPECT_EQ(metrics("part")["losses"], metrics("whole")["losses"]);
  EXPECT_EQ(largest_difference("part", "whole"), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, DdpRun, ::testing::Values("shm", "gloo", "ring"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(DdpRun, TheAutoencodersRanksAreOneProcess) {
  if (!missing_backend("gloo").empty()) GTEST_SKIP() << missing_backend("gloo");
  const std::string options = "--dtype f64 --no-shuffle --epochs 1 --seed 7 ";
  ASSERT_EQ(run("one", false, "autoencoder", options + "--batch-size 8"), 0) << log();
  ASSERT_EQ(run("two", true, "autoencoder_ddp", options + "--batch-size 4 --backend gloo"), 0)
      << log();
  expect_same_run("one", "two");
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/compare.png")));
}

TEST_F(DdpRun, TheConvolutionalNetsRanksAreOneProcess) {
  testing::write_cifar10(folder.path("data"), 8, 10);
  const std::string options =
      "--dtype f64 --no-shuffle --epochs 2 --seed 7 --width-scale 1/64 --lr 0.1 ";
  ASSERT_EQ(run("one", false, "cnn", options + "--batch-size 8"), 0) << log();
  ASSERT_EQ(run("two", true, "cnn_ddp", options + "--batch-size 4 --backend ring"), 0) << log();
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["test"], metrics("one")["test"]);
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/checkpoint-epoch-1.safetensors")));

  const std::string ranks = options + "--batch-size 4 --backend ring ";
  ASSERT_EQ(run("part", true, "cnn_ddp", ranks + "--limit-steps 7"), 0) << log();
  ASSERT_EQ(run("part", true, "cnn_ddp", ranks + "--resume latest"), 0) << log();
  EXPECT_EQ(largest_difference("part", "two"), 0);
  EXPECT_EQ(metrics("part")["losses"], metrics("two")["losses"]);
}

// With batch norms at rest, or with those of all ranks.
TEST_F(DdpRun, TheResNetsRanksShareTheBatch) {
  const std::string options =
      "--dtype f64 --no-shuffle --image-size 8 --limit-steps 3 --batch-size 8 --freeze all-but-fc "
      "--lr 0.1 --data fake ";
  ASSERT_EQ(run("one", false, "resnet", options), 0) << log();
  const std::string meet = " --init-method file://" + folder.path("meeting");
  ASSERT_EQ(run("two", false, "resnet_ddp", options + "--nprocs 2" + meet), 0) << log();
  EXPECT_NE(log().find("batch 4 per rank, 8 in all: 2 ranks by shm, each with 1 loader workers"),
            std::string::npos)
      << log();
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["test"], metrics("one")["test"]);
  EXPECT_EQ(metrics("two")["batch_size"], 4);
  EXPECT_EQ(run("none", false, "resnet_ddp", options + "--nprocs 3" + meet), 1);
  EXPECT_NE(log().find("--batch-size 8 cannot be shared by 3 ranks"), std::string::npos) << log();

  const std::string training =
      "--dtype f64 --no-shuffle --image-size 8 --limit-steps 2 --batch-size 32 --data fake ";
  ASSERT_EQ(run("one", false, "resnet", training), 0) << log();
  ASSERT_EQ(run("two", false, "resnet_ddp",
                training + "--sync-bn --nprocs 2 --trace " + folder.path("trace.json") + meet),
            0)
      << log();
  expect_same_run("one", "two");
  ASSERT_EQ(run("alone", false, "resnet_ddp", training + "--nprocs 2" + meet), 0) << log();
  // In each of 2 steps the 20 norms, of 4800 channels, send 2 f64 numbers a channel and a count
  // forward, and 2 a channel backward. How often the ranks ask whether to stop is up to the clock.
  EXPECT_NEAR(
      metrics("two")["bytes_sent"].get<double>() - metrics("alone")["bytes_sent"].get<double>(),
      2 * 8 * (4 * 4800 + 20), 1e4);
  const std::string trace = testing::read_file(folder.path("trace.json"));
  for (const std::string name : {"rank 0", "rank 1"}) {
    EXPECT_NE(trace.find('"' + name + '"'), std::string::npos) << name;
  }
}

class OlderLauncher : public testing::LaunchedTest {
 protected:
  OlderLauncher()
      : LaunchedTest(
            "launch/weftrun --nproc-per-node 2 "
            "sh -c 'exec \"$0\" --local_rank=$LOCAL_RANK \"$@\"'") {}
};

// torch.distributed.launch does.
TEST_F(OlderLauncher, PutsTheLocalRankBeforeTheOptions) {
  ASSERT_EQ(run("two", true, "mlp_ddp", "--limit-steps 2 --batch-size 4"), 0) << log();
  EXPECT_EQ(metrics("two")["world_size"], 2);
}

// 20 images for each rank are batches of 6, 6, 6 and 2. Of the test set each rank takes a batch.
TEST_F(DdpRun, OneProcessTakesTheVeryStepsOfTwoRanks) {
  testing::write_mnist(folder.path("data"), 40, 510);
  for (const std::string program : {"mlp", "autoencoder"}) {
    const int epochs = program == "mlp" ? 2 : 1;
    const std::string options =
        "--batch-size 6 --lr 0.01 --seed 7 --epochs " + std::to_string(epochs) + " ";
    ASSERT_EQ(run("one", false, program, options + "--as-ranks 2"), 0) << log();
    ASSERT_EQ(run("two", true, program + "_ddp", options), 0) << log();
    EXPECT_EQ(largest_difference("one", "two"), 0) << program;
    EXPECT_EQ(metrics("one")["as_ranks"], 2);
    EXPECT_EQ(metrics("one")["losses"].size(), 4U * epochs);
    const auto figures = metrics("two")["test"];
    for (const auto& [name, figure] : figures.items()) {
      const double expected = metrics("one")["test"][name];
      EXPECT_NEAR(figure.get<double>(), expected, 1e-12 * expected) << program;
    }
  }
  EXPECT_EQ(run("none", false, "cnn", "--as-ranks 2 --data fake"), 1);
  EXPECT_NE(log().find("cnn has no --as-ranks"), std::string::npos) << log();
}

TEST_F(DdpRun, OneRankTellsForAll) {
  ASSERT_EQ(run("out", true, "mlp_ddp", "--epochs 1 --batch-size 4"), 0) << log();
  const std::string text = log();
  for (const char* once : {"Sequential(", "batch 4 per rank, 8 in all: 2 ranks by shm",
                           "epoch 0  5/5", "trained in"}) {
    EXPECT_NE(text.find(once), std::string::npos) << text;
    EXPECT_EQ(text.find(once), text.rfind(once)) << text;
  }
  EXPECT_EQ(text.find("warning"), std::string::npos) << text;
}

// Rows for the threads of both ranks, times by one clock.
TEST_P(DdpRun, TheTraceHasBothRanks) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
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
    if (event["name"] == "process_name") processes[rank] = event["args"]["name"];
    if (event["name"] == "thread_name") rows[{rank, event["tid"]}] = event["args"]["name"];
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
