// char_transformer_3d, launched like by a user, and checkpoints of it in one process.
#include <cstdint>
#include <string>

#include "weft/tests/examples/transformer_run.h"

namespace weft {
namespace {

class ThreeAxesRun : public testing::TransformerRun {
 protected:
  ThreeAxesRun() : TransformerRun(8) {}

  static std::string in_f64(int epochs, int batch) {
    return "--context 8 --width 16 --heads 2 --layers 4 --seed 7 --dtype f64 --no-shuffle "
           "--epochs " +
           std::to_string(epochs) + " --batch-size " + std::to_string(batch) + ' ';
  }
};

TEST_F(ThreeAxesRun, IsOneProcess) {
  const std::string steps = "--limit-steps 20 ";
  succeed("one", false, "char_transformer", in_f64(3, 16) + steps + "--sample 1");
  const auto expect_same = [&](const std::string& out, const std::string& options, int chunks = 4) {
    succeed(out, true, "char_transformer_3d",
            in_f64(3, 8) + steps + options + " --chunks " + std::to_string(chunks));
    expect_same_as_one(out);
  };
  expect_same("gpipe", "");
  EXPECT_HAS(log(), "dp 1  pp 1     6     7");
  expect_same("interleaved", "--schedule interleaved --sequence-parallel");
  expect_same("zb-h1", "--schedule zb-h1 --checkpoint never");
  expect_same("fsdp", "--schedule 1f1b --fsdp");
  expect_same("zb-v", "--schedule zb-v --checkpoint never --fsdp");
  // The last five pieces of the test, too, must be four micro-batches or more.
  expect_same("dualpipev", "--schedule dualpipev --checkpoint never --fsdp", 5);

  // A rank has a quarter of the layers' moments, and all of the norms' and of the table of
  // positions. That is at most a third of all, with the rounding of small allocations.
  double all = 0;
  for (const auto& [name, x] : io::load_safetensors(folder.path("one/model.safetensors")).tensors) {
    all += 2 * 8 * static_cast<double>(x.numel());
  }
  for (int rank = 0; rank < 8; ++rank) {
    const double moments = memory("gpipe", rank, "optimizer");
    EXPECT_LT(moments, all / 3) << rank;
    EXPECT_GT(moments, all / 8) << rank;
    EXPECT_LT(memory("fsdp", rank, "optimizer"), moments * 2 / 3) << rank;  // a half, and padding
  }
}

// In the middle of the first and the third epoch, of 16 steps, and at the end of the second.
TEST_F(ThreeAxesRun, ACheckpointGoesOnInOneProcessAndBack) {
  succeed("whole", false, "char_transformer", in_f64(4, 8) + "--sample 1");
  succeed("part", false, "char_transformer", in_f64(1, 8) + "--sample 1 --limit-steps 3");
  const std::string resume = "--resume latest ";
  succeed("part", true, "char_transformer_3d", in_f64(2, 8) + resume + "--pp 4 --tp 2");
  EXPECT_NE(run("part", true, "char_transformer_3d", in_f64(3, 4) + resume + "--layers 3"), 0);
  EXPECT_HAS(log(), "these values are of another model, with 54 parameters in place of 42");
  succeed("part", true, "char_transformer_3d",
          in_f64(3, 4) + resume + "--fsdp --schedule 1f1b --limit-steps 37");
  succeed("part", false, "char_transformer", in_f64(4, 8) + resume + "--sample 1");
  expect_same_run("whole", "part");

  const std::string weights = "--weights " + folder.path("whole/model.safetensors ");
  succeed("from", false, "char_transformer", in_f64(1, 8) + weights + "--sample 1");
  succeed("weights", true, "char_transformer_3d", in_f64(1, 8) + weights + "--pp 4 --tp 2");
  expect_same_run("from", "weights");
}

TEST_F(ThreeAxesRun, SaysWhatDoesNotFit) {
  EXPECT_NE(run("x", true, "char_transformer_3d", in_f64(1, 8) + "--tp 3"), 0);
  EXPECT_HAS(log(), "do not divide 8 ranks");
  EXPECT_NE(run("x", true, "char_transformer_3d", in_f64(1, 8) + "--pp 4 --schedule interleaved"),
            0);
  EXPECT_HAS(log(), "8 stages need as many blocks, got --layers 4");
  EXPECT_NE(run("x", true, "char_transformer_3d", in_f64(1, 8) + "--schedule-file x"), 0);
  EXPECT_HAS(log(), "unknown option --schedule-file");
  EXPECT_NE(run("x", true, "char_transformer_3d", in_f64(1, 8) + "--pp -1"), 0);
  EXPECT_HAS(log(), "--pp: '-1' is no whole number from 1 to");
  succeed("x", false, "char_transformer_3d", in_f64(1, 8) + "--summary");
  EXPECT_HAS(log(), "TransformerBlock");
}

}  // namespace
}  // namespace weft
