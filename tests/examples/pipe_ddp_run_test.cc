// The program whose pipeline uses several processes.
#include <filesystem>
#include <string>

#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

class PipeDdpRun : public testing::LaunchedTest {
 protected:
  explicit PipeDdpRun(int ranks = 2)
      : LaunchedTest("launch/weftrun --nproc-per-node " + std::to_string(ranks)) {}

  void expect_same(const std::string& a, const std::string& b) const {
    expect_same_run(a, b);
    const double mse = metrics(a)["test"]["mse"];
    EXPECT_NEAR(metrics(b)["test"]["mse"].get<double>(), mse, 1e-9 * mse);
  }
};

TEST_F(PipeDdpRun, TwoRanksAreOneProcess) {
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 --batch-size 8 ";
  succeed("one", false, "autoencoder", options);
  for (const std::string pipeline :
       {"--schedule gpipe --checkpoint always --chunks 3 --backend shm",
        "--schedule 1f1b --checkpoint never --chunks 8 --backend gloo",
        "--schedule zb-h1 --chunks 2 --backend ring", "--schedule interleaved --chunks 3",
        "--schedule zb-v --chunks 3", "--schedule dualpipev --chunks 4"}) {
    succeed("two", true, "autoencoder_pipe_ddp", options + pipeline);
    expect_same("one", "two");
    EXPECT_HAS(log(), "batch 8 per 2 ranks, 8 in all: 2 ranks by");
    // For any cut, the first rank sends at least the codes of 40 images, twice.
    EXPECT_GT(metrics("two")["bytes_sent"], 2 * 40 * 32 * 8);
    // Each rank has the moments of its own layers, though saving collects all.
    EXPECT_EQ(memory("two", 0, "optimizer") + memory("two", 1, "optimizer"),
              memory("one", 0, "optimizer"));
  }
  EXPECT_EQ(metrics("two")["world_size"], 2);
  EXPECT_EQ(metrics("two")["optimizer"], "Adam");
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/compare.png")));
}

// The second rank's weights and moments in the checkpoint were sent to the first rank.
TEST_F(PipeDdpRun, StoppedAndResumedIsTheSameRun) {
  const std::string options = "--batch-size 4 --epochs 2 --chunks 2 --schedule 1f1b";
  succeed("whole", true, "autoencoder_pipe_ddp", options);
  const std::string every = options + " --checkpoint-every 2";
  succeed("part", true, "autoencoder_pipe_ddp", every + " --limit-steps 7");
  succeed("part", true, "autoencoder_pipe_ddp", every + " --seed 5 --resume latest");
  expect_same_bits("part", "whole");
}

// Stages by measured times may differ in the next run.
TEST_F(PipeDdpRun, DeterministicStagesAreNotTimed) {
  succeed("x", true, "autoencoder_pipe_ddp", "--deterministic --limit-steps 1");
  EXPECT_HAS(log(), " MiB a micro-batch");
  EXPECT_LACKS(log(), " ms a micro-batch");
}

TEST_F(PipeDdpRun, SaysWhatCannotBe) {
  EXPECT_EQ(run("x", true, "autoencoder_pipe_ddp", "--replicas 3"), 1);
  EXPECT_HAS(log(), "2 ranks cannot be 3 pipelines of the same length");
  EXPECT_EQ(run("x", true, "autoencoder_pipe_ddp", "--schedule 1f1b --chunks 70000"), 1);
  EXPECT_HAS(log(), "got 70000 micro-batches, expected 1 to 65536");
}

class FourRanks : public PipeDdpRun {
 protected:
  FourRanks() : PipeDdpRun(4) {}
};

TEST_F(FourRanks, TwoPipelinesAreOneProcess) {
  const std::string options = "--dtype f64 --epochs 2 --seed 7 --no-shuffle ";
  succeed("one", false, "autoencoder", options + "--batch-size 8");
  succeed("four", true, "autoencoder_pipe_ddp",
          options + "--batch-size 4 --replicas 2 --chunks 2 --schedule 1f1b");
  expect_same("one", "four");
  EXPECT_HAS(log(), "batch 4 per 2 ranks, 8 in all: 4 ranks by");

  const std::string shuffled = "--batch-size 4 --epochs 2 --replicas 2 --chunks 2";
  expect_resumes(true, "autoencoder_pipe_ddp", shuffled, 3);
}

}  // namespace
}  // namespace weft
