// The arithmetic of the predictions, compared with calculations by hand.
#include "weft/tools/simulate/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/tools/simulate/costs.h"
#include "weft/tools/simulate/memory_model.h"

namespace weft::simulator {
namespace {

using parallel::Recompute;

/// The seconds of the terms, by name.
std::map<std::string, double> terms(const Prediction& prediction) {
  std::map<std::string, double> all;
  for (const Term& term : prediction.terms) all[term.name] = term.seconds;
  return all;
}

void expect_terms(const Prediction& prediction, const std::map<std::string, double>& expected) {
  const auto got = terms(prediction);
  double sum = 0;
  for (const auto& [name, seconds] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_NEAR(got.at(name), seconds, 1e-9) << name;
    sum += seconds;
  }
  EXPECT_EQ(got.size(), expected.size());
  EXPECT_NEAR(prediction.seconds(), sum, 1e-9);
}

TEST(Curve, IsAffineBetweenNeighbours) {
  const Curve two = Curve::affine(3, 0.5);
  EXPECT_DOUBLE_EQ(two.at(0), 3);
  EXPECT_DOUBLE_EQ(two.at(10), 8);
  const Curve three{{{2, 10}, {4, 14}, {8, 30}}};
  EXPECT_DOUBLE_EQ(three.at(1), 8);
  EXPECT_DOUBLE_EQ(three.at(3), 12);
  EXPECT_DOUBLE_EQ(three.at(4), 14);
  EXPECT_DOUBLE_EQ(three.at(6), 22);
  EXPECT_DOUBLE_EQ(three.at(16), 62);
  EXPECT_DOUBLE_EQ(three.within(1), 10);
  EXPECT_DOUBLE_EQ(three.within(6), 22);
  EXPECT_DOUBLE_EQ(three.within(16), 30);
  const Curve steep{{{2, 1}, {4, 5}}};
  EXPECT_DOUBLE_EQ(steep.at(1), 0) << "no time is below 0";
  EXPECT_DOUBLE_EQ((Curve{{{2, 7}}}.at(100)), 7);
}

TEST(Curve, RefusesNothingAndDisorder) {
  EXPECT_WEFT_ERROR(Curve().at(1), InvalidArgument, "ascending");
  EXPECT_WEFT_ERROR(Curve().within(1), InvalidArgument, "ascending");
  const Curve twice{{{2, 1}, {2, 1}}};
  EXPECT_WEFT_ERROR(twice.at(1), InvalidArgument, "ascending");
}

TEST(CostModel, OneDevice) {
  expect_terms(one_device(round_costs(), 8),
               {{"forward", 9}, {"loss", 1}, {"backward", 12}, {"optimiser", 3}});
}

TEST(CostModel, OneDeviceWithAllCoresIsAsMeasured) {
  expect_terms(undivided(round_costs(), 8), {{"step", 13}});
  Costs without = round_costs();
  without.undivided = {};
  EXPECT_WEFT_ERROR(undivided(without, 8), InvalidArgument, "a curve needs points");
  EXPECT_EQ(ranking(without, 8, {}).size() + 1, ranking(round_costs(), 8, {}).size());
}

TEST(CostModel, DataParallel) {
  expect_terms(data_parallel(round_costs(), 8), {{"scatter", 0.1 + 16 / 100.0},
                                                 {"replicate", 0.25 + 0.1 + 24 / 100.0},
                                                 {"parallel_apply", 0.25 + 1.5 * 6},
                                                 {"gather", 0.1 + 16 / 100.0},
                                                 {"loss", 1},
                                                 {"scatter gradients", 0.1 + 16 / 100.0},
                                                 {"backward", 0.25 + 1.5 * 7},
                                                 {"reduce", 0.1 + 24 / 100.0 + 24 * 0.01},
                                                 {"optimiser", 3}});
}

// For one row the module itself is called.
TEST(CostModel, DataParallelOfOneRowIsOneDevice) {
  EXPECT_DOUBLE_EQ(data_parallel(round_costs(), 1).seconds(),
                   one_device(round_costs(), 1).seconds());
}

TEST(CostModel, DistributedDataParallel) {
  expect_terms(distributed_data_parallel(round_costs(), 8),
               {{"forward", 1.5 * 6},
                {"loss", 1.5 * 0.5},
                {"backward", 1.5 * 7},
                {"into buckets", 1.5 * 24 * (0.01 + 0.005)},
                {"all-reduce", 0.5 + 24 / 10.0},
                {"optimiser", 1.25 * 3}});
  EXPECT_WEFT_ERROR(distributed_data_parallel(round_costs(), 1), InvalidArgument,
                    "a batch of 1 for 2 ranks");
}

TEST(CostModel, ModelParallel) {
  expect_terms(model_parallel(round_costs(), 8), {{"forward", 9},
                                                  {"loss", 1},
                                                  {"backward", 12},
                                                  {"moves", 2 * (0.1 + 0.32) + 0.1 + 0.16},
                                                  {"optimiser", 1.25 * 3 * 16 / 24}});
}

// Uses the program's cut if it has one and there are two parts; otherwise parts that take the same
// time.
TEST(CostModel, ModelParallelIsCutAsTheProgramCutsIt) {
  Costs costs = round_costs();
  costs.layers.push_back(costs.layers[0]);  // the program's cut: A | B A, balanced: A B | A
  costs.layers[2].parameter_bytes = {24};
  costs.layers[2].forward = Curve::affine(10, 0.5);
  const auto optimiser = [&] { return terms(model_parallel(costs, 8))["optimiser"]; };
  EXPECT_NEAR(optimiser(), 1.25 * 3 * 40 / 48, 1e-9);
  costs.first_part = 0;
  EXPECT_NEAR(optimiser(), 1.25 * 3 * 24 / 48, 1e-9);
  costs.devices = 3;
  costs.first_part = 1;
  EXPECT_NEAR(optimiser(), 1.25 * 3 * 24 / 48, 1e-9);
}

// Micro-batches of 4 rows, slowed down by (1.5 + 1) / 2 forward and (1.5 + 2) / 2 backward;
// stage 0: F 3.95, B 5.25; stage 1: F 4.1625, I 5.9675, W 1.75.
//   0  F0 0-3.95  F1 -7.9                                    B1 20.1925-25.4425  B0 27.91-33.16
//   1             F0 4.05-8.2125  F1 -12.375  B1 -20.0925  B0 -27.81
TEST(CostModel, Pipeline) {
  const Prediction gpipe = pipeline(round_costs(), 8, "gpipe", Recompute::never, 2);
  expect_terms(gpipe, {{"schedule", 33.16}, {"optimiser", 2.5}});
  EXPECT_EQ(gpipe.way, (Way{"pipeline", 8, 2, "gpipe", "never", 2}));
  // R of micro-batch 0 in both stages. In stage 1 it causes a wait of 4.1625 before B0, and B0 of
  // stage 0 comes after R0 and that.
  const Prediction again = pipeline(round_costs(), 8, "gpipe", Recompute::except_last, 2);
  EXPECT_NEAR(terms(again)["schedule"], 33.16 + 4.1625, 1e-9);
}

// Four layers, each a stage: 1 s for F, I and W of a micro-batch, of 512 bytes of parameters, and
// of 1024 bytes that it keeps.
Costs even_costs() {
  Costs costs = round_costs();
  const Curve second = Curve::affine(1, 0);
  costs.layers.assign(4, {.forward = second,
                          .backward_input = second,
                          .backward_weight = second,
                          .output_bytes = 16,
                          .parameter_bytes = {512},
                          .kept = Curve::affine(0, 512)});
  costs.slowdown = costs.further_forward = costs.further_backward = costs.optimizer_slowdown =
      second;
  costs.loss = Curve::affine(0, 0);
  costs.copy = {};
  costs.state_copies = 2;
  costs.step_bytes = costs.further_bytes = Curve::affine(0, 4 * 512);
  return costs;
}

// A V has two stages on each device. ZB-V: device 0 works from the first F on without a wait,
// 4 x 2 x 3 s, and device 1 the same, 1 s later; the others wait for 1F1B's first F and last B, and
// for ZB-H1's.
TEST(CostModel, TheStagesOfAV) {
  const auto seconds = [](const Costs& costs, const std::string& schedule) {
    return terms(pipeline(costs, 8, schedule, Recompute::never, 4))["schedule"];
  };
  EXPECT_NEAR(seconds(even_costs(), "zb-v"), 4 * 6 + 1, 1e-9);
  EXPECT_NEAR(seconds(even_costs(), "1f1b"), 5 * 6, 1e-9);
  EXPECT_NEAR(seconds(even_costs(), "zb-h1"), 4 * 6 + 2, 1e-9);
  // 2 rows of 16 bytes take 2 s from one device to the other: between stages 0 and 1, and 2 and 3,
  // not at the point of the V, nor for the targets.
  Costs slow_link = even_costs();
  slow_link.copy = {0, 16};
  EXPECT_HAS(pipeline(slow_link, 8, "zb-v", Recompute::never, 4).terms[0].how,
             "1 | 1 | 1 | 1 layers; forward 3000.000 | 1000.000 | 3000.000 | 1000.000 ms, "
             "backward 2000.000 | 4000.000 | 2000.000 | 4000.000 ms");
  // Half of the parameters: 1024 bytes of 2048.
  EXPECT_NEAR(terms(pipeline(even_costs(), 8, "zb-v", Recompute::never, 4))["optimiser"], 3.0 / 2,
              1e-9);
}

// With stages of 2 rows: ZB-V keeps 2 p = 4 micro-batches of a stage on each device, DualPipeV 5,
// and 1F1B 2 of a stage that is twice as large.
TEST(CostModel, TheMemoryOfAV) {
  const auto activations = [](const std::string& schedule, const char* checkpoint) {
    const MemoryUse use = memory_of(even_costs(), {"pipeline", 8, 2, schedule, checkpoint, 4});
    const std::map<std::string, double> most(use.most.begin(), use.most.end());
    EXPECT_DOUBLE_EQ(most.at("parameters"), 2 * 512);
    EXPECT_DOUBLE_EQ(most.at("optimizer"), 2 * 2 * 512);
    EXPECT_DOUBLE_EQ(use.peak, 4 * 2 * 512 + most.at("activations"));
    return most.at("activations");
  };
  EXPECT_DOUBLE_EQ(activations("zb-v", "never"), 4 * 1024);
  EXPECT_DOUBLE_EQ(activations("dualpipev", "never"), 5 * 1024);
  EXPECT_DOUBLE_EQ(activations("1f1b", "never"), 2 * 2 * 1024);
  EXPECT_DOUBLE_EQ(activations("gpipe", "never"), 4 * 2 * 1024);
  // One micro-batch, and the inputs of all of them: in stage 1 these are 2 rows of 16 bytes.
  EXPECT_DOUBLE_EQ(activations("gpipe", "always"), 2 * 1024 + 4 * 32);
}

// If the last layer keeps four times as much, the second device needs most: 1F1B keeps one
// micro-batch there, and ZB-H1 two, since W comes later than I.
TEST(CostModel, APipelineKeepsActivationsUntilW) {
  Costs costs = even_costs();
  costs.layers[3].kept = Curve::affine(0, 4 * 512);
  costs.further_bytes = Curve::affine(0, (3 + 4) * 512);
  const auto peak = [&](const std::string& schedule) {
    return memory_of(costs, {"pipeline", 8, 2, schedule, "never", 4}).peak;
  };
  EXPECT_DOUBLE_EQ(peak("1f1b"), 4 * 2 * 512 + (1 + 4) * 1024);
  EXPECT_DOUBLE_EQ(peak("zb-h1"), 4 * 2 * 512 + 2 * (1 + 4) * 1024);
}

// The cost of a row rises from 1 s to 2 s between 4 and 8 rows, as if the caches overflow. GPipe
// keeps all four micro-batches of 4 rows in each of two stages, as much memory as 8 rows in one
// device need: so its actions take twice as long. 1F1B keeps two and one.
TEST(CostModel, WhatAPipelineKeepsIsLessInTheCaches) {
  Costs costs = round_costs();
  const Curve rising{{{4, 4}, {8, 16}}};
  for (LayerCost& layer : costs.layers) {
    layer.forward = layer.backward_input = layer.backward_weight = rising;
    layer.parameter_bytes.clear();
  }
  costs.slowdown = costs.further_forward = costs.further_backward = Curve::affine(1, 0);
  costs.loss = costs.optimizer = Curve::affine(0, 0);
  costs.copy = {};
  const auto passes = [&](const std::string& schedule, Recompute checkpoint) {
    return pipeline(costs, 16, schedule, checkpoint, 4).seconds();
  };
  // 5 passes of forward and backward, of 4 and 8 s.
  EXPECT_NEAR(passes("1f1b", Recompute::never), 5 * 12, 1e-9);
  EXPECT_NEAR(passes("gpipe", Recompute::never), 2 * 5 * 12, 1e-9);
  // Only inputs are kept, but also the activations of the forward that runs again.
  EXPECT_LT(passes("gpipe", Recompute::always), 2 * 5 * 12);
}

TEST(CostModel, FewRowsAreFewMicroBatches) {
  const Prediction two = pipeline(round_costs(), 2, "gpipe", Recompute::never, 2),
                   many = pipeline(round_costs(), 2, "gpipe", Recompute::never, 64);
  EXPECT_DOUBLE_EQ(two.seconds(), many.seconds());
  EXPECT_WEFT_ERROR(pipeline(round_costs(), 2, "gpipe", Recompute::never, 0), InvalidArgument,
                    "chunks: got 0");
  EXPECT_WEFT_ERROR(pipeline(round_costs(), 2, "zb-v", Recompute::never, 2), InvalidArgument,
                    "cannot make 4 stages of 2 layers");
  EXPECT_WEFT_ERROR(one_device(round_costs(), 0), InvalidArgument, "batch: got 0");
}

// Two buckets, because the first one closes at 1 MiB: the last layer's gradients are ready at 4 s
// and reduced at 7 s, the first layer's from 7 to 10 s; backward ends at 7 s.
TEST(CostModel, WhatBackwardDoesNotHide) {
  const std::vector<LayerCost> layers = {{.parameter_bytes = {2e6}}, {.parameter_bytes = {2e6}}};
  const Link link{1, 1e6};
  const Exposed hidden = exposed_all_reduce(layers, {3, 4}, link, false);
  EXPECT_DOUBLE_EQ(hidden.seconds, 3);
  EXPECT_EQ(hidden.bucket_bytes, (std::vector<double>{2e6, 2e6}));
  EXPECT_DOUBLE_EQ(exposed_all_reduce(layers, {3, 4}, link, true).seconds, 6);
  // The link is still busy with the first bucket when the second is ready.
  EXPECT_DOUBLE_EQ(exposed_all_reduce(layers, {1, 4}, link, false).seconds, 5);
  EXPECT_DOUBLE_EQ(exposed_all_reduce({{.name = "ReLU"}}, {1}, link, false).seconds, 0);
}

// Each rank updates 12 of the 24 bytes, and sends them to the other in one message.
TEST(CostModel, Zero1) {
  expect_terms(zero1(round_costs(), 8), {{"forward", 9},
                                         {"loss", 0.75},
                                         {"backward", 10.5},
                                         {"into buckets", 1.5 * 0.015 * 24},
                                         {"all-reduce", 0.5 + 2.4},
                                         {"optimiser", 1.25 * 3 / 2},
                                         {"broadcasts", 2 * 0.75 + 24 / 20.0}});
}

// Both layers are units. A gather takes half of an all-reduce's bytes: 0.9 and 1.3 s.
TEST(CostModel, FullyShard) {
  std::map<std::string, double> expected = {{"forward", 9},
                                            {"loss", 0.75},
                                            {"backward", 10.5},
                                            {"copies", 1.5 * (3 * 0.01 + 0.005) * 24},
                                            {"messages", 3 * (0.9 + 1.3)},
                                            {"optimiser", 1.25 * 3 / 2}};
  expect_terms(fully_sharded(round_costs(), 8, true), expected);
  // If computing hides messages, three remain: the first gather, that for the last layer's
  // backward, and the last reduction.
  Costs hidden = round_costs();
  hidden.all_reduce_computes = false;
  expected["messages"] = 0.9 + 1.3 + 0.9;
  expect_terms(fully_sharded(hidden, 8, true), expected);
  expected["messages"] = 0.9 + 0.9;
  expected["copies"] = 1.5 * (2 * 0.01 + 0.005) * 24;
  expect_terms(fully_sharded(hidden, 8, false), expected);
  EXPECT_EQ(fully_sharded(hidden, 8, false).way.engine, "zero2");
  // A layer that is not a unit of its own belongs to the model's unit, which is gathered once.
  Costs root = round_costs();
  root.layers[0].own_unit = false;
  expected["copies"] = 1.5 * ((2 * 8 + 3 * 16) * 0.01 + 24 * 0.005);
  expected["messages"] = 2 * 0.9 + 3 * 1.3;
  expect_terms(fully_sharded(root, 8, true), expected);
  EXPECT_WEFT_ERROR(fully_sharded(root, 1, true), InvalidArgument, "a batch of 1 for 2 ranks");
}

// All ranks have all rows, and computing takes its measured time. Of the layers' three sums one has
// 4 bytes a row and two have 2; those of the loss have 1 and 3. A rank updates its halves of the
// cut parameters.
TEST(CostModel, TensorParallel) {
  Costs costs = round_costs();
  EXPECT_FALSE(cuts_layers(costs));
  costs.layers[0].parameter_is_cut = {true};
  costs.layers[0].sums_forward = 1;
  costs.layers[0].sum_bytes = 4;
  costs.layers[1].parameter_is_cut = {true, false};
  costs.layers[1].sums_forward = costs.layers[1].sums_backward = 1;
  costs.layers[1].sum_bytes = 2;
  costs.cut_forward = Curve::affine(2, 0.5);
  costs.cut_backward = Curve::affine(3, 0.75);
  costs.loss_sums = {1, 3};
  EXPECT_TRUE(cuts_layers(costs));
  expect_terms(tensor_parallel(costs, 8), {{"forward and loss", 2 + 8 * 0.5},
                                           {"backward", 3 + 8 * 0.75},
                                           {"sums", 5 * 0.25 + 8 * (4 + 2 * 2 + 1 + 3) / 5.0},
                                           {"optimiser", 1.25 * 3 * (4 + 6 + 4) / 24}});
}

TEST(CostModel, SaysWhichWaysFitIntoMemory) {
  const auto way = [](const std::string& engine, double mib, int chunks = 0) {
    return Prediction{{engine, 8, 2, engine == "pipeline" ? "1f1b" : "", "always", chunks},
                      {},
                      {mib * (1 << 20), {{"parameters", 1 << 20}, {"activations", 0}}}};
  };
  const std::vector<Prediction> all = {way("ddp", 33),
                                       way("pipeline", 40, 2),
                                       way("fsdp", 32),
                                       way("pipeline", 31, 4),
                                       {{"undivided", 8, 2}, {}, {}}};
  const std::string text = to_text(round_costs(), all, std::int64_t{32} << 20);
  EXPECT_HAS(text,
             "\nfits in 32 MiB: fsdp, pipeline 1f1b always 4 chunks\n"
             "memory not predicted: undivided\n");
  EXPECT_HAS(to_text(round_costs(), {way("pipeline", 31, 4), way("ddp", 33)}, 32 << 20),
             "\nfits in 32 MiB: pipeline 1f1b always\n");
  EXPECT_HAS(text, "memory: 33.00 MiB at once; at most parameters 1.00\n");
  EXPECT_HAS(to_text(round_costs(), all, 1), "\nfits in 9.53674e-07 MiB: nothing\n");
  EXPECT_LACKS(to_text(round_costs(), all), "fits in");
}

TEST(CostModel, RanksAllWays) {
  const std::vector<Prediction> ranked = ranking(round_costs(), 8, {2, 4});
  EXPECT_TRUE(std::ranges::is_sorted(ranked, {}, &Prediction::seconds));
  std::map<std::string, int> count;
  for (const Prediction& each : ranked) ++count[each.way.engine];
  EXPECT_EQ(count, (std::map<std::string, int>{{"one_device", 1},
                                               {"undivided", 1},
                                               {"data_parallel", 1},
                                               {"ddp", 1},
                                               {"zero1", 1},
                                               {"zero2", 1},
                                               {"fsdp", 1},
                                               {"model_parallel", 1},
                                               {"pipeline", 2 * 3 * 3}}));
  const std::string text = to_text(round_costs(), ranked);
  EXPECT_HAS(text, "one_device: stay on one device");
  EXPECT_HAS(text, "1.00x one device");
  EXPECT_HAS(text, "8 rows x 1125.000 ms");

  // With four layers also those with two stages on each device, DualPipeV from 2 x 2 micro-batches
  // on.
  std::map<std::string, int> pipelines;
  for (const Prediction& each : ranking(even_costs(), 8, {2, 4})) {
    if (each.way.engine != "pipeline") continue;
    ++pipelines[each.way.schedule];
    EXPECT_GT(each.memory.peak, 0) << to_string(each.way);
  }
  EXPECT_EQ(
      pipelines,
      (std::map<std::string, int>{
          {"gpipe", 2 * 3}, {"1f1b", 2 * 3}, {"zb-h1", 2 * 3}, {"zb-v", 2 * 3}, {"dualpipev", 3}}));

  Costs alone = round_costs();
  alone.devices = 1;
  ASSERT_EQ(ranking(alone, 8, {2}).size(), 1U);
  Costs many = round_costs();
  many.devices = 3;
  for (const Prediction& each : ranking(many, 8, {2})) {
    EXPECT_NE(each.way.engine, "pipeline") << "of two layers there are no three stages";
  }
}

TEST(CostModel, ALinkOfNoBandwidthIsInfinitelyWide) {
  EXPECT_DOUBLE_EQ((Link{0.5, 0}.seconds(1e12)), 0.5);
  EXPECT_DOUBLE_EQ((Link{0.5, 4}.seconds(8)), 2.5);
}

}  // namespace
}  // namespace weft::simulator
