// Programs of two ranks, recorded and replayed in one process: what ./weft prove does.
#include <cstdlib>
#include <map>
#include <string>

#include "weft/tests/examples/launched.h"
#include "weft/tests/train/records.h"

namespace weft {
namespace {

class ProveRun : public testing::LaunchedTest {
 protected:
  ProveRun() : LaunchedTest("launch/weftrun --nproc-per-node 2") {}
  ~ProveRun() override { ::unsetenv("WEFT_PROVE"); }

  /// Runs both sides, and compares what both ranks have, to the bit. Returns the numbers of equal
  /// digests.
  std::map<std::string, int> prove(const std::string& program, const std::string& options) const {
    const std::string ranks = folder.path("ranks"), one = folder.path("one");
    plan(R"({"side": "ranks", "out": ")" + ranks + "\"}");
    succeed("out", true, program, options);
    plan(R"({"side": "one", "out": ")" + one + R"(", "from": ")" + ranks + "\"}");
    succeed("out", false, program, options);
    std::map<std::string, int> counts;
    for (const int rank : {0, 1}) {
      for (const auto& [kind, count] : testing::expect_same_records(ranks, one, rank)) {
        counts[kind] += count;
      }
    }
    return counts;
  }

 private:
  void plan(const std::string& text) const {
    testing::write_file(folder.path("plan.json"), text);
    ::setenv("WEFT_PROVE", folder.path("plan.json").c_str(), 1);
  }
};

// For each rank and step: the outputs of 4 layers and of the net, and 4 parameters.
TEST_F(ProveRun, OneProcessHasEachOutputGradientAndWeightOfTwoRanks) {
  const auto counts = prove("mlp_ddp", "--batch-size 4 --limit-steps 5 --lr 0.1");
  EXPECT_EQ(counts.at("output"), 2 * 5 * 5);
  EXPECT_EQ(counts.at("gradient"), 2 * 5 * 4);
  EXPECT_EQ(counts.at("weight"), 2 * 5 * 4);
}

// Two optimisers, batch norms, and noise of which each rank takes its part.
TEST_F(ProveRun, AGan) {
  const auto counts = prove("dcgan_horovod", "--batch-size 4 --limit-steps 3 --width 4 --latent 8");
  EXPECT_GT(counts.at("output"), 0);
  EXPECT_GT(counts.at("gradient"), 0);
  EXPECT_GT(counts.at("buffer"), 0);
}

TEST_F(ProveRun, AConvolutionalNet) {
  const auto counts =
      prove("cnn_ddp", "--data fake --width-scale 1/64 --batch-size 4 --limit-steps 2");
  EXPECT_GT(counts.at("gradient"), 0);
}

// Each rank has a part of each gradient, but of the weights also the whole.
TEST_F(ProveRun, ACutModel) {
  testing::write_file(folder.path("data/text.txt"), std::string(300, 'a') + std::string(300, 'b'));
  const auto counts = prove("char_transformer_fsdp",
                            "--batch-size 4 --limit-steps 3 --context 8 --width 8 --heads 2 "
                            "--layers 1");
  EXPECT_GT(counts.at("output"), 0);
  EXPECT_GT(counts.at("weight"), 0);
  EXPECT_FALSE(counts.contains("gradient"));
}

}  // namespace
}  // namespace weft
