// Pipelines whose stages fully_shard and parallelize have cut: ranks of a mesh train as one
// process.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/deferred.h"
#include "weft/comm/mesh.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/shard.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/pipeline_shards.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/sharded_nets.h"
#include "weft/tests/parallel/tensor_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;

class PipelineShardsTest : public FullyShardTest {};

/// A unit within a stage, checkpointed or not.
struct Block : nn::Module<Block> {
  explicit Block(bool with_checkpoint = false) : checkpoints(with_checkpoint) {}
  Tensor forward(const Tensor& x) {
    const auto body = [this](const Tensor& y) { return out(tanh(in(y))); };
    return x + (checkpoints ? autograd::checkpoint(body, x) : body(x));
  }
  nn::Linear in = child("in", nn::Linear(6, 8));
  nn::Linear out = child("out", nn::Linear(8, 6));
  bool checkpoints;
};

/// Four stages, of which some have units within them. x [N,6] -> logits [N,3].
std::vector<nn::Sequential> stages_of(bool checkpoints = false) {
  std::vector<nn::Sequential> stages = testing::seeded(5, [&] {
    nn::Linear tied(6, 6);
    return std::vector<nn::Sequential>{
        {nn::Linear(6, 6), Block(checkpoints), nn::Tanh()},
        {tied, nn::Tanh(), tied, Block()},
        {Block(checkpoints)},
        {Block(), nn::Linear(6, 3)},
    };
  });
  for (nn::Sequential& stage : stages) stage.to(DType::f64);
  return stages;
}

Tensor loss_of(std::span<const Tensor> y, std::span<const Tensor> target) {
  return nn::cross_entropy(y[0], target[0]);
}

/// Cuts blocks, and then the stage.
FullySharded cut_stage(const nn::ModuleBase& stage, const std::shared_ptr<comm::ProcessGroup>& dp,
                       const FullyShardOptions& options = {}) {
  for (auto& [path, module] : stage.named_modules()) {
    if (module.type_name() == "Block") fully_shard(module, dp, options);
  }
  return fully_shard(stage, dp, options);
}

std::vector<Tensor> parameters_of(const std::vector<nn::Sequential>& stages) {
  std::vector<Tensor> all;
  for (const nn::Sequential& stage : stages) {
    for (const Tensor& x : stage.parameters()) all.push_back(x);
  }
  return all;
}

std::shared_ptr<comm::ProcessGroup> shared(comm::ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

/// The stages of one process, joined to make `count` stages.
std::vector<nn::AnyModule> joined(const std::vector<nn::Sequential>& stages, std::size_t count) {
  if (count == stages.size()) return {stages.begin(), stages.end()};
  std::vector<nn::AnyModule> result;
  const std::size_t each = stages.size() / count;
  for (std::size_t s = 0; s < count; ++s) {
    nn::Sequential both;
    for (std::size_t i = 0; i < each; ++i) both.append(stages[s * each + i]);
    result.push_back(both);
  }
  return result;
}

struct Case {
  std::string schedule;
  Recompute mode;
  int dp, pp;
  bool all_stages = false;  // ranks also cut stages they do not run
  bool checkpoints = false;
  int replicas = 1;  // ranks with the same parts
};

// Compares losses and weights with those of one process with the whole batch. Sums are taken in
// other orders; 1e-9 is the required bound.
void expect_one_process(const Case& c, const FullyShardOptions& options = {}) {
  SCOPED_TRACE(::testing::Message()
               << c.schedule << ' ' << to_string(c.mode) << ' ' << c.dp << 'x' << c.pp << ' '
               << c.all_stages << ' ' << c.checkpoints << ' ' << c.replicas);
  const int n = c.replicas * c.dp;
  comm::run_ranks(n * c.pp, [&](comm::ProcessGroup& group) {
    const comm::Mesh mesh(shared(group), {{"replica", c.replicas}, {"dp", c.dp}, {"pp", c.pp}});
    const auto dp = mesh["dp"], pp = mesh["pp"], all = mesh[{"replica", "dp"}];
    FullyShardOptions with = options;
    if (c.replicas > 1) with.replicas = mesh["replica"];
    std::vector<nn::Sequential> plain = stages_of(), cut = stages_of(c.checkpoints);
    const bool in_a_v = c.schedule == "zb-v" || c.schedule == "dualpipev";
    const std::size_t count =
        in_a_v || c.schedule == "interleaved" ? 4 : static_cast<std::size_t>(c.pp);
    const auto is_here = [&](std::size_t s) {
      const int place = static_cast<int>(in_a_v ? std::min(s, count - 1 - s) : s);
      return place % c.pp == pp->rank();
    };
    const std::vector<nn::AnyModule> stages = joined(cut, count);
    std::vector<std::optional<FullySharded>> sharded(count);
    for (std::size_t s = 0; s < count; ++s) {
      if (c.all_stages || is_here(s)) sharded[s] = cut_stage(stages[s], dp, with);
    }
    const int chunks = c.schedule == "dualpipev" ? 6 : 3;
    Pipeline pipe(stages,
                  {.chunks = chunks, .checkpoint = c.mode, .schedule = c.schedule, .group = pp});
    std::vector<Tensor> own, used;
    for (std::size_t s = 0; s < count; ++s) {
      EXPECT_EQ(pipe.is_here(s), is_here(s));
      if (!pipe.is_here(s)) continue;
      for (const Tensor& x : stages[s].parameters()) own.push_back(x);
      for (const Tensor& x : nn::used_parameters(stages[s])) used.push_back(x);
    }
    optim::Adam adam(own, {.lr = 0.01}), plain_adam(parameters_of(plain), {.lr = 0.01});
    const auto forward = [&](Tensor x) {
      for (nn::Sequential& stage : plain) x = stage(x);
      return x;
    };
    for (int i = 0; i < 10; ++i) {
      const auto data = batch(i, {12, 6}, DType::f64);
      const auto part = data.shard(all->rank(), n);
      adam.zero_grad();
      Tensor loss = pipe.step({part.x}, {part.label}, loss_of) * (1.0 / n);
      all->all_reduce(loss).wait();
      plain_adam.zero_grad();
      const Tensor expected = nn::cross_entropy(forward(data.x), data.label);
      expected.backward();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-9);
      const double norm = optim::clip_grad_norm(parameters_of(plain), 0.5).item<double>();
      EXPECT_NEAR(pipe.clip_grad_norm(0.5).item<double>(), norm, 1e-9);
      adam.step();
      plain_adam.step();
      if (i % 3 == 0) {
        const NoGrad no_grad;  // an evaluation between steps
        EXPECT_LE(testing::relative_difference(pipe(part.x), forward(part.x)), 1e-9);
      }
      for (const Tensor& x : used) {
        EXPECT_TRUE(x.storage()->released());
        EXPECT_FALSE(x.grad().defined());
      }
    }
    const std::vector<nn::AnyModule> of_plain = joined(plain, count);
    for (std::size_t s = 0; s < count; ++s) {
      if (pipe.is_here(s)) expect_near(sharded[s]->state_dict(), of_plain[s].state_dict(), 1e-9);
    }
    EXPECT_WEFT_ERROR(
        pipe.all_gather(), Unsupported,
        "the stages of rank " + std::to_string(pp->number_in_run(0)) + " are cut into parts");
  });
}

TEST_F(PipelineShardsTest, TrainAsOneProcess) {
  for (const std::string schedule :
       {"gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "dualpipev"}) {
    for (const Recompute mode : {Recompute::never, Recompute::always}) {
      expect_one_process({schedule, mode, 2, 2});
    }
  }
}

TEST_F(PipelineShardsTest, TrainAsOneProcessOnOtherMeshes) {
  for (const auto& [dp, pp] : {std::pair(1, 2), {2, 1}, {3, 2}, {1, 4}}) {
    expect_one_process({"zb-h1", Recompute::never, dp, pp});
    expect_one_process({"1f1b", Recompute::except_last, dp, pp, true});
    if (pp == 2) expect_one_process({"dualpipev", Recompute::except_last, dp, pp, true});
  }
}

TEST_F(PipelineShardsTest, ReplicasOfParts) {
  for (const auto& [replicas, dp] : {std::pair(2, 2), {2, 1}}) {
    expect_one_process({"1f1b", Recompute::never, dp, 2, false, false, replicas});
    expect_one_process({"zb-v", Recompute::never, dp, 2, false, false, replicas});
  }
}

TEST_F(PipelineShardsTest, WhetherAUnitKeepsItsParametersDoesNotMatter) {
  for (const bool reshard : {false, true}) {
    expect_one_process({"1f1b", Recompute::never, 2, 2}, {.reshard_after_forward = reshard});
  }
}

TEST_F(PipelineShardsTest, CheckpointsWithinStages) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    for (const Recompute mode : {Recompute::never, Recompute::always}) {
      expect_one_process({schedule, mode, 2, 2, false, true});
    }
  }
}

// zb-h1 puts off the gradients of cut weights, too, from I to W. They equal those of a call without
// a pipeline, and such calls work before and after the pipeline's.
TEST_F(PipelineShardsTest, GradientsOfCutWeightsArePutOff) {
  comm::run_ranks(1, [](comm::ProcessGroup& group) {
    PipelineState state;
    state.stages = joined(stages_of(), 1);
    nn::AnyModule& stage = state.stages[0];
    cut_stage(stage, shared(group));
    const PipelineShards shards(state);
    const std::vector<Tensor> x = {batch(0, {4, 6}, DType::f64).x};
    const auto gradients = [&](bool in_pipeline) {
      stage.zero_grad();
      if (in_pipeline) {
        PipelineShards::Whole whole(shards);
        autograd::DeferredGradients later;
        const auto weights = autograd::DeferredGradients::leaves(nn::used_parameters(stage));
        {
          const autograd::DeferredGradients::Scope putting_off(later, weights);
          stage(x)[0].square().sum().backward();
        }
        EXPECT_EQ(later.size(), 12u);  // weights of the layers; one counts twice
        for (const Tensor& used : nn::used_parameters(stage)) EXPECT_FALSE(used.grad().defined());
        later.run();
        whole.reduce();
      } else {
        stage(x)[0].square().sum().backward();
      }
      nn::NamedTensors result;
      for (const auto& [name, part] : stage.named_parameters()) {
        result.emplace_back(name, part.grad().clone());
      }
      return result;
    };
    const nn::NamedTensors expected = gradients(false);
    {
      const NoGrad no_grad;
      const PipelineShards::Whole evaluation(shards);
      stage(x);
    }
    expect_near(gradients(true), expected, 1e-12);
    expect_near(gradients(false), expected, 1e-12);
  });
}

// A hook needs the gradient, so the gradient of its weight is not put off.
TEST_F(PipelineShardsTest, HooksOnWeightsRunInAnySchedule) {
  comm::run_ranks(1, [](comm::ProcessGroup& group) {
    const auto gradients = [&](const std::string& schedule, bool is_cut, double factor) {
      const nn::AnyModule stage = joined(stages_of(), 1)[0];
      autograd::add_grad_hook(stage.parameters()[0], [=](const Tensor& g) { return g * factor; });
      if (is_cut) cut_stage(stage, shared(group));
      Pipeline pipe({stage}, {.chunks = 2, .schedule = schedule, .group = group.duplicate()});
      const auto data = batch(0, {4, 6}, DType::f64);
      pipe.step({data.x}, {data.label}, loss_of);
      nn::NamedTensors result;
      for (const auto& [name, x] : stage.named_parameters()) result.emplace_back(name, x.grad());
      return result;
    };
    nn::NamedTensors expected = gradients("1f1b", false, 1);
    expected[0].second = expected[0].second * 2;
    for (const std::string schedule : {"1f1b", "zb-h1"}) {
      for (const bool is_cut : {false, true}) {
        expect_near(gradients(schedule, is_cut, 2), expected, 1e-12);
      }
    }
  });
}

struct Linear : nn::Module<Linear> {
  explicit Linear(const Tensor& x) : weight(parameter("weight", x)) {}
  Tensor forward(const Tensor& x) const { return linear(x, weight, {}); }
  nn::Parameter weight;
};

// The norm counts the layers' weights, and once those of a LayerNorm that two stages share.
TEST_F(PipelineShardsTest, ParametersOfTwoStagesCountOnceInTheNorm) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const nn::LayerNorm tied(6);
    PipelineState state;
    std::vector<Tensor> own = tied.parameters();
    for (int s = 0; s < 2; ++s) {
      const nn::Linear layer(6, 6);
      const nn::Sequential stage = {tied, layer};
      parallelize(stage, group, {{"1", ColwiseParallel{}}});
      for (const Tensor& x : layer.parameters()) own.push_back(x);
      state.stages.push_back(stage);
    }
    for (const Tensor& x : own) x.set_grad(full(x.shape(), 1));
    EXPECT_NEAR(PipelineShards(state).squared_grad_norm(own).item<double>(), 12 + 2 * 42, 1e-9);

    PipelineState cut_twice;
    const Tensor weight = zeros({8, 6});
    for (int s = 0; s < 2; ++s) {
      const nn::Sequential stage = {Linear(weight)};
      parallelize(stage, group, {{"0", ColwiseParallel{}}});
      cut_twice.stages.push_back(stage);
    }
    EXPECT_WEFT_ERROR(PipelineShards{cut_twice}, InvalidArgument,
                      "0.weight of stage 1 is shared with another stage");
  });
}

TEST_F(PipelineShardsTest, NoSyncAddsUpOnEachRank) {
  for (const MixedPrecisionPolicy& policy :
       {MixedPrecisionPolicy(), MixedPrecisionPolicy{.reduce_dtype = DType::f32}}) {
    comm::run_ranks(4, [&](comm::ProcessGroup& group) {
      const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}});
      std::vector<nn::Sequential> plain = stages_of(), cut = stages_of();
      const std::vector<nn::AnyModule> stages = joined(cut, 2), of_plain = joined(plain, 2);
      const auto here = static_cast<std::size_t>(mesh["pp"]->rank());
      const FullySharded sharded = cut_stage(stages[here], mesh["dp"], {.mp_policy = policy});
      Pipeline pipe(stages, {.chunks = 3, .schedule = "zb-h1", .group = mesh["pp"]});
      optim::SGD sgd(stages[here].parameters(), {.lr = 0.1});
      optim::SGD plain_sgd(parameters_of(plain), {.lr = 0.1});
      const auto step = [&](int i) {
        const auto data = batch(i, {12, 6}, DType::f64);
        const auto part = data.shard(mesh.coordinate("dp"), 2);
        pipe.step({part.x}, {part.label}, loss_of);
        Tensor y = data.x;
        for (nn::Sequential& stage : plain) y = stage(y);
        nn::cross_entropy(y, data.label).backward();
      };
      {
        const auto no_sync = sharded.no_sync();
        step(0);
        EXPECT_FALSE(stages[here].parameters()[0].grad().defined());
        const NoGrad no_grad;
        pipe(batch(1, {12, 6}, DType::f64).x);
      }
      step(1);
      sgd.step();
      plain_sgd.step();
      expect_near(sharded.state_dict(), of_plain[here].state_dict(),
                  policy.reduce_dtype ? 1e-7 : 1e-12);  // sums of gradients in f32
    });
  }
}

/// Bytes that a step of one rank sends in the group of its units.
std::int64_t bytes_of_a_step(int chunks, const std::string& schedule) {
  std::atomic<std::int64_t> sent = 0;
  comm::run_ranks(4, [&](comm::ProcessGroup& group) {
    const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}});
    std::vector<nn::Sequential> layers = stages_of();
    const std::vector<nn::AnyModule> stages = joined(layers, 2);
    const FullySharded sharded =
        cut_stage(stages[static_cast<std::size_t>(mesh["pp"]->rank())], mesh["dp"]);
    Pipeline pipe(stages, {.chunks = chunks, .schedule = schedule, .group = mesh["pp"]});
    const auto data = batch(0, {8, 6}, DType::f64);
    const auto step = [&] { pipe.step({data.x}, {data.label}, loss_of); };
    step();
    const std::int64_t before = sharded.traffic().bytes_sent;
    step();
    sent += sharded.traffic().bytes_sent - before;
  });
  return sent;
}

// One gather and one reduce-scatter of each unit, of (n - 1) / n of its bytes.
TEST_F(PipelineShardsTest, AStepSendsTheSameForAnyNumberOfMicroBatches) {
  std::int64_t numbers = 0;
  for (const nn::Sequential& stage : stages_of()) numbers += stage.parameter_count();
  // A bias of 3 rows is padded for 2 ranks, and so is its weight. In each stage 2 ranks send all to
  // one other rank.
  const std::int64_t padding = 1 * 6 + 1;
  const std::int64_t expected = 8 * 2 * (numbers + padding);
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int chunks : {1, 2, 8}) {
      EXPECT_EQ(bytes_of_a_step(chunks, schedule), expected) << schedule << ' ' << chunks;
    }
  }
}

TEST_F(PipelineShardsTest, BuffersAreThoseOfRank0) {
  comm::run_ranks(4, [](comm::ProcessGroup& group) {
    const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}});
    const std::vector<nn::AnyModule> stages = testing::seeded(5, [] {
      return std::vector<nn::AnyModule>{
          nn::Sequential{nn::Linear(6, 4), nn::BatchNorm1d(4), nn::Tanh()},
          nn::Sequential{nn::Linear(4, 3)}};
    });
    const FullySharded sharded =
        fully_shard(stages[static_cast<std::size_t>(mesh["pp"]->rank())], mesh["dp"]);
    Pipeline pipe(stages, {.chunks = 2, .group = mesh["pp"]});
    const Tensor mean = stages[0].named_buffers()[0].second;
    if (mesh.coordinate("dp") == 1) raw::fill_(mean, 100);
    const auto data = batch(0, {16, 6}, DType::f32);  // the same on all ranks
    {
      const auto no_sync = sharded.no_sync();
      pipe.step({data.x}, {data.label}, loss_of);
    }
    if (mesh.coordinate("pp") == 0 && mesh.coordinate("dp") == 1) {
      EXPECT_GT(raw::norm(mean).item<double>(), 10);
    }
    pipe.step({data.x}, {data.label}, loss_of);
    if (mesh.coordinate("pp") == 0) {
      EXPECT_LT(raw::norm(mean).item<double>(), 10);
    }
  });
}

// Gradients in bf16 are added up in f32.
TEST_F(PipelineShardsTest, MicroBatchesAddUpInTheDtypeOfTheReduction) {
  for (const auto& [schedule, n] : {std::pair("gpipe", 1), {"zb-h1", 1}, {"zb-h1", 2}}) {
    comm::run_ranks(n, [&, schedule = schedule, n = n](comm::ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3, net), half = testing::seeded(3, net);
      half.to(DType::bf16);
      const FullySharded sharded = cut(
          model, group, {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}});
      const comm::Mesh mesh(shared(group), {{"dp", n}, {"pp", 1}});
      Pipeline pipe({model}, {.chunks = 2, .schedule = schedule, .group = mesh["pp"]});
      const auto data = batch(group.rank(), {12, 6}, DType::f32);
      pipe.step({data.x}, {data.label}, loss_of);
      std::vector<Tensor> sums;
      for (int m = 0; m < 2; ++m) {
        const auto part = data.shard(m, 2);
        half.zero_grad();
        (nn::cross_entropy(half(raw::to(part.x, DType::bf16)), part.label) * 0.5).backward();
        std::size_t k = 0;
        for (const Tensor& x : half.parameters()) {
          const Tensor gradient = raw::to(x.grad(), DType::f32);
          if (m == 0) {
            sums.push_back(gradient);
          } else {
            raw::add_scaled_(sums[k++], 1, gradient);
          }
        }
      }
      const nn::NamedShards parts = nn::shards_of(model);
      for (std::size_t k = 0; k < sums.size(); ++k) {
        raw::mul_(sums[k], 1.0 / n);
        group.all_reduce(sums[k]).wait();
        const nn::Shard& shard = *parts[k].second;
        EXPECT_TRUE(testing::same_bits(shard.part.grad(), shard.cut.part_of(sums[k]))) << k;
      }
    });
  }
}

// dp x pp x tp: fully_shard cuts the parts that parallelize has made, unless dp is 1.
TEST_F(PipelineShardsTest, StagesOfPartsOfLayers) {
  using Layers = testing::Block;
  const auto make = [] {
    return testing::seeded(3, [] {
      std::vector<Layers> blocks = {Layers(0), Layers(0)};
      for (Layers& block : blocks) block.to(DType::f64);
      return blocks;
    });
  };
  const auto loss = [](std::span<const Tensor> y, std::span<const Tensor> target) {
    return nn::mse_loss(y[0], target[0]);
  };
  for (const bool sequence : {false, true}) {
    for (const auto& [dp, schedule] : {std::pair(2, "zb-h1"), {1, "1f1b"}}) {
      SCOPED_TRACE(::testing::Message() << sequence << ' ' << dp);
      comm::run_ranks(4 * dp, [&, dp = dp, schedule = schedule](comm::ProcessGroup& group) {
        const comm::Mesh mesh(shared(group), {{"dp", dp}, {"pp", 2}, {"tp", 2}});
        std::vector<Layers> plain = make(), cut = make();
        const Layout layout = sequence ? Layout(Shard{1}) : Layout(Replicate{});
        ParallelPlan plan = {{"attention", HeadParallel{layout, layout}},
                             {"fc1", ColwiseParallel{.input = layout}},
                             {"fc2", RowwiseParallel{.output = layout}}};
        if (sequence) plan.push_back({"norm*", SequenceParallel{}});
        Layers& own = cut[static_cast<std::size_t>(mesh["pp"]->rank())];
        const Parallelized layers = parallelize(own, *mesh["tp"], plan);
        std::optional<FullySharded> sharded;
        if (dp > 1) sharded = fully_shard(own, mesh["dp"]);
        Pipeline pipe({cut[0], cut[1]}, {.chunks = 2, .schedule = schedule, .group = mesh["pp"]});
        optim::Adam adam(own.parameters(), {.lr = 0.01});
        std::vector<Tensor> all;
        for (const Layers& block : plain) {
          for (const Tensor& x : block.parameters()) all.push_back(x);
        }
        optim::Adam plain_adam(all, {.lr = 0.01});
        for (int i = 0; i < 4; ++i) {
          const Shape shape = {4, testing::kLength, testing::kWidth};
          const Tensor x = batch(i, shape, DType::f64).x, y = batch(i + 50, shape, DType::f64).x;
          const auto part = [&](const Tensor& of) {
            const Tensor rows = of.chunk(dp)[static_cast<std::size_t>(mesh.coordinate("dp"))];
            const auto t = static_cast<std::size_t>(mesh.coordinate("tp"));
            return sequence ? rows.chunk(2, 1)[t] : rows;
          };
          adam.zero_grad();
          Tensor mean = pipe.step({part(x)}, {part(y)}, loss);
          plain_adam.zero_grad();
          const Tensor expected = nn::mse_loss(plain[1](plain[0](x)), y);
          expected.backward();
          // With parts of sequences each rank has a part of the mean loss, and that part's
          // gradients.
          if (sequence) {
            for (const Tensor& p : own.parameters()) raw::mul_(p.grad(), 0.5);
          }
          mean = mean * (1.0 / (dp * (sequence ? 2 : 1)));
          mesh["dp"]->all_reduce(mean).wait();
          if (sequence) mesh["tp"]->all_reduce(mean).wait();
          EXPECT_NEAR(mean.item<double>(), expected.item<double>(), 1e-9);
          EXPECT_NEAR(pipe.clip_grad_norm(0.1).item<double>(),
                      optim::clip_grad_norm(all, 0.1).item<double>(), 1e-9);
          adam.step();
          plain_adam.step();
        }
        const auto state = sharded ? sharded->state_dict() : layers.state_dict();
        expect_near(state, plain[static_cast<std::size_t>(mesh["pp"]->rank())].state_dict(), 1e-9);
      });
    }
  }
}

// Neither the ranks of its pipeline nor those that share its stage wait for it. All ranks stay
// until each has its error, since the end of a rank's groups would cause errors as well.
TEST_F(PipelineShardsTest, ARankThatFailsEndsTheBatchOfAll) {
  for (const int tp : {1, 2}) {
    const int n = 4 * tp;
    std::atomic<int> errors = 0;
    comm::run_ranks(
        n,
        [&](comm::ProcessGroup& group) {
          const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}, {"tp", tp}});
          std::vector<testing::Block> blocks = {testing::Block(0), testing::Block(0)};
          testing::Block& own = blocks[static_cast<std::size_t>(mesh["pp"]->rank())];
          parallelize(own, *mesh["tp"], {{"fc1", ColwiseParallel{}}, {"fc2", RowwiseParallel{}}});
          fully_shard(own, mesh["dp"]);
          Pipeline pipe({blocks[0], blocks[1]}, {.chunks = 2, .group = mesh["pp"]});
          const Tensor x = batch(0, {4, testing::kLength, testing::kWidth}, DType::f32).x;
          bool fails = false;
          const auto loss = [&](std::span<const Tensor> y, std::span<const Tensor> target) {
            WEFT_CHECK(!fails, InvalidArgument, "test", "mine");
            return nn::mse_loss(y[0], target[0]);
          };
          pipe.step({x}, {x}, loss);
          fails = mesh.coordinate("dp") == 0 && mesh.coordinate("tp") == 0;
          try {
            pipe.step({x}, {x}, loss);
          } catch (const Error&) {
            ++errors;
          }
          const comm::Deadline deadline(std::chrono::seconds(30));
          while (errors < n && !deadline.passed()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          EXPECT_EQ(errors, n);
        },
        {.timeout = std::chrono::seconds(60)});
  }
}

// After an error nothing stays gathered, and the modules may be called as before.
TEST_F(PipelineShardsTest, WhatCannotBeGatheredLeavesNothing) {
  comm::run_ranks(1, [](comm::ProcessGroup& group) {
    PipelineState state;
    state.stages = joined(stages_of(), 4);
    nn::AnyModule &first = state.stages[0], &last = state.stages[3];
    cut_stage(first, shared(group));
    for (auto& [path, module] : last.named_modules()) {
      if (module.type_name() == "Block") fully_shard(module, shared(group));
    }
    const Tensor rest = nn::uncut_parameters(last)[0].second;
    for (const auto& [name, x] : nn::uncut_parameters(last)) x.set_requires_grad(false);
    const PipelineShards shards(state);
    const std::vector<Tensor> x = {batch(0, {4, 6}, DType::f64).x};
    last(x);
    const auto backward = [&] { first(x)[0].square().sum().backward(); };
    backward();
    rest.set_requires_grad();
    EXPECT_WEFT_ERROR(PipelineShards::Whole{shards}, InvalidArgument,
                      "1.weight of stage 3 is in no unit of fully_shard");
    EXPECT_TRUE(nn::used_parameters(first)[0].storage()->released());
    first.zero_grad();
    backward();
    for (const Tensor& part : first.parameters()) EXPECT_TRUE(part.grad().defined());
  });
}

TEST_F(PipelineShardsTest, MistakesAreNamed) {
  comm::run_ranks(4, [](comm::ProcessGroup& group) {
    const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}});
    const auto here = static_cast<std::size_t>(mesh["pp"]->rank());
    const auto dp = mesh["dp"];
    {
      const std::vector<nn::AnyModule> stages = joined(stages_of(), 2);
      if (here == 1) {
        for (auto& [path, module] : stages[1].named_modules()) {
          if (module.type_name() == "Block") fully_shard(module, dp);
        }
      }
      EXPECT_WEFT_ERROR(Pipeline(stages, {.group = mesh["pp"]}), InvalidArgument,
                        "1.1.weight of stage 1 is in no unit of fully_shard");
    }
    {
      const std::vector<nn::AnyModule> stages = joined(stages_of(), 2);
      if (here == 1) cut_stage(stages[1], dp);
      const auto replicas = dp->duplicate();  // an error ends it
      EXPECT_WEFT_ERROR(Pipeline(stages, {.group = mesh["pp"], .replicas = replicas}),
                        InvalidArgument,
                        "stage 1 is cut by fully_shard, which averages its gradients by itself");
    }
    {
      const std::vector<nn::AnyModule> stages = joined(stages_of(), 2);
      const auto other = dp->duplicate();
      for (auto& [path, module] : stages[here].named_modules()) {
        if (module.type_name() == "Block") fully_shard(module, other);
      }
      fully_shard(stages[here], dp);
      EXPECT_WEFT_ERROR(Pipeline(stages, {.group = mesh["pp"]}), InvalidArgument,
                        "are cut over different groups");
    }
    {
      std::vector<nn::Sequential> stages = {{nn::Linear(6, 6)}, {nn::Linear(6, 3)}};
      {
        const nn::Sequential both = {stages[0], stages[1]};
        fully_shard(both, dp);
        EXPECT_WEFT_ERROR(Pipeline({stages[0], stages[1]}, {.group = mesh["pp"]}), InvalidArgument,
                          "has only a part of Sequential, a unit of fully_shard");
      }
      EXPECT_WEFT_ERROR(Pipeline({stages[0], stages[1]}, {.group = mesh["pp"]}), InvalidArgument,
                        "was cut together with a module that is gone");
    }
    {
      nn::Sequential a = {Block(), Block()}, b = {Block(), Block()};
      for (nn::ModuleBase stage : {nn::ModuleBase(a), nn::ModuleBase(b)}) {
        for (auto& [path, module] : stage.named_modules()) {
          if (module.type_name() == "Block") fully_shard(module, dp);
        }
      }
      Pipeline pipe({a, b}, {.group = mesh["pp"]->duplicate()});
      const auto data = batch(0, {4, 6}, DType::f32);
      EXPECT_WEFT_ERROR(pipe.step({data.x}, {data.label}, loss_of), InvalidArgument,
                        "have no module around them that is cut, too: cut the stage itself");
    }
    const std::vector<nn::AnyModule> stages = joined(stages_of(), 2);
    cut_stage(stages[0], dp);
    EXPECT_WEFT_ERROR(Pipeline(stages, {.devices = {Device(), Device()}}), Unsupported,
                      "stage 0 is cut into parts");
  });
}

}  // namespace
}  // namespace weft::parallel
