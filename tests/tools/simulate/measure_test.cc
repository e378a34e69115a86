// What is timed, and what of it counts. No time is tested.
#include "weft/tools/simulate/measure.h"

#include <gtest/gtest.h>

#include "weft/tests/core/expect_error.h"
#include "weft/tools/simulate/layer_times.h"

namespace weft::simulator {
namespace {

TEST(LowQuartile, AQuarterLiesBelow) {
  EXPECT_EQ(median({5, 1, 4, 2, 3}), 3);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({2, 1}), 1);
  EXPECT_WEFT_ERROR(median({}), InvalidArgument, "nothing was timed");
}

TEST(Programs, WorkIsThatOfTheLayers) {
  const Work work = work_of(make_program("mlp"));
  // Flatten only looks at its input, and ReLU works in it.
  ASSERT_EQ(work.layers.size(), 2U);
  EXPECT_EQ(work.layers[0].macs, 784 * 128);
  EXPECT_EQ(work.layers[0].input_bytes, 784 * 4);
  EXPECT_EQ(work.layers[0].output_bytes, 128 * 4);
  EXPECT_EQ(work.layers[0].parameter_bytes, (784 * 128 + 128) * 4);
  EXPECT_EQ(work.layers[1].macs, 128 * 10);
  EXPECT_WEFT_ERROR(make_program("perceptron"), InvalidArgument, "there is no program perceptron");
}

TEST(Measure, EveryCostIsThere) {
  Program program = make_program("mlp");
  program.sizes = {1, 2};
  const Costs costs = measure(program, {.devices = 1, .seconds = 0});
  ASSERT_EQ(costs.layers.size(), 4U);
  EXPECT_EQ(costs.layers[1].name, "Linear");
  EXPECT_EQ(costs.layers[1].output_bytes, 128 * 4);
  EXPECT_EQ(costs.parameter_bytes(), (784 * 128 + 128 + 128 * 10 + 10) * 4.0);
  EXPECT_EQ(costs.input_bytes, 784 * 4);
  EXPECT_EQ(costs.target_bytes, 8);
  for (const LayerCost& layer : costs.layers) EXPECT_EQ(layer.forward.points.size(), 2U);
  EXPECT_GT(costs.layers[1].forward.at(2), 0);
  EXPECT_GT(costs.optimizer.within(2), 0);
  EXPECT_GE(costs.slowdown.within(2), 1);
  EXPECT_TRUE(costs.undivided.points.empty()) << "one device has all there is";
  EXPECT_WEFT_ERROR(measure(program, {.devices = 0}), InvalidArgument, "devices: got 0");
}

}  // namespace
}  // namespace weft::simulator
