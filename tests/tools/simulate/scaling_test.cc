// The model of larger machines: exact figures, limits, and values that may only grow.
#include "weft/tools/simulate/scaling.h"

#include <gtest/gtest.h>

#include <string>

#include "weft/tests/core/expect_error.h"

namespace weft::simulator {
namespace {

// Seconds per byte: 0.1 within a node, 0.5 / 4 ports = 0.125 between nodes.
Cluster round_cluster() {
  return {.name = "round",
          .what = "round numbers",
          .flops = 1e12,
          .bytes_per_second = 1e9,
          .launch = 0,
          .per_node = 8,
          .inside = {1, 10},
          .between = {5, 2},
          .ports = 4,
          .base = 0.5};
}

void expect_link(const Link& link, double latency, double seconds_per_byte) {
  EXPECT_NEAR(link.latency, latency, 1e-12);
  EXPECT_NEAR(link.seconds(1000) - link.latency, 1000 * seconds_per_byte, 1e-9);
}

TEST(AllReduce, OfOneDeviceIsNothing) {
  for (const AllReduce algorithm : kAllReduces) {
    EXPECT_EQ(all_reduce_link(algorithm, 1, round_cluster()).seconds(1e9), 0);
  }
  EXPECT_WEFT_ERROR(all_reduce_link(AllReduce::ring, 0, round_cluster()), InvalidArgument,
                    "devices: got 0");
}

// 2 (n - 1) / n of the bytes go over each link.
TEST(AllReduce, RingSendsTwiceNMinusOneOverN) {
  for (const int n : {2, 3, 4, 8}) {
    expect_link(all_reduce_link(AllReduce::ring, n, round_cluster()), 0.5 + 2.0 * (n - 1),
                0.1 * 2 * (n - 1) / n);
  }
  // Two of the 30 steps wait for the network, and its ports are the bottleneck.
  expect_link(all_reduce_link(AllReduce::ring, 16, round_cluster()), 0.5 + 28 + 2 * 5,
              0.125 * 30 / 16);
}

TEST(AllReduce, TreeHasLogarithmicLatency) {
  expect_link(all_reduce_link(AllReduce::tree, 2, round_cluster()), 0.5 + 2, 0.2);
  expect_link(all_reduce_link(AllReduce::tree, 5, round_cluster()), 0.5 + 2 * 3, 0.2);
  expect_link(all_reduce_link(AllReduce::tree, 16, round_cluster()), 0.5 + 2 * 3 + 2 * 5, 0.25);
  expect_link(all_reduce_link(AllReduce::tree, 4096, round_cluster()), 0.5 + 2 * 3 + 2 * 9 * 5,
              0.25);
}

TEST(AllReduce, HierarchicalIsBothRingsAndBetweenTheNodesTheirPart) {
  expect_link(all_reduce_link(AllReduce::hierarchical, 8, round_cluster()), 0.5 + 14, 0.175);
  expect_link(all_reduce_link(AllReduce::hierarchical, 16, round_cluster()), 0.5 + 14 + 2 * 5,
              0.175 + 0.125);
  expect_link(all_reduce_link(AllReduce::hierarchical, 32, round_cluster()), 0.5 + 14 + 2 * 2 * 5,
              0.175 + 2 * 0.125);
}

TEST(AllReduce, TakesLongerOnMoreDevices) {
  for (const Cluster& cluster : presets()) {
    for (const AllReduce algorithm : kAllReduces) {
      double before = 0;
      for (int n = 1; n <= cluster.most_devices; n *= 2) {
        const double seconds = all_reduce_link(algorithm, n, cluster).seconds(1e8);
        EXPECT_GE(seconds, before) << cluster.name << ' ' << to_string(algorithm) << ' ' << n;
        before = seconds;
      }
    }
  }
}

// One layer whose arithmetic takes 2 x 10 x 1e9 / 1e12 = 0.02 s, and one limited by memory: (10 x
// 2e6 + 4e6) bytes / 1e9 = 0.024 s.
Work round_work() {
  return {.program = "round",
          .layers = {{.macs = 1e9},
                     {.macs = 1, .input_bytes = 1e6, .output_bytes = 1e6, .parameter_bytes = 4e6}},
          .optimizer_passes = 3};
}

TEST(Scaling, AStepIsTheRoofline) {
  const ModelledStep one = model_step(round_work(), 10, 1, AllReduce::ring, round_cluster());
  EXPECT_NEAR(one.compute, 3 * (0.02 + 0.024), 1e-12);
  EXPECT_NEAR(one.optimizer, 3 * 4e6 / 1e9, 1e-12);
  EXPECT_EQ(one.exposed, 0);
  EXPECT_EQ(one.all_reduce, 0);
  // The gradients are ready after 0.048 of the 0.088 s of backward.
  const ModelledStep two = model_step(round_work(), 10, 2, AllReduce::ring, round_cluster());
  EXPECT_NEAR(two.all_reduce, 2.5 + 0.1 * 4e6, 1e-6);
  EXPECT_NEAR(two.exposed, two.all_reduce - 0.04, 1e-6);
  Cluster slow = round_cluster();
  slow.launch = 1;
  EXPECT_NEAR(model_step(round_work(), 10, 1, AllReduce::ring, slow).compute, 6, 1e-12);
  EXPECT_WEFT_ERROR(model_step(round_work(), 0, 1, AllReduce::ring, round_cluster()),
                    InvalidArgument, "rows: got 0");
}

TEST(Scaling, BeginsAtOneAndDoesNotGetBetter) {
  for (const bool weak : {true, false}) {
    const Scaling scaling = scale(round_work(), find_preset("h100"), weak, 4096, 4096);
    ASSERT_EQ(scaling.points.size(), 3U * 13);
    EXPECT_EQ(scaling.points.back().step.devices, 4096);
    EXPECT_EQ(scaling.points.back().step.rows, weak ? 4096 : 1);
    for (std::size_t i = 0; i < scaling.points.size(); ++i) {
      const Scaling::Point& point = scaling.points[i];
      if (point.step.devices == 1) {
        EXPECT_DOUBLE_EQ(point.efficiency, 1);
      }
      EXPECT_LE(point.efficiency, 1 + 1e-12);
      if (i >= 3 && weak) {
        EXPECT_LE(point.efficiency, scaling.points[i - 3].efficiency + 1e-12);
      }
    }
  }
}

TEST(Scaling, EfficiencyIsBesideOneDevice) {
  const Scaling weak = scale(round_work(), round_cluster(), true, 10, 2);
  const ModelledStep one = weak.points[0].step, two = weak.points[3].step;
  EXPECT_EQ(two.devices, 2);
  EXPECT_DOUBLE_EQ(weak.points[3].efficiency, one.seconds() / two.seconds());
  EXPECT_DOUBLE_EQ(weak.points[3].images_per_second, 20 / two.seconds());
  const Scaling strong = scale(round_work(), round_cluster(), false, 10, 2);
  EXPECT_EQ(strong.points[3].step.rows, 5);
  EXPECT_DOUBLE_EQ(strong.points[3].images_per_second, 10 / strong.points[3].step.seconds());
}

TEST(Scaling, EndsWhereThereIsNoRowOrNoDevice) {
  EXPECT_EQ(scale(round_work(), round_cluster(), false, 5, 4096).points.back().step.devices, 4);
  EXPECT_EQ(scale(round_work(), round_cluster(), true, 5, 6).points.back().step.devices, 4);
  EXPECT_EQ(scale(round_work(), find_preset("h100-node"), true, 5, 4096).points.back().step.devices,
            8);
  EXPECT_WEFT_ERROR(scale(round_work(), round_cluster(), true, 0, 8), InvalidArgument,
                    "expected 1 or more");
  EXPECT_WEFT_ERROR(find_preset("a-million-gpus"), InvalidArgument, "no preset");
}

TEST(Scaling, EveryLineSaysThatItIsAModel) {
  const Scaling weak = scale(round_work(), find_preset("h100"), true, 64, 64);
  const std::string text = to_text(weak);
  EXPECT_EQ(text.find("MODEL, nothing measured: round on h100, weak scaling"), 0U) << text;
  std::size_t lines = 0;
  for (std::size_t at = text.find('\n'); at + 1 < text.size(); at = text.find('\n', at + 1)) {
    const std::string line = text.substr(at + 1, 6);
    EXPECT_TRUE(line == "      " || line == "model ") << line;
    ++lines;
  }
  EXPECT_EQ(lines, 1U + 1 + 3 * 6);
  for (const auto& row : to_json(weak)) EXPECT_EQ(row["kind"], "model");
  const std::string svg = picture(weak, scale(round_work(), find_preset("h100"), false, 64, 64));
  for (const char* text : {"weak scaling", "strong scaling", ">ideal<", ">ring<", ">tree<",
                           ">hierarchical<", "devices (h100), 64 rows in all", ">64<"}) {
    EXPECT_HAS(svg, text);
  }
}

TEST(Presets, SayWhereTheirFiguresAreFrom) {
  for (const Cluster& cluster : presets()) {
    EXPECT_FALSE(cluster.sources.empty());
    EXPECT_GT(cluster.flops, 0);
    EXPECT_GT(cluster.bytes_per_second, 0);
    EXPECT_GT(cluster.inside.bytes_per_second, cluster.between.bytes_per_second);
  }
}

}  // namespace
}  // namespace weft::simulator
