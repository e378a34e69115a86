// `./weft bench --emulated` of a small program.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

using nlohmann::json;

class BenchEmulated : public ::testing::Test {
 protected:
  json rows(const std::string& arguments) {
    const std::string command =
        "WEFT_EMULATED_COUNT=1 WEFT_EMULATED_TRAFFIC=1 benchmarks/bench --emulated --out " +
        folder_.path("result.json") + " " + arguments + " >" + folder_.path("log") + " 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << log();
    return json::parse(testing::read_file(folder_.path("result.json")))["rows"];
  }
  std::string log() { return testing::read_file(folder_.path("log")); }

  /// What the products of the step multiply, and their operations.
  static std::pair<std::string, double> products(const json& row) {
    std::string types;
    double operations = 0;
    for (const json& group : row["groups"]) {
      const std::string type = group["type"];
      if (!type.empty() && types.find(type) == std::string::npos) types += type;
      operations += group["operations"].get<double>();
    }
    return {types, operations};
  }

  testing::TempFolder folder_;
};

// 11 convolutions and 6 products; the autoencoder's source differs from its PyTorch twin by no more
// than then_relu.
TEST_F(BenchEmulated, TheAutoencodersStepHas34Nodes) {
  const json all = rows("--work autoencoder --precision f32");
  ASSERT_EQ(all.size(), 2u) << log();
  EXPECT_EQ(all[1]["captured"], true);
  EXPECT_EQ(all[1]["replayed"], 34) << all[1]["groups"];
}

TEST_F(BenchEmulated, MlpInEachPrecision) {
  const json all = rows("--work mlp --precision f32 --precision tf32 --precision bf16");
  ASSERT_EQ(all.size(), 6u) << log();
  const char* const precisions[] = {"f32", "tf32", "bf16"};
  // 784-128-10 with 64 images: forward and gradients of weights, and that of the 128 units.
  const double operations = 2.0 * 64 * (2 * (784 * 128 + 128 * 10) + 128 * 10);
  for (std::size_t i = 0; i < 6; ++i) {
    const json& row = all[i];
    EXPECT_EQ(row["precision"], precisions[i / 2]);
    EXPECT_EQ(row["captured"], i % 2 == 1);
    const json& h100 = row["floor"]["h100"];
    // Each node is smaller than a launch.
    EXPECT_EQ(h100["launch_bound"], h100["nodes"]);
    if (i % 2 == 0) {
      EXPECT_EQ(row["host_calls"], h100["nodes"]);
      EXPECT_NEAR(h100["us"].get<double>(), 2.1 * h100["nodes"].get<double>(), 1e-9);
      EXPECT_FALSE(h100.contains("target_us"));
      continue;
    }
    EXPECT_EQ(products(row), std::pair(std::string(precisions[i / 2]), operations));
    // Two layers, their gradients but for the images', the loss, and SGD.
    EXPECT_EQ(row["replayed"], i < 4 ? 8 : 16);  // autocast's conversions, one for all weights
    const double in_graph = row["replayed"], before = h100["nodes"].get<double>() - in_graph;
    EXPECT_NEAR(h100["us"].get<double>(), 1.3 * in_graph + 2.1 * before, 1e-9);
    EXPECT_EQ(h100["target_us"], 25);
    double sum = 0;
    for (const json& group : row["groups"]) sum += group["h100_us"].get<double>();
    EXPECT_NEAR(sum, h100["us"].get<double>(), 1e-9);
  }
  // Its autocast converts weights and batches.
  EXPECT_GT(all[5]["kernels"]["calls"], all[1]["kernels"]["calls"]);
  EXPECT_HAS(log(), "mlp, tf32, batch 64, captured");
}

}  // namespace
}  // namespace weft::bench
