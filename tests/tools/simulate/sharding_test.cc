#include "weft/tools/simulate/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tools/simulate/scaling.h"

namespace weft::simulator {
namespace {

const TransformerSize kSmall{.layers = 4, .width = 100, .context = 10, .vocabulary = 50};

// Nodes of two devices, whose arithmetic is free.
Cluster idle_cluster() {
  return {.name = "idle",
          .what = "test",
          .flops = 1e30,
          .bytes_per_second = 1e30,
          .memory = 1e6,
          .per_node = 2,
          .inside = {0, 1e6},
          .between = {0, 1e5},
          .ports = 2};
}

double bytes_of(double parameters) { return 4 * parameters; }

TEST(ShardedStep, AModelHasTheParametersOfTheProgram) {
  // examples::CharTransformer(characters 50, context 10, width 100, layers 4)
  EXPECT_EQ(kSmall.block_parameters(),
            300 * 100 + 300 + 100 * 100 + 100 + 400 * 100 + 400 + 100 * 400 + 100 + 4 * 100);
  EXPECT_EQ(kSmall.root_parameters(), 50 * 100 + 10 * 100 + 200 + 50 * 100 + 50);
}

TEST(ShardedStep, MemoryIsDividedAsThePageOnShardingSays) {
  const double all = bytes_of(kSmall.parameters());
  const double block = bytes_of(kSmall.block_parameters());
  const double root = bytes_of(kSmall.root_parameters());
  for (const Sharding way : kShardings) {
    const ShardedStep one = sharded_step(kSmall, 3, 1, way, idle_cluster());
    EXPECT_EQ(one.parameters + one.gathered, all);
    EXPECT_EQ(one.gradients, all);
    EXPECT_EQ(one.moments, 2 * all);
    EXPECT_EQ(one.exposed, 0);
    EXPECT_EQ(one.activations, 4.0 * 3 * 10 * (4 * 16 * 100 + 2 * 50));
  }
  const auto on_four = [](Sharding way) { return sharded_step(kSmall, 3, 4, way, idle_cluster()); };
  EXPECT_EQ(on_four(Sharding::ddp).bytes(),
            sharded_step(kSmall, 3, 1, Sharding::ddp, idle_cluster()).bytes());
  EXPECT_EQ(on_four(Sharding::zero1).gradients, all);
  EXPECT_EQ(on_four(Sharding::zero1).moments, all / 2);
  EXPECT_EQ(on_four(Sharding::zero2).gathered, all);
  EXPECT_EQ(on_four(Sharding::zero2).gradients, all / 4 + block);
  EXPECT_EQ(on_four(Sharding::fsdp).parameters, all / 4);
  EXPECT_EQ(on_four(Sharding::fsdp).gathered, root + 2 * block);
  EXPECT_EQ(on_four(Sharding::tp_ddp).parameters, all / 2);
  EXPECT_EQ(on_four(Sharding::tp_fsdp).parameters, all / 4);
  EXPECT_EQ(on_four(Sharding::tp_fsdp).gathered, (root + 2 * block) / 2);
  // Two of 16 numbers stay whole, for the rows of both devices that share the layers.
  EXPECT_EQ(on_four(Sharding::tp_fsdp).activations, 4.0 * 2 * 3 * 10 * (4 * 9 * 100 + 2 * 50 / 2));
}

// With nothing to compute, all messages are waited for: each takes (n-1)/n of its bytes.
TEST(ShardedStep, MessagesAreThoseOfThePageOnSharding) {
  const double all = bytes_of(kSmall.parameters());
  const double root = bytes_of(kSmall.root_parameters());
  const Cluster cluster = idle_cluster();
  const auto exposed = [&](Sharding way, int n) {
    return sharded_step(kSmall, 3, n, way, cluster).exposed;
  };
  const double of_two = 0.5 / 1e6;  // seconds for a byte, within a node
  EXPECT_NEAR(exposed(Sharding::ddp, 2), 2 * of_two * all, 1e-9);
  EXPECT_NEAR(exposed(Sharding::zero1, 2), 3 * of_two * all, 1e-9);
  EXPECT_NEAR(exposed(Sharding::zero2, 2), 2 * of_two * all, 1e-9);
  EXPECT_NEAR(exposed(Sharding::fsdp, 2), of_two * (3 * all - root), 1e-9);
  // Rings within nodes of two, and between two nodes, whose devices send at once.
  EXPECT_NEAR(exposed(Sharding::fsdp, 4), (0.5 / 1e6 + 0.5 / 1e5 / 2) * (3 * all - root), 1e-9);
  const double activation = 4.0 * 2 * 3 * 10 * 100;  // both devices' rows
  // As of 8 blocks there are 34: four in each, one of the table, one before the head.
  EXPECT_NEAR(exposed(Sharding::tp_ddp, 2), (4 * 4 + 2) * 2 * of_two * activation, 1e-9);
  // With two nodes, a group that divides the rows has one device of each node, which has a port to
  // itself.
  EXPECT_NEAR(exposed(Sharding::tp_ddp, 4) - exposed(Sharding::tp_ddp, 2), 2 * 0.5 / 1e5 * all / 2,
              1e-9);
}

TEST(ShardedStep, MessagesThatFitBehindTheBlocksAreHidden) {
  Cluster cluster = idle_cluster();
  cluster.launch = 1;  // a block takes 12 s
  const double all = bytes_of(kSmall.parameters());
  const double root = bytes_of(kSmall.root_parameters());
  const double block = bytes_of(kSmall.block_parameters());
  // The first gather and the last reduce-scatter have no neighbour.
  EXPECT_NEAR(sharded_step(kSmall, 3, 2, Sharding::fsdp, cluster).exposed, (block + root) / 1e6,
              1e-9);
  EXPECT_NEAR(sharded_step(kSmall, 3, 2, Sharding::zero2, cluster).exposed, (block + root) / 1e6,
              1e-9);
  // The first block's gradients come last, and those of the tables.
  EXPECT_NEAR(sharded_step(kSmall, 3, 2, Sharding::ddp, cluster).exposed, (block + root) / 1e6,
              1e-9);
  EXPECT_NEAR(sharded_step(kSmall, 3, 2, Sharding::ddp, cluster).compute, 3 * (4 * 12 + 2), 1e-9);
  EXPECT_NEAR(sharded_step(kSmall, 3, 2, Sharding::fsdp, cluster).optimizer, 1 + 7 * all / 2 / 1e30,
              1e-9);
}

// A ring's latency grows with the nodes: with very many devices it cannot be hidden.
TEST(ShardedStep, GathersOfManyNodesTakeLonger) {
  const auto exposed = [](int n) {
    return sharded_step({}, 4, n, Sharding::fsdp, find_preset("h100")).exposed;
  };
  EXPECT_LT(exposed(512), 2 * exposed(64));
  EXPECT_GT(exposed(4096), 10 * exposed(512));
}

// What docs/simulate.md says about the default model.
TEST(ShardedStep, SaysOfTheDefaultWhatThePageSays) {
  const auto step = [](Sharding way, int n) {
    return sharded_step({}, 4, n, way, find_preset("h100"));
  };
  for (const int n : {64, 1024}) {
    EXPECT_LT(step(Sharding::fsdp, n).bytes(), step(Sharding::ddp, n).bytes() / 2);
    EXPECT_LT(step(Sharding::fsdp, n).seconds(), step(Sharding::ddp, n).seconds());
  }
  EXPECT_GT(step(Sharding::fsdp, 2048).seconds(), step(Sharding::ddp, 2048).seconds());
  EXPECT_NEAR(step(Sharding::tp_ddp, 8).seconds() / step(Sharding::ddp, 1).seconds(), 1.6, 0.05);
  EXPECT_GT(step(Sharding::tp_fsdp, 64).bytes(), step(Sharding::fsdp, 64).bytes());
}

TEST(ShardedStep, RefusesSizesBelowOne) {
  EXPECT_WEFT_ERROR(sharded_step(kSmall, 1, 3, Sharding::tp_ddp, idle_cluster()), InvalidArgument,
                    "3 devices: expected nodes of 2");
  EXPECT_WEFT_ERROR(sharded_step({.layers = 0}, 1, 1, Sharding::ddp, idle_cluster()),
                    InvalidArgument, "0 layers");
  EXPECT_WEFT_ERROR(sharded_step(kSmall, 0, 1, Sharding::ddp, idle_cluster()), InvalidArgument,
                    "0 rows");
  EXPECT_WEFT_ERROR(sharded_step(kSmall, 1, 0, Sharding::ddp, idle_cluster()), InvalidArgument,
                    "0 devices");
}

TEST(ShardedSteps, EveryLineSaysThatItIsAModelAndWhatDoesNotFit) {
  Cluster cluster = find_preset("h100");
  const std::vector<ShardedStep> steps = sharded_steps({}, 4, cluster);
  ASSERT_EQ(steps.size(), 6U * 13);
  EXPECT_EQ(steps.back().devices, 4096);
  cluster.memory = 20e9;
  const std::string text = to_text({}, 4, cluster, steps);
  EXPECT_EQ(text.find("MODEL, nothing measured: a transformer of 1.42e9 parameters"), 0U) << text;
  std::size_t lines = 0, too_large = 0;
  for (std::size_t at = text.find('\n'); at + 1 < text.size(); at = text.find('\n', at + 1)) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    EXPECT_TRUE(line.starts_with("      ") || line.starts_with("model ")) << line;
    ++lines;
    too_large += line.ends_with("does not fit");
    if (line.find("4096 FSDP") != std::string::npos) {
      EXPECT_FALSE(line.ends_with("does not fit")) << line;
    }
  }
  EXPECT_EQ(lines, 1U + 1 + 6 * 12);
  EXPECT_GT(too_large, 12U);  // DDP, on any number of devices
  for (const auto& row : to_json(steps, 4096)) EXPECT_EQ(row["kind"], "model");
  const std::string svg = picture({}, 4, cluster, steps);
  for (const char* what : {"MODEL, not measured: 24 blocks of width 2048", ">ZeRO-2<",
                           ">TP + FSDP<", "GB of each device, which has 20"}) {
    EXPECT_HAS(svg, what);
  }
}

// But for the blocks, each of which takes its time here, as large as ./weft simulate takes them.
TEST(ShardedSteps, AStepOfAHugeModelIsOneLine) {
  constexpr int kMost = 1 << 20;
  const TransformerSize model{1 << 14, kMost, kMost, kMost};
  const Cluster& cluster = find_preset("h100");
  const std::string text = to_text(model, kMost, cluster, sharded_steps(model, kMost, cluster));
  EXPECT_EQ(std::ranges::count(text, '\n'), 2 + 1 + 6 * 12);
}

}  // namespace
}  // namespace weft::simulator
