// The program whose pipeline goes over several processes.
#include <filesystem>
#include <string>

#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

class PipeDdpRun : public testing::LaunchedTest {
 protected:
  explicit PipeDdpRun(int ranks = 2)
      : LaunchedTest("launch/weftrun --nproc-per-node " + std::to_string(ranks)) {}

  /// Losses and weights agree to rounding in f64.
  void expect_same_run(const std::string& a, const std::string& b) const {
    const auto x = metrics(a)["losses"], y = metrics(b)["losses"];
    ASSERT_GT(x.size(), 1U);
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i].get<double>(), y[i].get<double>(), 1e-9) << i;
    EXPECT_LT(largest_difference(a, b), 1e-9);
    const double mse = metrics(a)["test"]["mse"];
    EXPECT_NEAR(metrics(b)["test"]["mse"].get<double>(), mse, 1e-9 * mse);
  }
};

TEST_F(PipeDdpRun, TwoRanksAreOneProcess) {
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 --batch-size 8 ";
  ASSERT_EQ(run("one", false, "autoencoder", options), 0) << log();
  for (const std::string pipeline :
       {"--schedule gpipe --checkpoint always --chunks 3 --backend shm",
        "--schedule 1f1b --checkpoint never --chunks 8 --backend gloo",
        "--schedule zb-h1 --chunks 2 --backend ring", "--schedule interleaved --chunks 3"}) {
    ASSERT_EQ(run("two", true, "autoencoder_pipe_ddp", options + pipeline), 0) << log();
    expect_same_run("one", "two");
    EXPECT_NE(log().find("batch 8 per 2 ranks, 8 in all: 2 ranks by"), std::string::npos) << log();
    // Whatever the cut, the first rank hands over at least the codes of 40 images, twice.
    EXPECT_GT(metrics("two")["bytes_sent"], 2 * 40 * 32 * 8);
  }
  EXPECT_EQ(metrics("two")["world_size"], 2);
  EXPECT_EQ(metrics("two")["optimizer"], "Adam");
  EXPECT_TRUE(std::filesystem::exists(folder.path("two/compare.png")));
}

// What the checkpoint has of the second rank's weights and moments was sent to the first.
TEST_F(PipeDdpRun, StoppedAndResumedIsTheSameRun) {
  const std::string options = "--batch-size 4 --epochs 2 --chunks 2 --schedule 1f1b";
  ASSERT_EQ(run("whole", true, "autoencoder_pipe_ddp", options), 0) << log();
  const std::string every = options + " --checkpoint-every 2";
  ASSERT_EQ(run("part", true, "autoencoder_pipe_ddp", every + " --limit-steps 7"), 0) << log();
  ASSERT_EQ(run("part", true, "autoencoder_pipe_ddp", every + " --seed 5 --resume latest"), 0)
      << log();
  EXPECT_EQ(metrics("part")["losses"], metrics("whole")["losses"]);
  EXPECT_EQ(largest_difference("part", "whole"), 0);
}

// Those that are timed may be others in the next run.
TEST_F(PipeDdpRun, DeterministicStagesAreNotTimed) {
  ASSERT_EQ(run("x", true, "autoencoder_pipe_ddp", "--deterministic --limit-steps 1"), 0) << log();
  EXPECT_NE(log().find(" MiB a micro-batch"), std::string::npos) << log();
  EXPECT_EQ(log().find(" ms a micro-batch"), std::string::npos) << log();
}

TEST_F(PipeDdpRun, SaysWhatCannotBe) {
  EXPECT_EQ(run("x", true, "autoencoder_pipe_ddp", "--replicas 3"), 1);
  EXPECT_NE(log().find("2 ranks cannot be 3 pipelines of the same length"), std::string::npos)
      << log();
  EXPECT_EQ(run("x", true, "autoencoder_pipe_ddp", "--schedule 1f1b --chunks 70000"), 1);
  EXPECT_NE(log().find("got 70000 micro-batches, expected 1 to 65536"), std::string::npos) << log();
}

class FourRanks : public PipeDdpRun {
 protected:
  FourRanks() : PipeDdpRun(4) {}
};

TEST_F(FourRanks, TwoPipelinesAreOneProcess) {
  const std::string options = "--dtype f64 --epochs 2 --seed 7 --no-shuffle ";
  ASSERT_EQ(run("one", false, "autoencoder", options + "--batch-size 8"), 0) << log();
  ASSERT_EQ(run("four", true, "autoencoder_pipe_ddp",
                options + "--batch-size 4 --replicas 2 --chunks 2 --schedule 1f1b"),
            0)
      << log();
  expect_same_run("one", "four");
  EXPECT_NE(log().find("batch 4 per 2 ranks, 8 in all: 4 ranks by"), std::string::npos) << log();

  const std::string shuffled = "--batch-size 4 --epochs 2 --replicas 2 --chunks 2";
  ASSERT_EQ(run("whole", true, "autoencoder_pipe_ddp", shuffled), 0) << log();
  ASSERT_EQ(run("part", true, "autoencoder_pipe_ddp", shuffled + " --limit-steps 3"), 0) << log();
  ASSERT_EQ(run("part", true, "autoencoder_pipe_ddp", shuffled + " --resume latest"), 0) << log();
  EXPECT_EQ(metrics("part")["losses"], metrics("whole")["losses"]);
  EXPECT_EQ(largest_difference("part", "whole"), 0);
}

}  // namespace
}  // namespace weft
