// The programs that use DistributedDataParallel.
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

using comm::testing::missing_backend;

class DdpRun : public testing::LaunchedTest, public ::testing::WithParamInterface<const char*> {
 protected:
  DdpRun() : LaunchedTest("launch/weftrun --nproc-per-node 2") {}

  static std::string backend() { return std::string(" --backend ") + GetParam(); }
};

// In f64, sums in another order differ by about 1e-16 of their size.
TEST_P(DdpRun, TwoRanksOfHalfTheBatchAreOneProcess) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 --lr 0.1 ";
  succeed("one", false, "mlp", options + "--batch-size 8");
  succeed("two", true, "mlp_ddp", options + "--batch-size 4" + backend());
  expect_same_run("one", "two");
  const auto one = metrics("one"), two = metrics("two");
  EXPECT_EQ(two["world_size"], 2);
  EXPECT_EQ(two["test"]["accuracy"], one["test"]["accuracy"]);
  EXPECT_EQ(two["backend"], GetParam());
  // Rank 0 sends about as many bytes as its gradients have, 100,000 numbers, in each of 10 steps.
  EXPECT_NEAR(two["bytes_sent"].get<double>(), 10 * 8 * 101'770, 2e6);
  EXPECT_GE(memory("two", 1, "parameters"), 8 * 101'770);
  EXPECT_HAS(log(), "memory, at most         rank 0       rank 1");
  EXPECT_GT(two["allreduce_ms"], 0);
  EXPECT_GT(two["exposed_ms"], 0);
}

TEST_P(DdpRun, StoppedAndResumedIsTheSameRun) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  const std::string options = "--batch-size 4 --epochs 3 --lr 0.1" + backend();
  expect_resumes(true, "mlp_ddp", options, 7, "--seed 5");
}

INSTANTIATE_TEST_SUITE_P(Backends, DdpRun, ::testing::Values("shm", "gloo", "ring"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(DdpRun, TheAutoencodersRanksAreOneProcess) {
  if (!missing_backend("gloo").empty()) GTEST_SKIP() << missing_backend("gloo");
  const std::string options = "--dtype f64 --no-shuffle --epochs 1 --seed 7 ";
  succeed("one", false, "autoencoder", options + "--batch-size 8");
  succeed("two", true, "autoencoder_ddp", options + "--batch-size 4 --backend gloo");
  expect_same_run("one", "two");
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/compare.png")));
}

TEST_F(DdpRun, TheConvolutionalNetsRanksAreOneProcess) {
  testing::write_cifar10(folder.path("data"), 8, 10);
  const std::string options =
      "--dtype f64 --no-shuffle --epochs 2 --seed 7 --width-scale 1/64 --lr 0.1 ";
  succeed("one", false, "cnn", options + "--batch-size 8");
  succeed("two", true, "cnn_ddp", options + "--batch-size 4 --backend ring");
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["test"], metrics("one")["test"]);
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/checkpoint-epoch-1.safetensors")));

  const std::string ranks = options + "--batch-size 4 --backend ring ";
  succeed("part", true, "cnn_ddp", ranks + "--limit-steps 7");
  succeed("part", true, "cnn_ddp", ranks + "--resume latest");
  expect_same_bits("part", "two");
}

class SeededByRank : public testing::LaunchedTest {
 protected:
  SeededByRank()
      : LaunchedTest(
            "launch/weftrun --nproc-per-node 2 "
            "sh -c 'exec \"$0\" \"$@\" --seed $((7 + RANK))'") {}
};

const std::string kGan = "--dtype f64 --no-shuffle --epochs 2 --width 2 --vgg-width 2 ";

// Two nets in turn beside a frozen third one, all of them rank 0's, and without a batch norm.
TEST_F(SeededByRank, TheGansRanksAreOneProcess) {
  succeed("one", false, "gan_style", kGan + "--batch-size 8 --seed 7");
  succeed("two", true, "gan_style_ddp", kGan + "--batch-size 4");
  EXPECT_LACKS(log(), "warning");
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["losses"]["discriminator"].size(), 10U);
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/restored-epoch-1.png")));
}

// The checkpoint has the frozen net, too, which another seed would make another one.
TEST_F(DdpRun, TheGansRanksResume) {
  expect_resumes(true, "gan_style_ddp", kGan + "--batch-size 4", 7, "--seed 5");
  EXPECT_EQ(run("none", false, "gan_style", "--vgg a.pth --vgg-width 4"), 2);
  EXPECT_HAS(log(), "--vgg excludes --vgg-width");
}

// With fixed batch norms, or with statistics over all ranks.
TEST_F(DdpRun, TheResNetsRanksShareTheBatch) {
  const std::string options =
      "--dtype f64 --no-shuffle --image-size 8 --limit-steps 3 --batch-size 8 --freeze all-but-fc "
      "--lr 0.1 --data fake ";
  succeed("one", false, "resnet", options);
  const std::string meet = " --init-method file://" + folder.path("meeting");
  succeed("two", false, "resnet_ddp", options + "--nprocs 2" + meet);
  EXPECT_HAS(log(), "batch 4 per rank, 8 in all: 2 ranks by shm, each with 1 loader workers");
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["test"], metrics("one")["test"]);
  EXPECT_EQ(metrics("two")["batch_size"], 4);
  EXPECT_EQ(run("none", false, "resnet_ddp", options + "--nprocs 3" + meet), 1);
  EXPECT_HAS(log(), "--batch-size 8 cannot be shared by 3 ranks");

  const std::string training =
      "--dtype f64 --no-shuffle --image-size 8 --limit-steps 2 --batch-size 32 --data fake ";
  succeed("one", false, "resnet", training);
  succeed("two", false, "resnet_ddp",
          training + "--sync-bn --nprocs 2 --trace " + folder.path("trace.json") + meet);
  expect_same_run("one", "two");
  succeed("alone", false, "resnet_ddp", training + "--nprocs 2" + meet);
  // In each of 2 steps the 20 norms, with 4800 channels, send 2 f64 numbers per channel and a count
  // forward, and 2 per channel backward. How often the ranks ask whether to stop depends on the
  // clock.
  EXPECT_NEAR(
      metrics("two")["bytes_sent"].get<double>() - metrics("alone")["bytes_sent"].get<double>(),
      2 * 8 * (4 * 4800 + 20), 1e4);
  const std::string trace = testing::read_file(folder.path("trace.json"));
  for (const std::string name : {"rank 0", "rank 1"}) {
    EXPECT_HAS(trace, '"' + name + '"') << name;
  }
}

// Gradients of 101,770 f32 numbers, in buckets of at most 8 KiB, which changes no byte that is
// sent; as bf16 half of the bytes.
TEST_F(DdpRun, BucketsAndTheirHookAreChosenByFlags) {
  const std::string options = "--limit-steps 4 --batch-size 4 --backend shm ";
  const std::string trace = "--trace " + folder.path("trace.json");
  succeed("plain", true, "mlp_ddp", options);
  succeed("small", true, "mlp_ddp", options + "--bucket-cap-mb 1/128 " + trace);
  succeed("half", true, "mlp_ddp", options + "--comm-hook bf16_compress");
  expect_same_bits("plain", "small");
  EXPECT_HAS(testing::read_file(folder.path("trace.json")), "bucket 1\"");
  // The first layer's weights, the only ones that fill a bucket, are sent first or last.
  for (const auto& [order, first] : {std::pair("given", 4 * 128 * 784), {"reversed", 4 * 1418}}) {
    succeed(order, true, "mlp_ddp",
            options + "--bucket-cap-mb 1/128 --bucket-order " + order + " " + trace);
    expect_same_bits("plain", order);
    const auto events =
        nlohmann::json::parse(testing::read_file(folder.path("trace.json")))["traceEvents"];
    int sends = 0;
    for (const auto& event : events) {
      if (event["name"] != "send bucket" || event["args"]["bucket"] != 0) continue;
      EXPECT_EQ(event["args"]["bytes"], first) << order;
      ++sends;
    }
    EXPECT_EQ(sends, 2 * 4);
  }
  const auto sent = [&](const char* run) { return metrics(run)["bytes_sent"].get<double>(); };
  EXPECT_NEAR(sent("plain") - sent("half"), 4 * 2 * 101'770, 1e5);

  for (const auto& [flag, wrong] :
       {std::pair("--bucket-cap-mb 0", "--bucket-cap-mb: '0' is no number above 0 and below 1e9"),
        std::pair("--bucket-order x", "--bucket-order: x not in {arrival,reversed,given}"),
        std::pair("--comm-hook fp16", "--comm-hook: fp16 not in {none,bf16_compress}")}) {
    EXPECT_NE(run("none", true, "mlp_ddp", options + flag), 0);
    EXPECT_HAS(log(), wrong);
  }
}

class OlderLauncher : public testing::LaunchedTest {
 protected:
  OlderLauncher()
      : LaunchedTest(
            "launch/weftrun --nproc-per-node 2 "
            "sh -c 'exec \"$0\" --local_rank=$LOCAL_RANK \"$@\"'") {}
};

// As torch.distributed.launch does.
TEST_F(OlderLauncher, PutsTheLocalRankBeforeTheOptions) {
  succeed("two", true, "mlp_ddp", "--limit-steps 2 --batch-size 4");
  EXPECT_EQ(metrics("two")["world_size"], 2);
}

// Each rank's 20 images give batches of 6, 6, 6 and 2. Each rank takes one batch of the test set.
TEST_F(DdpRun, OneProcessTakesTheVeryStepsOfTwoRanks) {
  testing::write_mnist(folder.path("data"), 40, 510);
  for (const std::string program : {"mlp", "autoencoder"}) {
    const int epochs = program == "mlp" ? 2 : 1;
    const std::string options =
        "--batch-size 6 --lr 0.01 --seed 7 --epochs " + std::to_string(epochs) + " ";
    succeed("one", false, "as_ranks", options + "--program " + program);
    succeed("two", true, program + "_ddp", options);
    EXPECT_EQ(largest_difference("one", "two"), 0) << program;
    EXPECT_EQ(metrics("one")["losses"].size(), 4U * epochs);
    const auto figures = metrics("two")["test"];
    EXPECT_FALSE(figures.empty()) << program;
    for (const auto& [name, figure] : figures.items()) {
      const double expected = metrics("one")["test"][name];
      EXPECT_NEAR(figure.get<double>(), expected, 1e-12 * expected) << program;
    }
  }
  EXPECT_EQ(run("none", false, "as_ranks", "--resume latest"), 1);
  EXPECT_HAS(log(), "--resume");
}

TEST_F(DdpRun, OneRankTellsForAll) {
  succeed("out", true, "mlp_ddp", "--epochs 1 --batch-size 4");
  const std::string text = log();
  for (const char* once : {"Sequential(", "batch 4 per rank, 8 in all: 2 ranks by shm",
                           "epoch 0  5/5", "trained in"}) {
    EXPECT_HAS(text, once);
    EXPECT_EQ(text.find(once), text.rfind(once)) << text;
  }
  EXPECT_LACKS(text, "warning");
}

// Rows for the threads of both ranks, with times by one clock.
TEST_P(DdpRun, TheTraceHasBothRanks) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  const std::string file = folder.path("trace.json");
  succeed("out", true, "mlp_ddp", "--epochs 1 --batch-size 4 --trace " + file + backend());
  const auto trace = nlohmann::json::parse(testing::read_file(file));
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> rows;
  struct Times {
    double begin, end;
  };
  std::map<int, std::map<int, Times>> reductions;  // indexed by rank and number
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
  // No rank has finished before all have begun.
  for (const auto& [number, first] : reductions[0]) {
    ASSERT_TRUE(reductions[1].contains(number));
    const Times second = reductions[1][number];
    EXPECT_LT(first.begin, second.end) << number;
    EXPECT_LT(second.begin, first.end) << number;
  }
}

TEST_F(DdpRun, TheErrorOfARankIsShownLastAndIsTheStatus) {
  EXPECT_EQ(run("out", true, "mlp_ddp", "--data " + folder.path("nowhere")), 1);
  EXPECT_HAS(log(), "nowhere: no such folder");
  EXPECT_EQ(run("out", true, "mlp_ddp", "--epohcs 1"), 2);
  EXPECT_HAS(log(), "did you mean --epochs?");
}

TEST_F(DdpRun, AloneItIsAWorldOfOne) {
  succeed("one", false, "mlp", "--epochs 1 --no-shuffle");
  succeed("alone", false, "mlp_ddp", "--epochs 1 --no-shuffle");
  expect_same_bits("alone", "one");
}

}  // namespace
}  // namespace weft
