// The arithmetic of the model on lists that are made up.
#include "weft/benchmarks/gpu_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/tests/core/expect_error.h"

namespace weft::bench {
namespace {

const GpuFigures& gpu(std::string_view name) {
  for (const GpuFigures& figures : model_gpus()) {
    if (figures.name == name) return figures;
  }
  throw std::runtime_error("no such GPU");
}

// Bytes for a floor of `us` on an H100: 0.9 * 3.0 TB/s are 2.7e6 bytes a microsecond.
std::int64_t bytes_for(double us) { return static_cast<std::int64_t>(us * 2.7e6); }

TEST(GpuModel, ALaunchTakesAtLeastItsTime) {
  const NodeFloor in_graph = floor_of(gpu("h100"), {.name = "small", .read = 100});
  EXPECT_EQ(in_graph.us, 1.3);
  EXPECT_EQ(in_graph.bound, Bound::launch);
  const NodeFloor alone =
      floor_of(gpu("h100"), {.name = "small", .read = bytes_for(2), .in_graph = false});
  EXPECT_EQ(alone.us, 2.1);
  EXPECT_EQ(alone.bound, Bound::launch);
}

TEST(GpuModel, ReadsAndWritesShareTheBandwidth) {
  const StepNode node{.name = "copy", .read = bytes_for(6), .written = bytes_for(4)};
  EXPECT_DOUBLE_EQ(floor_of(gpu("h100"), node).us, 10);
  EXPECT_EQ(floor_of(gpu("h100"), node).bound, Bound::memory);
  EXPECT_DOUBLE_EQ(floor_of(gpu("h200"), node).us, 10 * 3.0 / 4.3);
}

TEST(GpuModel, EachTypeHasItsPeak) {
  const auto us = [](const char* on, const char* type) {
    const StepNode node{
        .name = "product", .read = 1000, .operations = 65'000'000'000, .type = type};
    EXPECT_EQ(floor_of(gpu(on), node).bound, Bound::arithmetic);
    return floor_of(gpu(on), node).us;
  };
  // 65e9 / 0.65 are 1e11 operations at the peak.
  EXPECT_DOUBLE_EQ(us("h100", "bf16"), 1e11 / 800e6);
  EXPECT_DOUBLE_EQ(us("h200", "bf16"), 1e11 / 790e6);
  EXPECT_DOUBLE_EQ(us("h100", "tf32"), 1e11 / 400e6);
  EXPECT_DOUBLE_EQ(us("h100", "f32"), 1e11 / 55e6);
  EXPECT_WEFT_ERROR(us("h100", "f64"), Unsupported, "no peak of h100 for f64");
}

TEST(GpuModel, SumsByName) {
  const std::vector<StepNode> nodes = {
      {.name = "add", .read = bytes_for(1), .written = bytes_for(1)},  // 2 us
      {.name = "small", .read = 8},
      {.name = "product", .read = 16, .operations = 52'000'000'000, .type = "tf32"},  // 200 us
      {.name = "add", .read = bytes_for(0.5)},                                        // 1.3 us
      {.name = "product", .read = 16, .operations = 52'000'000'000, .type = "bf16"},  // 100 us
  };
  const StepFloor floor = floor_of(gpu("h100"), nodes);
  EXPECT_EQ(floor.nodes, 5);
  EXPECT_EQ(floor.launch_bound, 2);
  EXPECT_DOUBLE_EQ(floor.launch_bound_us, 2.6);
  EXPECT_DOUBLE_EQ(floor.us, 200 + 100 + 2 + 2.6);
  ASSERT_EQ(floor.groups.size(), 4u);
  EXPECT_EQ(floor.groups[0].name, "product");
  EXPECT_EQ(floor.groups[0].type, "tf32");
  EXPECT_EQ(floor.groups[1].type, "bf16");
  const NodeGroup& add = floor.groups[2];
  EXPECT_EQ(add.name, "add");
  EXPECT_EQ(add.count, 2);
  EXPECT_EQ(add.launch_bound, 1);
  EXPECT_EQ(add.read, bytes_for(1) + bytes_for(0.5));
  EXPECT_EQ(add.written, bytes_for(1));
  EXPECT_DOUBLE_EQ(add.us, 3.3);
}

TEST(GpuModel, TheHeaviestGroupsMissTheTarget) {
  const StepFloor floor = floor_of(gpu("h100"), {{.name = "a", .read = bytes_for(50)},
                                                 {.name = "b", .read = bytes_for(30)},
                                                 {.name = "c", .read = bytes_for(20)}});
  EXPECT_EQ(groups_over(floor, 101), 0u);
  EXPECT_EQ(groups_over(floor, 51), 1u);
  EXPECT_EQ(groups_over(floor, 49), 2u);
  EXPECT_EQ(groups_over(floor, -1), 3u) << "not to be reached";
}

TEST(GpuModel, Targets) {
  EXPECT_EQ(target_us("h100", "resnet50-b256", "bf16"), 45000);
  EXPECT_EQ(target_us("h100", "resnet50-b256", "f32"), std::nullopt);
  EXPECT_EQ(target_us("h100", "mlp", "f32"), 25);
  EXPECT_EQ(target_us("h100", "autoencoder", "tf32"), 100);
  EXPECT_EQ(target_us("h200", "mlp", "f32"), std::nullopt);
}

}  // namespace
}  // namespace weft::bench
