// What is measured, and how it is used. No test depends on times.
#include "weft/tools/simulate/measure.h"
#include "weft/core/runtime/allocator.h"

#include <gtest/gtest.h>

#include "weft/tests/core/expect_error.h"
#include "weft/tools/simulate/layer_times.h"

namespace weft::simulator {
namespace {

TEST(Median, IsTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({5, 1, 4, 2, 3}), 3);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({2, 1}), 1.5);
  EXPECT_WEFT_ERROR(median({}), InvalidArgument, "nothing was timed");
}

TEST(Programs, WorkIsThatOfTheLayers) {
  const Work work = work_of(make_program("mlp"));
  // Flatten returns a view of its input, and ReLU works in place.
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
  EXPECT_GT(costs.further_forward.within(2), 0);
  EXPECT_GT(costs.further_backward.within(2), 0);
  EXPECT_WEFT_ERROR(measure(program, {.devices = 0}), InvalidArgument, "devices: got 0");
}

TEST(Measure, RanksOfTensorParallelismShareTheLayers) {
  const int before = device_count(DeviceType::cpu);
  set_host_devices(2);
  Program program = make_program("char_transformer");
  program.sizes = {1, 3};
  const Costs costs = measure(program, {.devices = 2, .seconds = 0});
  for (const Curve* curve : {&costs.cut_forward, &costs.cut_backward}) {
    ASSERT_EQ(curve->points.size(), 2U);
    EXPECT_GT(curve->at(3), 0);
  }
  EXPECT_GT(costs.sum.latency, 0);
  EXPECT_GT(costs.broadcast.latency, 0);
  // For each of 64 characters: the largest logit; then the sum of exponentials, and the target's
  // logit.
  EXPECT_EQ(costs.loss_sums, (std::vector<double>{64 * 4, 2 * 64 * 4}));
  EXPECT_TRUE(cuts_layers(costs));
  set_host_devices(3);
  EXPECT_FALSE(cuts_layers(measure(program, {.devices = 3, .seconds = 0}))) << "4 heads";
  set_host_devices(before);
}

TEST(Measure, APartOfTheLayersIsAStepToo) {
  const Program program = make_program("mlp");
  for (const auto& [begin, end] : {std::pair(0, 2), {2, 4}, {2, 3}}) {
    SCOPED_TRACE(::testing::PrintToString(std::pair(begin, end)));
    StepOf part(program, Device(DeviceType::cpu, 0), static_cast<std::size_t>(begin),
                static_cast<std::size_t>(end));
    StepTimes times;
    part.run(part.batch(3), times, 4);
    EXPECT_EQ(times.forward.size(), 1U);
    EXPECT_EQ(times.further_forward.size(), 3U);
    EXPECT_EQ(times.further_backward.size(), 3U);
    EXPECT_EQ(times.optimizer.size(), 1U);
  }
}

TEST(Measure, DevicesTakeAPartEachWhereThereAreLayersForAll) {
  const int before = device_count(DeviceType::cpu);
  for (const int devices : {2, 5}) {
    SCOPED_TRACE(devices);
    set_host_devices(devices);
    Program program = make_program("mlp");
    program.sizes = {2};
    const Costs costs = measure(program, {.devices = devices, .seconds = 0});
    EXPECT_EQ(costs.further_forward.points.empty(), devices == 5) << "of 4 layers";
    EXPECT_FALSE(ranking(costs, 10, {2}).empty());
  }
  set_host_devices(before);
}

}  // namespace
}  // namespace weft::simulator
