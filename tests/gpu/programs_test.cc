// The programs' steps on emulated GPUs, compared with the same steps on the CPU.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/comm/backend/nccl.h"
#include "weft/core/base/error.h"
#include "weft/io/png.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

struct Numbers {
  const char* options;
  double tolerance;  // relative, for the loss after two steps
  friend std::ostream& operator<<(std::ostream& out, const Numbers& n) { return out << n.options; }
};
// The devices add in other orders, and Adam's first steps are equally long for small gradients,
// whose signs may change by rounding, and for large ones.
constexpr Numbers kNumbers[] = {
    {"--dtype f64", 1e-9},
    {"--conv-fp32-precision ieee", 1e-4},
    {"--amp bf16", 0.05},
};
constexpr const char* kPrograms[] = {
    "autoencoder",
    "mlp",
    "cnn --width-scale 1/64",
    "dcgan --width 2 --latent 4",
    "wgan_gp --width 2 --latent 4 --critic-steps 2",
};
// The smallest size that leaves a batch norm more than one value.
constexpr const char* kResNet = "resnet --image-size 33";
constexpr const char* kGanStyle = "gan_style --width 2 --vgg-width 1";
constexpr const char* kTransformer =
    "char_transformer --context 4 --width 8 --heads 2 --layers 1 --sample 1";
constexpr const char* kConditions[] = {
    "WEFT_EMULATED_ORDER=lazy",
    "WEFT_EMULATED_ORDER=random WEFT_EMULATED_PEERS=0",
    "WEFT_EMULATED_HMM=1",
};

/// Writes pictures of two classes.
void write_pictures(const std::string& folder, int train, int test) {
  std::mt19937 random(1);
  for (const auto& [part, count] : {std::pair("train", train), std::pair("val", test)}) {
    for (int i = 0; i < count; ++i) {
      const std::filesystem::path file =
          detail::concat(folder, "/", part, i % 2 ? "/b/" : "/a/", i, ".png");
      std::filesystem::create_directories(file.parent_path());
      io::Image image{40, 40, 3, std::vector<std::uint8_t>(3 * 40 * 40)};
      for (auto& byte : image.pixels) byte = static_cast<std::uint8_t>(random());
      io::write_png(file, image);
    }
  }
}

class EmulatedPrograms : public ::testing::Test {
 protected:
  /// Writes images for training, a multiple of five, in the format that `program` reads, or a text
  /// of 21 pieces.
  void write_data(const std::string& program, int images = 5) const {
    if (program.starts_with("cnn")) {
      testing::write_cifar10(folder.path("data"), images / 5, 2);
    } else if (program.starts_with("char_transformer")) {
      std::string text;
      for (int i = 0; i < 50; ++i) text += static_cast<char>('a' + i * i % 11);
      testing::write_file(folder.path("data"), text);
    } else if (program.starts_with("resnet")) {
      write_pictures(folder.path("data"), images, 2);
    } else {
      testing::write_mnist(folder.path("data"), static_cast<unsigned>(images), 2);
    }
  }

  /// The loss of each step (the first one if there are several). A step has two images, or one at
  /// the end of an epoch, unless the options say otherwise.
  std::vector<double> losses(const std::string& environment, const std::string& program,
                             const std::string& options, const std::string& launcher = "") const {
    const std::string command =
        environment + " WEFT_CACHE=off timeout 300 " + launcher + "examples/" + program +
        " --data " + folder.path("data") + " --out " + folder.path("out") +
        " --batch-size 2 --deterministic " + options + " >" + folder.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << log();
    const auto losses = metrics()["losses"];
    return losses.is_object() ? losses.front() : losses;
  }
  nlohmann::json metrics() const {
    return nlohmann::json::parse(testing::read_file(folder.path("out/metrics.json")));
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  /// How often the log says why steps are not captured.
  int reasons() const {
    const std::string said = log(), why = "steps run without a CUDA graph: ";
    int count = 0;
    for (auto at = said.find(why); at != std::string::npos; at = said.find(why, at + 1)) ++count;
    return count;
  }

  testing::TempFolder folder;
};

class AgainstTheCpu
    : public EmulatedPrograms,
      public ::testing::WithParamInterface<std::tuple<const char*, Numbers, const char*>> {};

TEST_P(AgainstTheCpu, Trains) {
  const auto& [program, numbers, environment] = GetParam();
  write_data(program);
  const std::string options = std::string("--epochs 1 --limit-steps 2 ") + numbers.options;
  const std::vector<double> cpu = losses(environment, program, "--device cpu " + options);
  const std::vector<double> cuda = losses(environment, program, "--device cuda " + options);
  ASSERT_EQ(cpu.size(), 2U);
  ASSERT_EQ(cuda.size(), 2U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(cuda[i], cpu[i], numbers.tolerance * std::abs(cpu[i])) << "step " << i;
  }
}

class RanksOnGpus : public EmulatedPrograms,
                    public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {};

// Three ranks have to share the two GPUs.
TEST_P(RanksOnGpus, TrainAsOnTheCpu) {
  const auto& [environment, backend] = GetParam();
  if (std::string(backend).starts_with("nccl") && !comm::registered_nccl()) {
    GTEST_SKIP() << "this build is without NCCL";
  }
  write_data("mlp");
  for (const char* const ranks : {"2", "3"}) {
    const std::string launcher = std::string("launch/weftrun --nproc-per-node ") + ranks + " ";
    const std::string options = "--epochs 2 --limit-steps 2 --dtype f64 --threads 1 ";
    const auto cpu = losses(environment, "mlp_ddp", options + "--device cpu", launcher);
    const auto cuda =
        losses(environment, "mlp_ddp", options + "--device cuda --backend " + backend, launcher);
    ASSERT_EQ(cpu.size(), 2U);
    ASSERT_EQ(cuda.size(), 2U);
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(cuda[i], cpu[i], 1e-9 * std::abs(cpu[i])) << "step " << i << ", " << ranks;
    }
    EXPECT_EQ(metrics()["device"], "cuda:0");
    EXPECT_EQ(metrics()["backend"], backend);
    // With two ranks, the second batch of each is smaller, so nothing is decided.
    EXPECT_EQ(reasons(), ranks == std::string("3") ? 1 : 0) << log();
  }
}
INSTANTIATE_TEST_SUITE_P(EmulatedPrograms, RanksOnGpus,
                         ::testing::Combine(::testing::ValuesIn(kConditions),
                                            ::testing::Values("nccl", "nccl-ring", "shm")));

class PartsOnGpus : public EmulatedPrograms, public ::testing::WithParamInterface<const char*> {};

TEST_P(PartsOnGpus, TrainAsAWholeOnTheCpu) {
  write_data("autoencoder");
  const std::string options = "--epochs 1 --limit-steps 3 --dtype f64 ";
  const auto cpu = losses(GetParam(), "autoencoder", options + "--device cpu");
  const auto cuda = losses(GetParam(), "autoencoder_mp", options + "--device cuda --devices 1,0");
  ASSERT_EQ(cpu.size(), 3U);
  ASSERT_EQ(cuda.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(cuda[i], cpu[i], 1e-9 * std::abs(cpu[i])) << i;
}
INSTANTIATE_TEST_SUITE_P(EmulatedPrograms, PartsOnGpus, ::testing::ValuesIn(kConditions));

TEST_F(EmulatedPrograms, OneGpuStandsForBothDevicesOfTheTable) {
  write_data("autoencoder");
  const std::string command =
      "WEFT_EMULATED_DEVICES=1 WEFT_CACHE=off timeout 900 examples/p4_table --device cuda --rows 32"
      " --limit-steps 1 --data " +
      folder.path("data") + " --out " + folder.path("out") + " >" + folder.path("log") + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << log();
  EXPECT_NE(log().find("one GPU stands for both devices: they share it"), std::string::npos);
  EXPECT_EQ(metrics()["rows"].size(), 6U);
}

TEST(OldDriver, IsNamed) {
  testing::TempFolder folder;
  const std::string log = folder.path("log");
  const std::string command = "WEFT_EMULATED_DRIVER=11040 examples/mlp --device cuda --data " +
                              folder.path("data") + " --out " + folder.path("out") + " >" + log +
                              " 2>&1";
  testing::write_mnist(folder.path("data"), 4, 2);
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(testing::read_file(log).find(
                "no GPU is used: the driver is made for CUDA up to 11.4, this weft for "),
            std::string::npos)
      << testing::read_file(log);
}

TEST_F(EmulatedPrograms, WithoutCodeForTheGpuTheCpuTrains) {
  write_data("mlp");
  const std::string environment = "WEFT_EMULATED_DEVICES=1 WEFT_EMULATED_CAPABILITIES=7.5";
  const std::string why =
      "GPU 0 of compute capability 7.5 is not used: this weft has code for 8.0 and all from 8.0 "
      "on; build it with --arch 75, as in ./weft run EXAMPLE --arch 75\n";
  losses(environment, "mlp", "--epochs 1 --limit-steps 2");
  EXPECT_EQ(metrics()["device"], "cpu:0");
  const std::string said = log();
  const auto first = said.find(why);
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("is not used", first + why.size()), std::string::npos) << said;

  const std::string command = environment + " examples/mlp --device cuda --data " +
                              folder.path("data") + " --out " + folder.path("out") + " >" +
                              folder.path("log") + " 2>&1";
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(log().find("[cuda:0] no such device: " + why.substr(0, why.size() - 1)),
            std::string::npos)
      << log();
}

// The build has no code for the second one.
constexpr const char* kOtherNumbers =
    "WEFT_EMULATED_DEVICES=3 WEFT_EMULATED_CAPABILITIES=9.0,7.5,8.6";
INSTANTIATE_TEST_SUITE_P(OtherNumbers, RanksOnGpus,
                         ::testing::Combine(::testing::Values(kOtherNumbers),
                                            ::testing::Values("nccl", "nccl-ring", "shm")));
INSTANTIATE_TEST_SUITE_P(OtherNumbers, PartsOnGpus, ::testing::Values(kOtherNumbers));

INSTANTIATE_TEST_SUITE_P(EmulatedPrograms, AgainstTheCpu,
                         ::testing::Combine(::testing::ValuesIn(kPrograms),
                                            ::testing::ValuesIn(kNumbers),
                                            ::testing::ValuesIn(kConditions)));
INSTANTIATE_TEST_SUITE_P(EmulatedResNet, AgainstTheCpu,
                         ::testing::Combine(::testing::Values(kResNet),
                                            ::testing::Values(kNumbers[0]),
                                            ::testing::Values(kConditions[0])));

struct CapturedRun {
  const char* program;
  const char* steps;  // options
  std::size_t count;  // number of steps
  int by_default;     // number of launches; 0: the step cannot be captured
  int graphs;         // number with --graph; 0: not run, being slow
  friend std::ostream& operator<<(std::ostream& out, const CapturedRun& r) {
    return out << r.program;
  }
};
class Captured : public EmulatedPrograms,
                 public ::testing::WithParamInterface<std::tuple<CapturedRun, const char*>> {};

TEST_P(Captured, LossesAreThoseOfThePlainLoop) {
  const auto& [run, numbers] = GetParam();
  write_data(run.program);
  // Other tests above look for races.
  const std::string environment =
      "WEFT_EMULATED_ORDER=random WEFT_EMULATED_RACES=0 WEFT_EMULATED_STATS=1";
  const std::string options = std::string("--device cuda ") + run.steps + " " + numbers;
  const auto expect_launches = [&](int count) {
    EXPECT_NE(log().find(detail::concat(" ", count, " graph launches")), std::string::npos)
        << log();
    EXPECT_EQ(metrics()["graph"], count > 0);
  };
  const std::vector<double> plain = losses(environment, run.program, options + " --no-graph");
  expect_launches(0);
  EXPECT_EQ(reasons(), 0) << log();
  EXPECT_EQ(losses(environment, run.program, options), plain);
  expect_launches(run.by_default);
  EXPECT_EQ(reasons(), run.by_default > 0 ? 0 : 1) << log();
  if (run.graphs > 0) {
    EXPECT_EQ(losses(environment, run.program, options + " --graph"), plain);
    expect_launches(run.graphs);
  }
  EXPECT_EQ(plain.size(), run.count);
}

// With --graph the first of two epochs' steps runs uncaptured, and so do the third and the last,
// which have one image. By default two more do first; then the third is the first of its size, and
// so is the fourth.
constexpr CapturedRun kRuns[] = {
    {kPrograms[0], "--epochs 2", 6, 1, 0}, {kPrograms[1], "--epochs 2", 6, 1, 3},
    {kPrograms[2], "--epochs 2", 6, 1, 3}, {kPrograms[3], "--epochs 2", 6, 1, 3},
    {kGanStyle, "--epochs 2", 6, 1, 3},    {kTransformer, "--epochs 2 --batch-size 8", 6, 1, 3},
};
// Steps on both GPUs, which the second batch finds out; with --graph they would be refused.
constexpr CapturedRun kRunsOnTwoGpus[] = {
    {"mlp_dp", "--epochs 2", 6, 0, 0},
    {"cnn_dp --width-scale 1/64", "--epochs 2", 6, 0, 0},
    {"char_transformer_dp --context 4 --width 8 --heads 2 --layers 1", "--epochs 2 --batch-size 8",
     6, 0, 0},
    {"autoencoder_mp", "--limit-steps 3", 3, 0, 0},
    {"autoencoder_pipe --chunks 2", "--limit-steps 3", 3, 0, 0},
};
// In f32, and with a smaller last batch, it runs in Resumed.
constexpr CapturedRun kResNetRun = {kResNet, "--limit-steps 4 --batch-size 1", 4, 1, 0};
INSTANTIATE_TEST_SUITE_P(EmulatedPrograms, Captured,
                         ::testing::Combine(::testing::ValuesIn(kRuns),
                                            ::testing::Values("", "--amp bf16")));
INSTANTIATE_TEST_SUITE_P(OnTwoGpus, Captured,
                         ::testing::Combine(::testing::ValuesIn(kRunsOnTwoGpus),
                                            ::testing::Values("")));
INSTANTIATE_TEST_SUITE_P(EmulatedResNet, Captured,
                         ::testing::Combine(::testing::Values(kResNetRun),
                                            ::testing::Values("--amp bf16")));

struct ResumedRun {
  const char* program;
  const char* environment;
  int images;
  const char* graph;  // an option
  friend std::ostream& operator<<(std::ostream& out, const ResumedRun& r) {
    return out << r.program;
  }
};
class Resumed : public EmulatedPrograms, public ::testing::WithParamInterface<ResumedRun> {};

// An epoch ends with a batch that is smaller: of one image, or one piece of text.
TEST_P(Resumed, ACapturedRunGoesOnAsThePlainOne) {
  const auto& [program, environment, images, graph] = GetParam();
  write_data(program, images);
  const std::string options = "--device cuda --epochs ", captured = std::string(" ") + graph;
  const std::vector<double> plain = losses(environment, program, options + "2 --no-graph");
  EXPECT_FALSE(metrics()["graph"]);
  losses(environment, program, options + "1" + captured);
  EXPECT_TRUE(metrics()["graph"]);
  EXPECT_EQ(losses(environment, program, options + "2 --resume latest" + captured), plain);
  EXPECT_TRUE(metrics()["graph"]);
  EXPECT_GE(plain.size(), static_cast<std::size_t>(images + 1));
}

// Slow programs have three steps an epoch. By default a step is launched from the fourth one on,
// and with --graph from the second.
constexpr const char* kWithoutRaces = "WEFT_EMULATED_RACES=0";
constexpr ResumedRun kResumedRuns[] = {
    {kPrograms[0], kWithoutRaces, 5, "--graph"},
    {kPrograms[1], "", 15, ""},
    {kPrograms[2], "", 15, ""},
    {kPrograms[3], "", 15, ""},
    {kPrograms[4], "", 15, ""},
    {kResNet, kWithoutRaces, 5, "--graph"},
    {kGanStyle, "", 15, ""},
    {kTransformer, "", 15, ""},
};
INSTANTIATE_TEST_SUITE_P(EmulatedPrograms, Resumed, ::testing::ValuesIn(kResumedRuns));

class MemoryOfACapturedStep : public EmulatedPrograms,
                              public ::testing::WithParamInterface<const char*> {
 protected:
  /// The most bytes in use at one time in the driver. Nothing is computed.
  double most_bytes(const std::string& options) const {
    losses("WEFT_EMULATED_COUNT=1 WEFT_EMULATED_MEMORY=100000 WEFT_EMULATED_STATS=1", GetParam(),
           "--device cuda --epochs 2 --batch-size 80 " + options);
    const std::string text = log();
    const std::size_t end = text.find(" bytes of a device's memory at a time");
    return end == std::string::npos ? NAN : std::stod(text.substr(text.rfind(' ', end - 1)));
  }
};

// Two epochs, each with a last batch of 5/8 and a test after it.
TEST_P(MemoryOfACapturedStep, IsThatOfThePlainStep) {
  const std::string program = GetParam();
  if (program.starts_with("cnn")) {
    testing::write_cifar10(folder.path("data"), (2 * 80 + 50) / 5, 160);
  } else {
    write_pictures(folder.path("data"), 2 * 80 + 50, 160);
  }
  const double plain = most_bytes("--no-graph"), captured = most_bytes("--graph");
  std::printf("%s: plain %.0f MB, captured %.0f MB, %.3f times as much\n", GetParam(), plain / 1e6,
              captured / 1e6, captured / plain);
  // The step's pool and the memory outside it cannot use each other's gaps.
  EXPECT_LT(captured, 1.15 * plain);
}

// Mostly activations; mostly parameters and gradients.
INSTANTIATE_TEST_SUITE_P(EmulatedPrograms, MemoryOfACapturedStep,
                         ::testing::Values("resnet", "cnn --width-scale 1/4"));

}  // namespace
}  // namespace weft
