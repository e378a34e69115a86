// The resnet program on a small folder of pictures: --freeze, --weights, and resuming.
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "weft/io/png.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/examples/program.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using nlohmann::json;

class ResNetRunTest : public testing::ProgramTest {
 protected:
  ResNetRunTest() : ProgramTest("resnet", "--image-size 32 --batch-size 4") {
    for (const char* name : {"train/cat", "train/dog", "val/cat", "val/dog"})
      add_class(name, std::string(name).starts_with("train") ? 8 : 2);
  }

  // Pictures of noise.
  void add_class(const std::string& name, int count) {
    std::filesystem::create_directories(folder.path("data/" + name));
    for (int i = 0; i < count; ++i) {
      io::Image image{48, 40, 3, std::vector<std::uint8_t>(40 * 48 * 3)};
      for (auto& byte : image.pixels) byte = static_cast<std::uint8_t>(random_());
      io::write_png(folder.path("data/" + name + "/" + std::to_string(i) + ".png"), image);
    }
  }

 private:
  std::mt19937 random_{1};
};

TEST_F(ResNetRunTest, FreezingTrainsFcAlone) {
  succeed("base", "--epochs 1");
  const auto base = bytes_of("base/model.safetensors");
  const std::string frozen = "--epochs 3 --schedule cosine --freeze all-but-fc --weights " +
                             folder.path("base/model.safetensors");
  succeed("whole", frozen);
  const auto whole = bytes_of("whole/model.safetensors");
  ASSERT_EQ(whole.size(), base.size());
  for (const auto& [name, bytes] : whole)
    EXPECT_EQ(bytes == base.at(name), !name.starts_with("fc.")) << name;

  const train::Checkpoint checkpoint =
      train::load_checkpoint(folder.path("whole/checkpoint.safetensors"));
  EXPECT_EQ(checkpoint.model.size(), base.size());
  std::set<std::string> state;
  for (const auto& [name, tensor] : checkpoint.parts.at(0)) state.insert(name);
  EXPECT_EQ(state, (std::set<std::string>{"group.0.lr", "group.0.initial_lr", "group.0.momentum",
                                          "state.0.momentum_buffer", "state.0.step",
                                          "state.1.momentum_buffer", "state.1.step"}));

  const json metrics = LaunchedTest::metrics("whole");
  ASSERT_EQ(metrics["epochs"].size(), 3U);
  for (const json& epoch : metrics["epochs"]) {
    EXPECT_TRUE(epoch["test"].contains("top1"));
    EXPECT_EQ(epoch["test"]["top5"], 1.0);  // there are two classes
  }

  // An epoch has four steps; this run is interrupted in the second one.
  succeed("part", frozen + " --limit-steps 6");
  succeed("part", frozen + " --resume " + folder.path("part/checkpoint.safetensors"));
  EXPECT_TRUE(bytes_of("part/checkpoint.safetensors") ==
              bytes_of("whole/checkpoint.safetensors"));  // EXPECT_EQ would print them
}

TEST_F(ResNetRunTest, StartsFromWeightsForOtherClasses) {
  succeed("base", "--limit-steps 1");
  const std::string weights = folder.path("weights.safetensors");
  io::NamedTensors tensors = io::load_safetensors(folder.path("base/model.safetensors")).tensors;
  for (auto& [name, value] : tensors) {
    if (name == "fc.weight") value = zeros({1000, 512});
    if (name == "fc.bias") value = zeros({1000});
  }
  io::save_safetensors(weights, tensors);
  const std::string frozen = " --freeze all-but-fc --limit-steps 1 --weights " + weights;
  succeed("out", frozen);
  EXPECT_TRUE(bytes_of("out/model.safetensors")["layer4.1.conv2.weight"] ==
              bytes_of("base/model.safetensors")["layer4.1.conv2.weight"]);
  EXPECT_EQ(run("out", "--depth 50" + frozen), 1);
  EXPECT_HAS(log(), "layer1.0.conv1.weight");
}

TEST_F(ResNetRunTest, SummaryTrainsNothing) {
  succeed("out", "--summary --depth 50 --freeze all-but-fc");
  // torchvision's 23,508,032 without fc, which has two classes here.
  for (const char* line : {"layer4.2.conv3 ", "  trainable         4,098\n",
                           "  frozen            23,508,032\n", "GMAC"}) {
    EXPECT_HAS(log(), line);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST_F(ResNetRunTest, WrongUse) {
  EXPECT_EQ(run("out", "--depth 35"), 2);
  EXPECT_EQ(run("out", "--freeze everything"), 2);
  add_class("train/zebra", 1);
  EXPECT_EQ(run("out", ""), 1);
  EXPECT_HAS(log(), "train has 3 classes, val has 2");
  std::filesystem::remove_all(folder.path("data/val"));
  EXPECT_EQ(run("out", ""), 1);
  EXPECT_HAS(log(), "data/val: no such folder");
  EXPECT_HAS(log(), "(--data fake)");
}

}  // namespace
}  // namespace weft
