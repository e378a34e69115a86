// mlp_zero, launched like by a user, and with another number of ranks.
#include <string>

#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

class ZeroRun : public testing::LaunchedTest {
 protected:
  ZeroRun() : LaunchedTest("launch/weftrun --nproc-per-node 2") {}

  // 100,352 of the 101,770 numbers are the first weight, which one rank has.
  double moments(const std::string& out, int rank) const { return memory(out, rank, "optimizer"); }
};

// In f64, sums in another order differ by about 1e-16 of their size, which Adam enlarges.
TEST_F(ZeroRun, TwoRanksOfHalfTheBatchAreOneProcess) {
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 ";
  succeed("one", false, "mlp_zero", options + "--batch-size 8");
  succeed("two", true, "mlp_zero", options + "--batch-size 4");
  expect_same_run("one", "two");
  EXPECT_EQ(metrics("two")["optimizer"], "Adam");
  EXPECT_EQ(metrics("two")["test"], metrics("one")["test"]);
  // Two moments of 8 bytes for each number, in blocks of 512 bytes.
  EXPECT_EQ(moments("two", 0), 2 * 8 * 100'352);
  EXPECT_EQ(moments("two", 1), 2 * (1024 + 8 * 1280 + 512));
  EXPECT_EQ(moments("one", 0), moments("two", 0) + moments("two", 1));
  // In each of 10 steps rank 0 sends its gradients once, as with DDP, and its weight to rank 1.
  EXPECT_NEAR(metrics("two")["bytes_sent"].get<double>(), 10 * 8 * (101'770 + 100'352), 1e6);
}

TEST_F(ZeroRun, StoppedAndResumedIsTheSameRun) {
  expect_resumes(true, "mlp_zero --batch-size 4", "--epochs 3", 7, "--seed 5");
}

// A checkpoint of two ranks is continued by one process, and its own by two ranks.
TEST_F(ZeroRun, ACheckpointGoesOnWithAnotherNumberOfRanks) {
  const std::string options = "--dtype f64 --no-shuffle --seed 7 ";
  succeed("whole", false, "mlp_zero", options + "--batch-size 8 --epochs 3");
  succeed("part", true, "mlp_zero", options + "--batch-size 4 --epochs 1");
  succeed("part", false, "mlp_zero", options + "--batch-size 8 --epochs 2 --resume latest");
  succeed("part", true, "mlp_zero", options + "--batch-size 4 --epochs 3 --resume latest");
  expect_same_run("whole", "part");
}

TEST_F(ZeroRun, ARankThatIsKilledEndsTheOther) {
  setenv("WEFT_FAULT", "kill:rank=1:step=3", 1);
  EXPECT_EQ(run("killed", true, "mlp_zero", "--epochs 1 --batch-size 4"), 137) << log();
  unsetenv("WEFT_FAULT");
  EXPECT_HAS(log(), "rank 1 failed first");
  EXPECT_HAS(log(), "killed by signal 9 (SIGKILL)");
}

}  // namespace
}  // namespace weft
