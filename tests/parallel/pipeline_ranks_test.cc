// A pipeline of several ranks compared with the same pipeline in one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/comm/mesh.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/dropout.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/balance.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/every_case.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::testing::in_groups;
using testing::batch;
using testing::Delay;
using testing::LabelledBatch;
using testing::relative_difference;
using testing::same_bits;
using testing::seeded;
using Gradients = std::vector<Tensor>;

constexpr std::int64_t kRows = 7;  // divisible only by 1 and 7 micro-batches

std::shared_ptr<comm::ProcessGroup> shared(comm::ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

// x [N,6] -> logits [N,3], eight layers.
nn::Sequential net(DType dtype) {
  nn::Sequential layers = seeded(5, [] {
    return nn::Sequential{nn::Linear(6, 8), nn::Tanh(),       nn::Linear(8, 8), nn::ReLU(),
                          nn::Linear(8, 8), nn::Linear(8, 8), nn::Tanh(),       nn::Linear(8, 3)};
  });
  layers.to(dtype);
  return layers;
}

Tensor loss_of(std::span<const Tensor> y, std::span<const Tensor> target) {
  return nn::cross_entropy(y[0], target[0]);
}

std::vector<nn::AnyModule> in_stages(const nn::Sequential& layers, int stages) {
  const std::vector<double> costs(layers.size(), 1.0);
  return cut(layers, balanced(costs, static_cast<std::size_t>(stages)));
}

// Checks the gradients of this rank's stages; `expected`: those of all parameters.
void expect_gradients(const Pipeline& pipe, const std::vector<Tensor>& expected, double within) {
  std::size_t index = 0;
  for (std::size_t s = 0; s < pipe.stages().size(); ++s) {
    for (const Tensor& p : pipe.stages()[s].parameters()) {
      const Tensor& other = expected[index++];
      if (!pipe.is_here(s)) continue;
      ASSERT_TRUE(p.grad().defined());
      EXPECT_LE(relative_difference(p.grad(), other.grad()), within) << "stage " << s;
    }
  }
}

struct Case {
  std::string schedule;
  Recompute mode;
  int ranks, chunks;
  int stages() const { return ranks * stages_per_device(schedule); }
  std::string text() const {
    return schedule + ", " + to_string(mode) + ", " + std::to_string(ranks) + " ranks, " +
           std::to_string(chunks) + " chunks";
  }
};

class PipelineRanks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      comm::testing::maker_of(GetParam());
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

/// Each pair of a schedule, a mode and a number of chunks; in a soak all combinations.
void for_each_case(int ranks, const std::function<void(const Case&)>& f) {
  const std::vector<Recompute> modes{Recompute::never, Recompute::except_last, Recompute::always};
  int turn = ranks;
  for (const std::string& schedule : schedule_names()) {
    ++turn;
    for (int chunks = 1; chunks <= 8; ++chunks) {
      const Recompute own = modes[static_cast<std::size_t>(turn + chunks) % modes.size()];
      const auto parts = part_sizes(kRows, static_cast<std::size_t>(chunks)).size();
      if (schedule == "dualpipev" && static_cast<int>(parts) < 2 * ranks) continue;
      for (const Recompute mode : modes) {
        if (mode == own || testing::every_case()) f({schedule, mode, ranks, chunks});
      }
    }
  }
}

// (a) f32: bit for bit equal to the pipeline in one process, which has its own proofs.
TEST_P(PipelineRanks, GradientsAreThoseOfOneProcessBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const LabelledBatch whole = batch(0, {kRows, 6}, DType::f32);
  for (int ranks = 2; ranks <= 3; ++ranks) {
    in_groups(GetParam(), ranks, [&](comm::ProcessGroup& group) {
      for_each_case(ranks, [&](const Case& c) {
        SCOPED_TRACE(c.text());
        const PipelineOptions options{
            .chunks = c.chunks, .checkpoint = c.mode, .schedule = c.schedule};
        nn::Sequential alone = net(DType::f32), model = net(DType::f32);
        PipelineOptions of_one = options;
        of_one.devices.resize(static_cast<std::size_t>(ranks));
        Pipeline one(in_stages(alone, c.stages()), of_one);
        const Tensor expected = one.step({whole.x}, {whole.label}, loss_of);
        PipelineOptions of_ranks = options;
        of_ranks.group = shared(group);
        Pipeline pipe(in_stages(model, c.stages()), of_ranks);
        const Tensor loss = pipe.step({whole.x}, {whole.label}, loss_of);
        EXPECT_TRUE(same_bits(loss, expected)) << loss.item<double>();
        for (std::size_t s = 0; s < pipe.stages().size(); ++s) {
          const Gradients theirs = one.stages()[s].parameters();
          const Gradients ours = pipe.stages()[s].parameters();
          for (std::size_t i = 0; i < ours.size(); ++i) {
            EXPECT_EQ(ours[i].grad().defined(), pipe.is_here(s));
            if (!pipe.is_here(s)) continue;
            EXPECT_TRUE(same_bits(ours[i].grad(), theirs[i].grad()));
          }
        }
      });
    });
  }
}

// (b) f64, compared with the whole batch on one device; two pairs of ranks, each with half of it.
TEST_P(PipelineRanks, ReplicasAverageTheirGradients) {
  const LabelledBatch whole = batch(0, {2 * kRows, 6}, DType::f64);
  nn::Sequential alone = net(DType::f64);
  nn::cross_entropy(alone(whole.x), whole.label).backward();
  in_groups(GetParam(), 4, [&](comm::ProcessGroup& world) {
    const int rank = world.rank();
    const comm::Mesh mesh(shared(world), {{"dp", 2}, {"pp", 2}});
    const LabelledBatch own = whole.shard(mesh.coordinate("dp"), 2);
    for (const std::string& schedule : schedule_names()) {
      for (const int chunks : {2, 4}) {
        if (schedule == "dualpipev" && chunks < 4) continue;  // two for each rank
        SCOPED_TRACE(schedule);
        nn::Sequential model = net(DType::f64);
        // The second pipeline must get the parameters of the first.
        for (const Tensor& p : model.parameters()) {
          if (rank >= 2) raw::mul_(p, 0.5);
        }
        Pipeline pipe(
            in_stages(model, 2 * stages_per_device(schedule)),
            {.chunks = chunks, .schedule = schedule, .group = mesh["pp"], .replicas = mesh["dp"]});
        for (int step = 0; step < 2; ++step) {
          for (const Tensor& p : model.parameters()) autograd::zero_grad(p);
          pipe.step({own.x}, {own.label}, loss_of);
          expect_gradients(pipe, alone.parameters(), 1e-9);
        }
      }
    }
  });
}

// Rank 0 has the first and the last stage, which may share a weight; one rank alone has both.
TEST_P(PipelineRanks, InAVTheFirstAndTheLastStageMayShareAWeight) {
  const LabelledBatch whole = batch(0, {kRows, 6}, DType::f64);
  const auto layers = [] {
    nn::Sequential made = seeded(5, [] {
      const nn::Linear tied(6, 6);
      return nn::Sequential{tied, nn::Tanh(), nn::Linear(6, 6), nn::Linear(6, 6), nn::Tanh(), tied};
    });
    made.to(DType::f64);
    return made;
  };
  const nn::Sequential alone = layers();
  nn::cross_entropy(alone(whole.x), whole.label).backward();
  for (int ranks = 1; ranks <= 2; ++ranks) {
    in_groups(GetParam(), ranks, [&](comm::ProcessGroup& group) {
      for (const std::string schedule : {"zb-v", "dualpipev"}) {
        SCOPED_TRACE(schedule);
        Pipeline pipe(in_stages(layers(), 2 * ranks),
                      {.chunks = 7, .schedule = schedule, .group = shared(group)});
        pipe.step({whole.x}, {whole.label}, loss_of);
        Gradients expected;
        for (const nn::AnyModule& stage : in_stages(alone, 2 * ranks)) {
          for (const Tensor& p : stage.parameters()) expected.push_back(p);
        }
        expect_gradients(pipe, expected, 1e-12);
        EXPECT_EQ(pipe.is_here(pipe.stages().size() - 1), group.rank() == 0);
      }
    });
  }
}

// (b) for 100 steps with an optimiser, whose state is collected as one process has it.
TEST_P(PipelineRanks, TrainsAsOneProcess) {
  constexpr int kSteps = 100;
  nn::Sequential alone = net(DType::f64);
  optim::Adam adam(alone.parameters(), {.lr = 0.01});
  std::vector<double> expected;
  for (int step = 0; step < kSteps; ++step) {
    const LabelledBatch data = batch(step, {kRows, 6}, DType::f64);
    adam.zero_grad();
    const Tensor loss = nn::cross_entropy(alone(data.x), data.label);
    loss.backward();
    adam.step();
    expected.push_back(loss.item<double>());
  }
  in_groups(GetParam(), 3, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net(DType::f64);
    Pipeline pipe(in_stages(model, 3), {.chunks = 3, .schedule = "1f1b", .group = shared(group)});
    optim::Adam own(model.parameters(), {.lr = 0.01});
    for (int step = 0; step < kSteps; ++step) {
      const LabelledBatch data = batch(step, {kRows, 6}, DType::f64);
      own.zero_grad();
      const Tensor loss = pipe.step({data.x}, {data.label}, loss_of);
      own.step();
      EXPECT_NEAR(loss.item<double>(), expected[static_cast<std::size_t>(step)], 1e-9);
    }
    pipe.all_gather();
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      EXPECT_LE(relative_difference(model.parameters()[i], alone.parameters()[i]), 1e-9);
    }
    optim::NamedTensors state = pipe.all_gather_state(own), whole = adam.state_dict();
    std::ranges::sort(state, {}, &std::pair<std::string, Tensor>::first);
    std::ranges::sort(whole, {}, &std::pair<std::string, Tensor>::first);
    ASSERT_EQ(state.size(), whole.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(state[i].first, whole[i].first);
      EXPECT_LE(relative_difference(state[i].second, whole[i].second), 1e-9) << state[i].first;
    }
    // Continues like the one process.
    optim::Adam resumed(model.parameters(), {.lr = 0.01});
    resumed.load_state_dict(state);
    const auto step_of = [&](nn::Sequential& net, optim::Adam& optimizer) {
      const LabelledBatch data = batch(kSteps, {kRows, 6}, DType::f64);
      optimizer.zero_grad();
      nn::cross_entropy(net(data.x), data.label).backward();
      optimizer.step();
    };
    nn::Sequential same = nn::clone(alone);
    optim::Adam same_adam(same.parameters(), {.lr = 0.01});
    same_adam.load_state_dict(adam.state_dict());
    step_of(same, same_adam);
    step_of(model, resumed);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      EXPECT_LE(relative_difference(model.parameters()[i], same.parameters()[i]), 1e-9);
    }
    pipe.eval();
    const NoGrad no_grad;
    const LabelledBatch data = batch(0, {kRows, 6}, DType::f64);
    EXPECT_LE(relative_difference(pipe(data.x), same(data.x)), 1e-9);  // on every rank
  });
}

// Each rank has only some of the gradients; the norm is that of all.
TEST_P(PipelineRanks, ClipsByTheNormOfAllStages) {
  const LabelledBatch data = batch(0, {kRows, 6}, DType::f64);
  nn::Sequential alone = net(DType::f64);
  nn::cross_entropy(alone(data.x), data.label).backward();
  const double expected = optim::clip_grad_norm(alone.parameters(), 0.125).item<double>();
  ASSERT_GT(expected, 0.25);
  in_groups(GetParam(), 3, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net(DType::f64);
    Pipeline pipe(in_stages(model, 3), {.chunks = 2, .group = shared(group)});
    pipe.step({data.x}, {data.label}, loss_of);
    EXPECT_NEAR(pipe.clip_grad_norm(0.125).item<double>(), expected, 1e-12);
    expect_gradients(pipe, alone.parameters(), 1e-9);
    EXPECT_NEAR(pipe.clip_grad_norm(1).item<double>(), 0.125, 1e-6);  // nothing left to clip
    EXPECT_WEFT_ERROR(pipe.clip_grad_norm(-1), InvalidArgument, "max_norm must not be negative");
    pipe.step({data.x}, {data.label}, loss_of);  // the group still works
  });
}

TEST_P(PipelineRanks, ClippingCountsAParameterOfTwoStagesOnce) {
  if (GetParam() != std::string("threads")) GTEST_SKIP() << "there is one process";
  nn::Linear tied(6, 6);
  Pipeline pipe({nn::Sequential{tied, nn::ReLU()}, nn::Sequential{tied, nn::Linear(6, 3)}},
                {.devices = {Device(), Device()}, .chunks = 2});
  const LabelledBatch data = batch(0, {kRows, 6}, DType::f32);
  pipe.step({data.x}, {data.label}, loss_of);
  std::vector<Tensor> all = tied.parameters();
  const std::vector<Tensor> last = pipe.stages()[1].parameters();
  all.insert(all.end(), last.begin() + 2, last.end());
  const double expected = optim::total_grad_norm(all).item<double>();
  EXPECT_EQ(pipe.clip_grad_norm(100).item<double>(), expected);
}

struct Forks : nn::Module<Forks> {
  nn::Linear fc = child("fc", nn::Linear(6, 6));
  std::vector<Tensor> forward(const Tensor& x) {
    const Tensor y = fc(x);
    return {y.transpose(0, 1), Tensor(), x * 2.0, argmax(y, 1)};
  }
};
struct Joins : nn::Module<Joins> {
  nn::Linear fc = child("fc", nn::Linear(6, 3));
  Tensor forward(const Tensor& y, const Tensor& nothing, const Tensor& x, const Tensor& place) {
    EXPECT_FALSE(nothing.defined());
    EXPECT_FALSE(x.requires_grad());
    EXPECT_TRUE(y.requires_grad() || !thread_state().grad_enabled);
    EXPECT_EQ(place.dtype(), DType::i64);
    return fc(y.transpose(0, 1) * x);
  }
};

// Strides, undefined tensors, integers and tensors without gradients arrive unchanged.
TEST_P(PipelineRanks, TensorsOfAnyKindGoBetweenStages) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const LabelledBatch data = batch(0, {4, 6}, DType::f32);
  const auto stages = [] {
    return seeded(2, [] { return std::vector<nn::AnyModule>{Forks(), Joins()}; });
  };
  const std::vector<nn::AnyModule> alone = stages();
  Pipeline one(alone,
               {.devices = {Device(), Device()}, .chunks = 2, .checkpoint = Recompute::never});
  one.step({data.x}, {data.label}, loss_of);
  in_groups(GetParam(), 2, [&](comm::ProcessGroup& group) {
    const std::vector<nn::AnyModule> own = stages();
    Pipeline pipe(own, {.chunks = 2, .checkpoint = Recompute::never, .group = shared(group)});
    // Only the first and last rank read tensors.
    const Tensor nothing = zeros({4});
    pipe.step({group.rank() == 0 ? data.x : nothing}, {group.rank() == 1 ? data.label : nothing},
              loss_of);
    const auto stage = static_cast<std::size_t>(group.rank());
    for (std::size_t i = 0; i < own[stage].parameters().size(); ++i) {
      EXPECT_TRUE(
          same_bits(own[stage].parameters()[i].grad(), alone[stage].parameters()[i].grad()));
    }
  });
}

// A skip connection is sent through the rank in between.
TEST_P(PipelineRanks, SkipConnectionsGoPastAStage) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const Tensor x = batch(0, {kRows, 1, 8, 8}, DType::f64).x;
  const auto unet = [] {
    testing::UNet made = seeded(5, [] { return testing::UNet(); });
    made.to(DType::f64);
    return made;
  };
  const auto in_three = [](const testing::UNet& whole) {
    return std::vector<nn::AnyModule>{whole.down, nn::pass_through(whole.middle, 2), whole.up};
  };
  const auto loss = [](auto y, auto target) { return nn::mse_loss(y[0], target[0]); };
  in_groups(GetParam(), 3, [&](comm::ProcessGroup& group) {
    for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
      for (const Recompute mode : {Recompute::never, Recompute::always}) {
        const Case c{schedule, mode, 3, 3};
        SCOPED_TRACE(c.text());
        PipelineOptions options{.chunks = 3, .checkpoint = mode, .schedule = schedule};
        testing::UNet alone = unet(), model = unet();
        options.devices.resize(3);
        Pipeline one(in_three(alone), options);
        options.devices.clear();
        options.group = shared(group);
        Pipeline pipe(in_three(model), options);
        EXPECT_TRUE(same_bits(pipe.step({x}, {x}, loss), one.step({x}, {x}, loss)));
        const auto own = static_cast<std::size_t>(group.rank());
        const Gradients ours = pipe.stages()[own].parameters();
        const Gradients theirs = one.stages()[own].parameters();
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(same_bits(ours[i].grad(), theirs[i].grad())) << "stage " << own;
        }
      }
    }
  });
}

TEST_P(PipelineRanks, CountsWhatItSends) {
  const LabelledBatch data = batch(0, {4, 6}, DType::f64);
  in_groups(GetParam(), 2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net(DType::f64);
    Pipeline pipe(in_stages(model, 2), {.chunks = 2, .group = shared(group)});
    pipe.step({data.x}, {data.label}, loss_of);
    const comm::Traffic before = pipe.traffic();
    pipe.step({data.x}, {data.label}, loss_of);
    const comm::Traffic after = pipe.traffic();
    // For each micro-batch a description of 4 KiB and two rows of eight numbers.
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, 2 * (4096 + 2 * 8 * 8));
    EXPECT_EQ(after.bytes_received - before.bytes_received, 2 * (4096 + 2 * 8 * 8));
    EXPECT_EQ(after.messages_sent - before.messages_sent, 4);
  });
  Pipeline alone(in_stages(net(DType::f64), 1));
  alone.step({data.x}, {data.label}, loss_of);
  EXPECT_EQ(alone.traffic().bytes_sent, 0);
}

// A user's schedule with its own sends and receives, and micro-batches out of order.
TEST_P(PipelineRanks, RunsASchedulesOwnCommunication) {
  const Schedule schedule = parse_schedule(
      "weft schedule mine stages 2 micro-batches 2\n"
      "0: F0.1 F0.0 >F0.0 >F0.1 <B0.0 <B0.1 B0.1 B0.0\n"
      "1: <F1.1 <F1.0 F1.1 F1.0 B1.0 B1.1 >B1.1 >B1.0\n");
  const LabelledBatch data = batch(0, {4, 6}, DType::f64);
  nn::Sequential alone = net(DType::f64);
  nn::cross_entropy(alone(data.x), data.label).backward();
  in_groups(GetParam(), 2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net(DType::f64);
    Pipeline pipe(in_stages(model, 2), {.actions = schedule, .group = shared(group)});
    EXPECT_EQ(pipe.schedule(2), schedule);
    pipe.step({data.x}, {data.label}, loss_of);
    expect_gradients(pipe, alone.parameters(), 1e-12);
    EXPECT_EQ(pipe.timeline().busy.size(), 1U);
    EXPECT_EQ(pipe.timeline().actions.size(), 4U);
  });
}

TEST_P(PipelineRanks, DelaysChangeNothing) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped threads(&ThreadState::num_threads, 1);
  const LabelledBatch whole = batch(0, {8, 6}, DType::f32);
  for (const std::string name : {"gpipe", "1f1b", "zb-h1"}) {
    const std::string& schedule = name;
    in_groups(GetParam(), 2, [&](comm::ProcessGroup& group) {
      Gradients first;
      for (std::uint64_t round = 0; round < 4; ++round) {
        const auto seed = 10 * round + static_cast<std::uint64_t>(group.rank());
        manual_seed(3);
        const std::vector<nn::AnyModule> stages = {
            nn::Sequential{Delay(seed), nn::Linear(6, 8), nn::Tanh()},
            nn::Sequential{nn::Linear(8, 3), Delay(seed)}};
        Pipeline pipe(stages, {.chunks = 4, .schedule = schedule, .group = shared(group)});
        pipe.step({whole.x}, {whole.label}, loss_of);
        Gradients gradients;
        for (const Tensor& p : stages[static_cast<std::size_t>(group.rank())].parameters()) {
          gradients.push_back(p.grad());
        }
        if (round == 0) first = gradients;
        for (std::size_t i = 0; i < first.size(); ++i) {
          EXPECT_TRUE(same_bits(gradients[i], first[i])) << schedule << ", parameter " << i;
        }
      }
    });
  }
}

// Has dropout, and counts its calls: recomputing must draw the same numbers and count nothing.
TEST_P(PipelineRanks, RecomputingDrawsTheSameNumbersAndCountsNothing) {
  const LabelledBatch data = batch(0, {6, 6}, DType::f32);
  in_groups(GetParam(), 2, [&](comm::ProcessGroup& group) {
    std::vector<Gradients> seen;
    for (const Recompute mode : {Recompute::never, Recompute::always}) {
      manual_seed(7);
      const auto shape = [](std::int64_t n) { return nn::Unflatten(1, {n, 1, 1}); };
      const std::vector<nn::AnyModule> stages = {
          nn::Sequential{nn::Linear(6, 8), shape(8), nn::BatchNorm2d(8), nn::Dropout(0.5)},
          nn::Sequential{nn::BatchNorm2d(8), nn::Flatten(), nn::Dropout(0.5), nn::Linear(8, 3)}};
      Pipeline pipe(stages, {.chunks = 2, .checkpoint = mode, .group = shared(group)});
      manual_seed(9);
      pipe.step({data.x}, {data.label}, loss_of);
      const nn::AnyModule& own = stages[static_cast<std::size_t>(group.rank())];
      Gradients& values = seen.emplace_back();
      for (const Tensor& p : own.parameters()) values.push_back(p.grad());
      for (const auto& [name, x] : own.named_buffers()) {
        if (name.ends_with("num_batches_tracked")) {
          EXPECT_EQ(x.item<std::int64_t>(), 2) << name;
        }
        values.push_back(x);
      }
      pipe.all_gather();  // including the buffers of the other stage
      for (const auto& [name, x] :
           stages[static_cast<std::size_t>(1 - group.rank())].named_buffers()) {
        if (name.ends_with("num_batches_tracked")) {
          EXPECT_EQ(x.item<std::int64_t>(), 2) << name;
        }
      }
    }
    for (std::size_t i = 0; i < seen[0].size(); ++i) {
      EXPECT_LE(relative_difference(seen[0][i], seen[1][i]), 1e-5);
      EXPECT_GT(raw::norm(seen[0][i].to(DType::f64)).item<double>(), 0) << i;
    }
  });
}

// Buffers become those of the first pipeline, with trained parameters and without.
TEST_P(PipelineRanks, ReplicasShareWhatIsNotTrained) {
  in_groups(GetParam(), 2, [&](comm::ProcessGroup& group) {
    manual_seed(static_cast<std::uint64_t>(group.rank()));
    nn::Sequential frozen{nn::Linear(6, 8), nn::Unflatten(1, {8, 1, 1}),
                          nn::BatchNorm2d(8, {.affine = false}), nn::Flatten()};
    for (const Tensor& p : frozen.parameters()) p.set_requires_grad(false);
    nn::Linear head(8, 3);
    Pipeline pipe({frozen, head},
                  {.devices = {Device(), Device()}, .chunks = 2, .replicas = shared(group)});
    const LabelledBatch data = batch(group.rank(), {4, 6}, DType::f32);
    for (int step = 0; step < 2; ++step) pipe.step({data.x}, {data.label}, loss_of);
    // Before the second step all get what the first pipeline has counted.
    pipe.eval();
    const Tensor first = raw::clone(frozen.parameters()[0]);
    group.broadcast(first, 0).wait();
    EXPECT_TRUE(same_bits(first, frozen.parameters()[0]));
    EXPECT_WEFT_ERROR(pipe(data.x), Unsupported, "goes by step()");
    const Tensor mean = raw::clone(frozen.named_buffers()[0].second), other = raw::clone(mean);
    group.broadcast(other, 0).wait();
    pipe.train();
    // It starts from the first pipeline's, so the same batch gives the same result everywhere.
    const LabelledBatch same = batch(9, {4, 6}, DType::f32);
    pipe.step({same.x}, {same.label}, loss_of);
    const Tensor now = raw::clone(frozen.named_buffers()[0].second);
    group.broadcast(now, 0).wait();
    EXPECT_TRUE(same_bits(now, frozen.named_buffers()[0].second));
    if (group.rank() == 1) {
      EXPECT_FALSE(same_bits(mean, other));
    }
    EXPECT_EQ(frozen.named_buffers().back().second.item<std::int64_t>(), 6);
    EXPECT_TRUE(head.weight.grad().defined());
    frozen.parameters()[0].set_requires_grad();
    EXPECT_WEFT_ERROR(pipe.step({same.x}, {same.label}, loss_of), InvalidArgument,
                      "parameter 0.weight requires a gradient now");
  });
}

TEST_P(PipelineRanks, ReplicasCannotAverageWhatTwoStagesShare) {
  in_groups(GetParam(), 2, [](comm::ProcessGroup& group) {
    nn::Linear tied(6, 6);
    const auto in_two_stages = [&] {
      Pipeline({nn::Sequential{tied, nn::ReLU()}, nn::Sequential{tied, nn::Linear(6, 3)}},
               {.devices = {Device(), Device()}, .chunks = 2, .replicas = shared(group)});
    };
    EXPECT_WEFT_ERROR(in_two_stages(), InvalidArgument,
                      "parameter 0.weight of stage 1 is one of stage 0, too, which replicas");
    for (const Tensor& p : tied.parameters()) p.set_requires_grad(false);
    in_two_stages();
  });
}

// --- Errors --------------------------------------------------------------------------------------

TEST_P(PipelineRanks, AReplicaAloneGoesOnAfterAnError) {
  in_groups(GetParam(), 1, [](comm::ProcessGroup& group) {
    Pipeline pipe({nn::Linear(6, 8), nn::Linear(8, 3)},
                  {.devices = {Device(), Device()}, .chunks = 2, .replicas = shared(group)});
    const LabelledBatch data = batch(0, {4, 6}, DType::f32);
    const auto fails = [](auto, auto) -> Tensor { WEFT_THROW(InvalidArgument, "test", "its own"); };
    EXPECT_WEFT_ERROR(pipe.step({data.x}, {data.label}, fails), InvalidArgument, "its own");
    pipe.step({data.x}, {data.label}, loss_of);
  });
}

// Runs f on each rank and returns each rank's error.
std::vector<std::string> errors_of(const std::string& backend, int ranks,
                                   const std::function<void(comm::ProcessGroup&)>& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  in_groups(backend, ranks, [&](comm::ProcessGroup& group) {
    try {
      f(group);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(group.rank())] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
  });
  return errors;
}

TEST_P(PipelineRanks, AllRanksHearOfAnotherSchedule) {
  const auto errors = errors_of(GetParam(), 2, [](comm::ProcessGroup& group) {
    nn::Sequential model = net(DType::f32);
    Pipeline(in_stages(model, 2), {.chunks = group.rank() + 2, .group = shared(group)});
  });
  for (const std::string& error : errors) {
    EXPECT_HAS(error, "InvalidArgument");
    EXPECT_HAS(error, "rank 1 runs another pipeline than rank 0");
    EXPECT_HAS(error, "micro-batches 3");
  }
}

TEST_P(PipelineRanks, AllRanksHearOfAnotherModelOrWhatOneRankCannot) {
  const auto other_model = errors_of(GetParam(), 2, [](comm::ProcessGroup& group) {
    const std::vector<nn::AnyModule> stages = {nn::Linear(6, 8 + group.rank()), nn::Linear(8, 3)};
    Pipeline(stages, {.group = shared(group)});
  });
  const auto no_device = errors_of(GetParam(), 2, [](comm::ProcessGroup& group) {
    const Device device(DeviceType::cpu, group.rank() == 1 ? 63 : 0);
    Pipeline(in_stages(net(DType::f32), 2), {.devices = {device}, .group = shared(group)});
  });
  EXPECT_HAS(no_device[0], "rank 1: ");
  EXPECT_EQ(no_device[1].find("Device: "), 0U) << no_device[1];
  for (const std::string& error : other_model) {
    EXPECT_HAS(error,
               "rank 1 runs another pipeline than rank 0: it has \"parameter weight f32 "
               "[9,6]");
  }
}

TEST_P(PipelineRanks, AParameterIsOnOneRank) {
  in_groups(GetParam(), 2, [](comm::ProcessGroup& group) {
    nn::Linear tied(6, 6);
    const std::vector<nn::AnyModule> stages = {nn::Sequential{tied, nn::ReLU()},
                                               nn::Sequential{tied, nn::Linear(6, 3)}};
    EXPECT_WEFT_ERROR(Pipeline(stages, {.group = shared(group)}), InvalidArgument,
                      "parameter 0.weight of stage 1 is one of stage 0, too");
  });
}

TEST_P(PipelineRanks, NeedsAsManyRanksAsLists) {
  in_groups(GetParam(), 2, [](comm::ProcessGroup& group) {
    EXPECT_WEFT_ERROR(Pipeline(in_stages(net(DType::f32), 3), {.group = shared(group)}),
                      InvalidArgument, "got a group of 2 ranks, the schedule is for 3");
    PipelineOptions two{.devices = {Device(), Device()}, .group = shared(group)};
    EXPECT_WEFT_ERROR(Pipeline(in_stages(net(DType::f32), 2), two), Device, "got 2 devices");
  });
}

TEST_P(PipelineRanks, WithGradientsItGoesByStep) {
  in_groups(GetParam(), 2, [](comm::ProcessGroup& group) {
    Pipeline pipe(in_stages(net(DType::f32), 2), {.group = shared(group)});
    EXPECT_WEFT_ERROR(pipe(zeros({2, 6})), Unsupported, "goes by step()");
  });
}

TEST_P(PipelineRanks, AStageThatDoesNotFitIsNamedBeforeTheFirstBatch) {
  const auto errors = errors_of(GetParam(), 3, [](comm::ProcessGroup& group) {
    const std::vector<nn::AnyModule> stages = {nn::Linear(6, 8), nn::Linear(8, 4),
                                               nn::Linear(5, 3)};
    Pipeline pipe(stages, {.chunks = 2, .group = shared(group)});
    pipe.step({zeros({4, 6})}, {zeros({4}, DType::i64)}, loss_of);
  });
  EXPECT_HAS(errors[2], "Shape: ");
  EXPECT_HAS(errors[2], "stage 2 on cpu:0, tried with 2 rows");
  for (const int rank : {0, 1}) {  // it notices by a closed connection, or by the loss
    EXPECT_TRUE(errors[static_cast<std::size_t>(rank)].starts_with("PeerFailed") ||
                errors[static_cast<std::size_t>(rank)].starts_with("Comm"))
        << errors[static_cast<std::size_t>(rank)];
  }
}

// Fails at its third call: the second micro-batch after the row used for trying.
struct FailsLater : nn::Module<FailsLater> {
  nn::Linear fc = child("fc", nn::Linear(8, 8));
  int calls = 0;
  Tensor forward(const Tensor& x) {
    if (++calls == 3) throw std::runtime_error("no more");
    return fc(x);
  }
};

TEST_P(PipelineRanks, AFailingMicroBatchEndsAllRanks) {
  const auto errors = errors_of(GetParam(), 3, [](comm::ProcessGroup& group) {
    const std::vector<nn::AnyModule> stages = {nn::Linear(6, 8), FailsLater(), nn::Linear(8, 3)};
    Pipeline pipe(stages, {.chunks = 4, .schedule = "1f1b", .group = shared(group)});
    try {
      pipe.step({zeros({8, 6})}, {zeros({8}, DType::i64)}, loss_of);
      FAIL() << "no error";
    } catch (const Error& error) {
      throw;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(group.rank(), 1);
      WEFT_THROW(InvalidArgument, "test", error.what());
    }
  });
  EXPECT_HAS(errors[1], "no more");
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(errors[static_cast<std::size_t>(rank)].starts_with("PeerFailed") ||
                errors[static_cast<std::size_t>(rank)].starts_with("Comm"))
        << errors[static_cast<std::size_t>(rank)];
  }
}

TEST_P(PipelineRanks, BatchesOfAnotherSizeAreNoticed) {
  const auto errors = errors_of(GetParam(), 2, [](comm::ProcessGroup& group) {
    Pipeline pipe(in_stages(net(DType::f32), 2), {.chunks = 2, .group = shared(group)});
    pipe.step({zeros({4, 6})}, {zeros({4}, DType::i64)}, loss_of);
    const std::int64_t rows = group.rank() == 0 ? 6 : 4;
    pipe.step({zeros({rows, 6})}, {zeros({rows}, DType::i64)}, loss_of);
  });
  EXPECT_HAS(errors[1], "expected >F0.0 of a batch of 4 rows, got >F0.0 of 6 rows");
  EXPECT_FALSE(errors[0].empty());
}

TEST_P(PipelineRanks, NoRowsAndOneRow) {
  in_groups(GetParam(), 2, [](comm::ProcessGroup& group) {
    nn::Sequential model = net(DType::f32);
    Pipeline pipe(in_stages(model, 2), {.chunks = 4, .group = shared(group)});
    const auto sum = [](std::span<const Tensor> y, std::span<const Tensor>) { return y[0].sum(); };
    EXPECT_EQ(pipe.step({zeros({0, 6})}, {zeros({0})}, sum).item<double>(), 0);
    const LabelledBatch one = batch(0, {1, 6}, DType::f32);
    EXPECT_GT(pipe.step({one.x}, {one.label}, loss_of).item<double>(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineRanks,
                         ::testing::Values("threads", "ring", "gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft::parallel
