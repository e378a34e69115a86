// The cnn program on a few images in CIFAR-10's format, and on generated ones.
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "weft/tests/examples/program.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using nlohmann::json;

class CnnRunTest : public testing::ProgramTest {
 protected:
  // 40 training images, 5 steps per epoch, and 12 test images.
  CnnRunTest() : ProgramTest("cnn", "--width-scale 1/64 --batch-size 8") {
    testing::write_cifar10(folder.path("data"), 8, 12);
  }

  // The number of lines in the log that match.
  int lines(const std::string& pattern) const {
    const std::regex regex(pattern);
    std::istringstream text(log());
    int count = 0;
    for (std::string line; std::getline(text, line);) count += std::regex_match(line, regex);
    return count;
  }
};

TEST_F(CnnRunTest, EachEpochLeavesAccuracyAndACheckpoint) {
  succeed("out", "--epochs 2 --log-every 3");
  const std::string time = "[0-9]+:[0-9]{2}:[0-9]{2}";
  for (const std::string epoch : {"0", "1"}) {
    EXPECT_EQ(lines("epoch " + epoch + "  step 3/5  loss [0-9.]+  " + time), 1) << log();
    EXPECT_EQ(lines(".*epoch " + epoch + ": test accuracy [0-9.e-]+"), 1) << log();
    const std::string kept = "out/checkpoint-epoch-" + epoch + ".safetensors";
    const train::Checkpoint checkpoint = train::load_checkpoint(folder.path(kept));
    EXPECT_EQ(checkpoint.losses.size(), epoch == "0" ? 5U : 10U);
  }
  EXPECT_TRUE(bytes_of("out/checkpoint-epoch-1.safetensors") ==
              bytes_of("out/checkpoint.safetensors"));
  const json metrics = LaunchedTest::metrics("out");
  EXPECT_EQ(metrics["optimizer"], "SGD");
  ASSERT_EQ(metrics["epochs"].size(), 2U);
  for (const json& epoch : metrics["epochs"]) {
    const double hits = epoch["test"]["accuracy"].get<double>() * 12;
    EXPECT_NEAR(hits, std::round(hits), 1e-9);
    EXPECT_TRUE(hits >= 0 && hits <= 12) << hits;
  }
}

TEST_F(CnnRunTest, FourStepsAndFourMoreAreEight) {
  for (const char* options : {"--dtype f32", "--dtype f64", "--amp bf16"}) {
    const std::string whole = std::string("--epochs 2 ") + options;
    succeed("whole", whole + " --limit-steps 8");
    succeed("part", whole + " --limit-steps 4");
    EXPECT_FALSE(bytes_of("part/model.safetensors") == bytes_of("whole/model.safetensors"));
    succeed("part", whole + " --limit-steps 8 --seed 5 --map-location cpu --resume " +
                        folder.path("part/checkpoint.safetensors"));
    // So sha256 is the same, too. EXPECT_EQ would print the bytes.
    EXPECT_TRUE(testing::read_file(folder.path("part/model.safetensors")) ==
                testing::read_file(folder.path("whole/model.safetensors")))
        << options;
    EXPECT_TRUE(bytes_of("part/checkpoint.safetensors") == bytes_of("whole/checkpoint.safetensors"))
        << options;
  }
}

// On the CPU, where every step is compared with the captured one. The last of four steps has 4
// images.
TEST_F(CnnRunTest, CapturedStepsLeaveTheSameCheckpoint) {
  const std::string whole = "--epochs 2 --batch-size 12 ";
  succeed("plain", whole);
  succeed("captured", whole + "--graph");
  EXPECT_TRUE(bytes_of("captured/checkpoint.safetensors") ==
              bytes_of("plain/checkpoint.safetensors"));
  succeed("part", whole + "--graph --limit-steps 3");
  succeed("part", whole + "--graph --resume " + folder.path("part/checkpoint.safetensors"));
  EXPECT_TRUE(bytes_of("part/checkpoint.safetensors") == bytes_of("plain/checkpoint.safetensors"));
}

TEST_F(CnnRunTest, MapLocationIsWhereTheCheckpointIsRead) {
  succeed("out", "--limit-steps 1");
  const std::string resume =
      " --limit-steps 2 --resume " + folder.path("out/checkpoint.safetensors");
  succeed("out", "--host-devices 2 --map-location cpu:1" + resume);
  EXPECT_EQ(run("out", "--map-location cpu:1" + resume), 1);
  EXPECT_HAS(log(), "cpu:1");
  EXPECT_EQ(run("out", "--map-location gpu" + resume), 2);
  EXPECT_HAS(log(), "'gpu' is no device; use cpu, cpu:N, cuda or cuda:N");
}

TEST_F(CnnRunTest, BeginsWithTheWeightsOfAnotherRun) {
  const std::string options = "--limit-steps 2 ";
  succeed("first", options);
  succeed("whole", options + "--weights " + folder.path("first/model.safetensors"));
  succeed("part", options + "--weights " + folder.path("first/checkpoint.safetensors:model"));
  const auto model = [&](const char* name) {
    return bytes_of(name + std::string("/model.safetensors"));
  };
  EXPECT_TRUE(model("part") == model("whole"));
  EXPECT_FALSE(model("whole") == model("first"));
}

TEST_F(CnnRunTest, WithoutImagesItSaysHowToGetSome) {
  const auto expect_help = [&] {
    EXPECT_HAS(log(),
               "cnn: --data wants: folder of CIFAR-10's binary files, or fake for made-up "
               "images; to fetch it: ./weft fetch cifar10 " +
                   folder.path("data") + "\n");
  };
  std::filesystem::remove(folder.path("data/data_batch_3.bin"));
  EXPECT_EQ(run("out", ""), 1);
  EXPECT_HAS(log(), "data: no file data_batch_3.bin");
  expect_help();
  std::filesystem::remove_all(folder.path("data"));
  EXPECT_EQ(run("out", ""), 1);
  EXPECT_HAS(log(), "data: no such folder");
  expect_help();
  succeed("out", "--data fake --limit-steps 2 --batch-size 64");
  EXPECT_EQ(lines(".*epoch 0: test accuracy [0-9.e-]+"), 1) << log();
  EXPECT_HAS(log(), "tests take 128 of the 10000 images (--limit-steps 2)");
}

TEST_F(CnnRunTest, WrongUse) {
  const auto refuses = [&](const std::string& arguments, const std::string& message) {
    EXPECT_EQ(run("out", arguments), 2);
    EXPECT_HAS(log(), message);
  };
  refuses("--width-scale 0", "--width-scale: '0' is no number above 0");
  refuses("--hidden 0", "--hidden: '0' is no whole number from 1 to 1000000000");
  refuses("--amp bf16 --dtype f64", "--amp bf16 needs --dtype f32");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

}  // namespace
}  // namespace weft
