// The programs with the Horovod-style optimiser, launched with Horovod's command line.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "weft/io/safetensors.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

using comm::testing::missing_backend;

class HorovodRun : public testing::LaunchedTest, public ::testing::WithParamInterface<const char*> {
 protected:
  HorovodRun() : LaunchedTest("launch/weftrun -np 2 -H localhost:2") {}

  static std::string backend() { return std::string(" --backend ") + GetParam(); }
};

// In f64, sums in another order differ by about 1e-16 of their size.
TEST_P(HorovodRun, TwoRanksOfHalfTheBatchAreOneProcess) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  const std::string options = "--dtype f64 --no-shuffle --epochs 2 --seed 7 --lr 0.1 ";
  succeed("one", false, "mlp", options + "--batch-size 8");
  succeed("two", true, "mlp_horovod", options + "--batch-size 4" + backend());
  const auto one = metrics("one"), two = metrics("two");
  EXPECT_EQ(two["optimizer"], "SGD");
  EXPECT_EQ(one["losses"].size(), 10U);
  expect_same_run("one", "two");
  EXPECT_EQ(two["world_size"], 2);
  EXPECT_EQ(two["test"]["accuracy"], one["test"]["accuracy"]);
  // Rank 0 sends about as many bytes as its gradients have, 100,000 numbers, in each of 10 steps.
  EXPECT_NEAR(two["bytes_sent"].get<double>(), 10 * 8 * 101'770, 2e6);
  EXPECT_GT(two["allreduce_ms"], 0);
  EXPECT_GT(two["exposed_ms"], 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, HorovodRun, ::testing::Values("shm", "gloo", "ring"),
                         [](const auto& info) { return std::string(info.param); });

const std::string kGan = "--width 2 --latent 8 --batch-size 4 ";

TEST_F(HorovodRun, StoppedAndResumedIsTheSameRun) {
  for (const std::string& program :
       {std::string("mlp_horovod --lr 0.1 --batch-size 4"), "dcgan_horovod " + kGan}) {
    expect_resumes(true, program, "--epochs 3", 7,
                   "--seed 5 --resume " + folder.path("part/checkpoint.safetensors"));
  }
}

TEST_F(HorovodRun, AloneItIsTheProgramOfOneProcess) {
  for (const auto& [program, options] :
       std::vector<std::pair<std::string, std::string>>{{"mlp", ""}, {"dcgan", kGan}}) {
    const std::string all = options + " --epochs 1 --no-shuffle";
    succeed("one", false, program, all);
    succeed("alone", false, program + "_horovod", all);
    expect_same_bits("alone", "one");
  }
}

TEST_F(HorovodRun, OneRankDrawsTheSamples) {
  succeed("gan", true, "dcgan_horovod", "--epochs 1 --width 8 --latent 8 --batch-size 4");
  EXPECT_TRUE(std::filesystem::exists(folder.path("gan/samples-epoch-0.png")));
  EXPECT_EQ(metrics("gan")["losses"]["generator"].size(), 5U);
  // For both nets: rank 0 sends 4 bytes per parameter in each of 5 steps, and the initial values
  // before the first step.
  double parameters = 0, buffers = 0;
  for (const auto& [name, x] : io::load_safetensors(folder.path("gan/model.safetensors")).tensors) {
    const bool buffer =
        name.find("running_") != std::string::npos || name.ends_with("batches_tracked");
    (buffer ? buffers : parameters) += static_cast<double>(x.numel());
  }
  EXPECT_NEAR(metrics("gan")["bytes_sent"].get<double>(), 4 * (6 * parameters + buffers),
              2 * parameters);
  EXPECT_GT(metrics("gan")["allreduce_ms"], 0);
  EXPECT_GT(metrics("gan")["exposed_ms"], 0);
  EXPECT_LACKS(log(), "warning");
}

}  // namespace
}  // namespace weft
