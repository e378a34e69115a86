// char_transformer_tp, launched like by a user, and with another number of ranks.
#include <string>

#include "weft/tests/examples/transformer_run.h"

namespace weft {
namespace {

class TpRun : public testing::TransformerRun {
 protected:
  explicit TpRun(int ranks = 2) : TransformerRun(ranks) {}
};

TEST_F(TpRun, EachWayIsOneProcess) {
  succeed("one", false, "char_transformer", in_f64(2) + "--batch-size 16 --sample 1");
  succeed("alone", false, "char_transformer_tp", in_f64(2) + "--batch-size 16");
  expect_same_as_one("alone");
  succeed("tp", true, "char_transformer_tp", in_f64(2) + "--batch-size 16");
  expect_same_as_one("tp");
  succeed("sequence", true, "char_transformer_tp",
          in_f64(2) + "--batch-size 16 --sequence-parallel");
  expect_same_as_one("sequence");
  succeed("dp", true, "char_transformer_tp", in_f64(2) + "--batch-size 8 --tp 1");
  expect_same_as_one("dp");
  const double whole = memory("dp", 1, "optimizer");
  EXPECT_NEAR(memory("tp", 1, "optimizer"), whole / 2, 0.1 * whole);
  EXPECT_GT(metrics("tp")["bytes_sent"].get<double>(), 0);
}

class TpRunOfFour : public TpRun {
 protected:
  TpRunOfFour() : TpRun(4) {}
};

TEST_F(TpRunOfFour, InTwoGroups) {
  succeed("one", false, "char_transformer", in_f64(1) + "--batch-size 16 --sample 1");
  succeed("two", true, "char_transformer_tp",
          in_f64(1) + "--batch-size 8 --tp 2 --sequence-parallel");
  expect_same_run("one", "two");
}

TEST_F(TpRun, StoppedAndResumedIsTheSameRun) {
  expect_resumes(true, "char_transformer_tp", kNet + std::string("--batch-size 8 --epochs 2"), 9,
                 "--seed 5");
}

TEST_F(TpRun, ACheckpointGoesOnWithAnotherNumberOfRanks) {
  succeed("whole", false, "char_transformer_tp", in_f64(3) + "--batch-size 8");
  succeed("part", true, "char_transformer_tp", in_f64(1) + "--batch-size 8");
  succeed("part", false, "char_transformer_tp", in_f64(2) + "--batch-size 8 --resume latest");
  succeed("part", true, "char_transformer_tp",
          in_f64(3) + "--batch-size 8 --sequence-parallel --resume latest");
  expect_same_run("whole", "part");
}

TEST_F(TpRun, SaysWhatDoesNotFit) {
  EXPECT_NE(run("x", true, "char_transformer_tp", kNet + std::string("--tp 3")), 0);
  EXPECT_HAS(log(), "--tp 3 does not divide 2 ranks");
  EXPECT_NE(run("x", true, "char_transformer_tp", kNet + std::string("--tp -1")), 0);
  EXPECT_HAS(log(), "--tp: '-1' is no whole number from 1 to");
  EXPECT_NE(run("x", true, "char_transformer_tp", "--context 8 --width 15 --heads 3"), 0);
  EXPECT_HAS(log(), "blocks.0.attention has 3 heads, which do not divide by 2 ranks");
  succeed("x", true, "char_transformer_tp", kNet + std::string("--summary"));
  EXPECT_HAS(log(), "TransformerBlock");
}

}  // namespace
}  // namespace weft
