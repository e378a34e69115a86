// The engines that cut parameters, states and layers, and the collectives on the tape, with ranks
// on emulated GPUs; fully_shard alone is in comm_test.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/gpu/gpu_ranks.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"
#include "weft/tests/parallel/tensor_nets.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/recorder.h"
#include "weft/weft.h"

namespace weft {
namespace {

using comm::ProcessGroup;
using testing::gpu_of;
using testing::in_groups;
using testing::Net;
using testing::text;
using Text = std::pair<Tensor, Tensor>;

std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device()), y = b.to(Device());
  return raw::norm(raw::sub(x, y)).item<double>() / (raw::norm(y).item<double>() + 1e-30);
}

void expect_near(const nn::NamedTensors& got, const nn::NamedTensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(difference(got[i].second, expected[i].second), 1e-9) << got[i].first;
  }
}

Text on(Device device, const Text& data) { return {data.first.to(device), data.second.to(device)}; }

/// Cuts each layer that has parameters, then the rest.
parallel::FullySharded cut_layers(nn::Sequential& model, ProcessGroup& group,
                                  const parallel::FullyShardOptions& options = {}) {
  model.apply([&](nn::ModuleBase& m) {
    if (!m.name().empty() && !m.parameters().empty()) parallel::fully_shard(m, group, options);
  });
  return parallel::fully_shard(model, group, options);
}

class Sharding : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OnGpus, Sharding,
                         ::testing::Values("threads", "shm", "nccl", "nccl-ring"));

// Each operation, and the gradient of its argument, as on the host.
TEST_P(Sharding, CollectivesOnTheTapeGiveWhatTheyGiveOnTheHost) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const auto results = [&](Device device) {
      const parallel::Collectives ranks(group.duplicate());
      Generator generator(static_cast<std::uint64_t>(7 + group.rank()));
      std::vector<Tensor> all;
      const auto run = [&](const auto& operation) {
        const Tensor x = uniform({2, 6}, -1, 1, DType::f64, &generator).to(device);
        x.set_requires_grad();
        const Tensor y = operation(x);
        (y * y).sum().backward();
        all.push_back(y.detach());
        all.push_back(x.grad());
      };
      run([&](const Tensor& x) { return ranks.all_reduce(x); });
      run([&](const Tensor& x) { return ranks.all_gather(x); });
      run([&](const Tensor& x) { return ranks.reduce_scatter(x); });
      run([&](const Tensor& x) { return ranks.all_to_all(x); });
      run([&](const Tensor& x) { return ranks.broadcast(x, 1); });
      run([&](const Tensor& x) { return ranks.reduce_from(x * x); });
      run([&](const Tensor& x) { return ranks.gather_from(x, 1); });
      run([&](const Tensor& x) { return ranks.split_to(ranks.reduce_from(x), 1); });
      run([&](const Tensor& x) { return ranks.reduce_from(ranks.copy_to(ranks.all_reduce(x))); });
      all.push_back(ranks.max_of(all[0]));
      return all;
    };
    const std::vector<Tensor> got = results(gpu_of(group.rank())), expected = results(Device());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(difference(got[i], expected[i]), 1e-14) << i;
    }
  });
}

// ZeRO-1 under DDP: the weights of the plain optimiser.
TEST_P(Sharding, ZeroIsThePlainOptimizer) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Sequential model = testing::seeded(3, testing::cnn),
                   plain = testing::seeded(3, testing::cnn);
    model.to(device), plain.to(device);
    const auto own = group.duplicate(), other = group.duplicate();
    parallel::DistributedDataParallel ddp(model, own), plain_ddp(plain, other);
    parallel::ZeroRedundancyOptimizer zero(optim::Adam(model.parameters(), {.lr = 0.01}), group);
    optim::Adam adam(plain.parameters(), {.lr = 0.01});
    for (int step = 0; step < 5; ++step) {
      const auto data = testing::batch(step, {4, 1, 8, 8}, DType::f32).shard(group.rank(), 2);
      const Tensor x = data.x.to(device), label = data.label.to(device);
      zero.zero_grad(), adam.zero_grad();
      nn::cross_entropy(ddp(x), label).backward();
      nn::cross_entropy(plain_ddp(x), label).backward();
      zero.step(), adam.step();
    }
    const auto got = model.parameters(), expected = plain.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(equal(got[i], expected[i])) << i;
    EXPECT_EQ(zero.state_dict().size(), adam.state_dict().size());
  });
}

// With dropout, whose masks are those of one GPU with the same seed; but ranks that share a GPU
// share a generator.
TEST_P(Sharding, TensorParallelIsOneGpu) {
  const double p = device_count(DeviceType::cuda) < 2 ? 0 : 0.2;
  for (const bool sequence : {false, true}) {
    in_groups(GetParam(), 2, [&](ProcessGroup& group) {
      const Device device = gpu_of(group.rank());
      Net plain = testing::seeded(3, [&] { return Net(p); });
      Net net = testing::seeded(3, [&] { return Net(p); });
      plain.to(device), net.to(device);
      const auto tp = parallel::parallelize(net, group, testing::plan_of(sequence));
      const auto generators = group.all_gather_object(default_generator(device).state());
      EXPECT_EQ(generators[0], generators[1]);
      optim::SGD sgd(net.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        const Text data = on(device, text(i));
        const auto step = [&](optim::SGD& optimizer, const auto& loss_of) {
          default_generator(device).manual_seed(static_cast<std::uint64_t>(i));
          optimizer.zero_grad();
          const Tensor loss = loss_of();
          loss.backward();
          optimizer.step();
          return loss.template item<double>();
        };
        const double expected = step(plain_sgd, [&] { return testing::loss_of_all(plain, data); });
        EXPECT_NEAR(step(sgd, [&] { return testing::loss_of_part(net, tp, data); }), expected,
                    1e-9);
      }
      EXPECT_GT(tp.clip_grad_norm(1e6).item<double>(), 0);
      expect_near(tp.state_dict(), plain.state_dict());
    });
  }
}

// Each GPU has a part of every sequence.
TEST_P(Sharding, ContextParallelIsOneGpu) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    Net plain = testing::seeded(3, [] { return Net(0); });
    Net net = testing::seeded(3, [] { return Net(0); });
    plain.to(device), net.to(device);
    parallel::context_parallel(net, group);
    net.first_place = group.rank() * (testing::kLength / 2);
    parallel::DistributedDataParallel ddp(net, group.duplicate());
    const Text data = on(device, text(0));
    testing::loss_of_all(plain, data).backward();
    const auto own = [&](const Tensor& all) { return parallel::part_of_sequence(all, group, 1); };
    const Tensor logits = ddp(own(data.first));
    nn::cross_entropy(logits.flatten(0, 1), own(data.second).flatten()).backward();
    const auto got = net.parameters(), expected = plain.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(difference(got[i].grad(), expected[i].grad()), 1e-9) << i;
    }
  });
}

// Gathered and computed in bf16, reduced in f32: what one does by hand with rounded weights.
TEST_P(Sharding, MixedPrecisionIsDoneByHandBitForBit) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Sequential model = testing::seeded(3, testing::cnn),
                   plain = testing::seeded(3, testing::cnn);
    model.to(device), plain.to(device);
    nn::Sequential half = nn::clone(plain);
    half.to(DType::bf16);
    const auto sharded = cut_layers(
        model, group, {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}});
    optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1, .momentum = 0.9});
    const std::vector<Tensor> whole = plain.parameters(), rounded = half.parameters();
    for (int step = 0; step < 4; ++step) {
      const auto data = testing::batch(step, {4, 1, 8, 8}, DType::f32).shard(group.rank(), 2);
      const Tensor x = data.x.to(device), label = data.label.to(device);
      sgd.zero_grad(), half.zero_grad();
      const Tensor loss = nn::cross_entropy(model(x), label);
      loss.backward();
      for (std::size_t i = 0; i < whole.size(); ++i) raw::copy_(rounded[i], whole[i]);
      const Tensor expected = nn::cross_entropy(half(x.to(DType::bf16)), label);
      expected.backward();
      EXPECT_TRUE(equal(loss, expected)) << step;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const Tensor mean = raw::mul(raw::to(rounded[i].grad(), DType::f32), 0.5);
        group.all_reduce(mean).wait();
        whole[i].set_grad(mean);
      }
      sgd.step(), plain_sgd.step();
      const nn::NamedTensors got = sharded.state_dict();
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(equal(got[i].second, whole[i].to(Device()))) << step << ' ' << got[i].first;
      }
    }
  });
}

// Two copies of a model, each cut into two parts: the mean is over all four GPUs.
TEST_P(Sharding, ReplicasOfPartsAreOneProcess) {
  const auto make = [](std::uint64_t seed) {
    nn::Sequential net = testing::seeded(seed, testing::cnn);
    net.to(DType::f64);
    return net;
  };
  in_groups(GetParam(), 4, [&](ProcessGroup& group) {
    const comm::Mesh mesh(shared(group), {{"replica", 2}, {"shard", 2}});
    const Device device = gpu_of(group.rank());
    // Those of rank 0 count.
    nn::Sequential model = make(3 + static_cast<std::uint64_t>(group.rank())), plain = make(3);
    model.to(device);
    const auto sharded = cut_layers(model, *mesh["shard"], {.replicas = mesh["replica"]});
    optim::Adam adam(model.parameters(), {.lr = 0.01}),
        plain_adam(plain.parameters(), {.lr = 0.01});
    for (int i = 0; i < 3; ++i) {
      const auto data = testing::batch(i, {8, 1, 8, 8}, DType::f64);
      const auto part = data.shard(group.rank(), 4);
      adam.zero_grad(), plain_adam.zero_grad();
      nn::cross_entropy(model(part.x.to(device)), part.label.to(device)).backward();
      nn::cross_entropy(plain(data.x), data.label).backward();
      EXPECT_NEAR(sharded.clip_grad_norm(0.1).item<double>(),
                  optim::clip_grad_norm(plain.parameters(), 0.1).item<double>(), 1e-9);
      adam.step(), plain_adam.step();
    }
    expect_near(sharded.state_dict(), plain.state_dict());
  });
}

// Layers that are cut twice, on a mesh of two axes.
TEST_P(Sharding, FullyShardedPartsOfLayersAreOneProcess) {
  for (const bool sequence : {false, true}) {
    in_groups(GetParam(), 4, [&](ProcessGroup& group) {
      const comm::Mesh mesh(shared(group), {{"dp", 2}, {"tp", 2}});
      const Device device = gpu_of(group.rank());
      Net plain = testing::seeded(3, [] { return Net(0); });
      Net net = testing::seeded(3, [] { return Net(0); });
      net.to(device);
      const auto tp = parallel::parallelize(net, *mesh["tp"], testing::plan_of(sequence));
      for (testing::Block& block : net.blocks) parallel::fully_shard(block, mesh["dp"]);
      const auto sharded = parallel::fully_shard(net, mesh["dp"]);
      optim::Adam adam(net.parameters(), {.lr = 0.01}),
          plain_adam(plain.parameters(), {.lr = 0.01});
      for (int i = 0; i < 2; ++i) {
        const auto [x, y] = text(i);
        const auto d = static_cast<std::size_t>(mesh.coordinate("dp"));
        adam.zero_grad(), plain_adam.zero_grad();
        testing::loss_of_part(net, tp, on(device, {x.chunk(2)[d], y.chunk(2)[d]})).backward();
        testing::loss_of_all(plain, {x, y}).backward();
        EXPECT_NEAR(sharded.clip_grad_norm(0.1).item<double>(),
                    optim::clip_grad_norm(plain.parameters(), 0.1).item<double>(), 1e-9);
        adam.step(), plain_adam.step();
      }
      expect_near(sharded.state_dict(), plain.state_dict());
    });
  }
}

// Each stage is cut over the other axis: gathered once a batch, and reduced once.
TEST_P(Sharding, CutStagesOfPipelinesAreOneProcess) {
  const auto make = [](std::size_t count) {
    std::vector<nn::Sequential> stages = testing::seeded(5, [&] {
      std::vector<nn::Sequential> layers;
      for (std::size_t s = 1; s < count; ++s) layers.push_back({nn::Linear(6, 6), nn::Tanh()});
      layers.push_back({nn::Linear(6, 3)});
      return layers;
    });
    for (nn::Sequential& stage : stages) stage.to(DType::f64);
    return stages;
  };
  const auto loss_of = [](std::span<const Tensor> y, std::span<const Tensor> target) {
    return nn::cross_entropy(y[0], target[0]);
  };
  for (const std::string& schedule : parallel::schedule_names()) {
    SCOPED_TRACE(schedule);
    in_groups(GetParam(), 4, [&](ProcessGroup& group) {
      const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}});
      const Device device = gpu_of(group.rank());
      const auto count = static_cast<std::size_t>(2 * parallel::stages_per_device(schedule));
      std::vector<nn::Sequential> plain = make(count), stages = make(count);
      std::vector<std::pair<std::size_t, parallel::FullySharded>> cut;
      std::vector<Tensor> parts, whole;
      const auto make_stage = [&](std::size_t s) {
        stages[s].to(device);
        cut.emplace_back(s, parallel::fully_shard(stages[s], mesh["dp"]));
        for (const Tensor& x : stages[s].parameters()) parts.push_back(x);
        return nn::AnyModule(stages[s]);
      };
      for (const nn::Sequential& stage : plain) {
        for (const Tensor& x : stage.parameters()) whole.push_back(x);
      }
      parallel::Pipeline pipe(
          count, make_stage,
          {.devices = {device}, .chunks = 4, .schedule = schedule, .group = mesh["pp"]});
      optim::Adam adam(parts, {.lr = 0.01}), plain_adam(whole, {.lr = 0.01});
      for (int i = 0; i < 2; ++i) {
        const auto data = testing::batch(i, {16, 6}, DType::f64);
        const auto part = data.shard(mesh.coordinate("dp"), 2);
        adam.zero_grad(), plain_adam.zero_grad();
        pipe.step({part.x}, {part.label}, loss_of);
        Tensor y = data.x;
        for (nn::Sequential& stage : plain) y = stage(y);
        nn::cross_entropy(y, data.label).backward();
        EXPECT_NEAR(pipe.clip_grad_norm(0.1).item<double>(),
                    optim::clip_grad_norm(whole, 0.1).item<double>(), 1e-9);
        adam.step(), plain_adam.step();
      }
      for (const auto& [s, sharded] : cut) expect_near(sharded.state_dict(), plain[s].state_dict());
    });
  }
}

// dp x pp x tp: rows of the parts of layers that each stage has.
TEST_P(Sharding, StagesOfPartsOfLayersAreOneProcess) {
  const auto make = [] {
    return testing::seeded(3, [] {
      std::vector<testing::Block> blocks = {testing::Block(0), testing::Block(0)};
      for (testing::Block& block : blocks) block.to(DType::f64);
      return blocks;
    });
  };
  const auto loss_of = [](std::span<const Tensor> y, std::span<const Tensor> target) {
    return nn::mse_loss(y[0], target[0]);
  };
  for (const auto& [sequence, schedule] : {std::pair(false, "1f1b"), {true, "zb-h1"}}) {
    SCOPED_TRACE(schedule);
    const parallel::Layout layout =
        sequence ? parallel::Layout(parallel::Shard{1}) : parallel::Layout(parallel::Replicate{});
    parallel::ParallelPlan plan = {{"attention", parallel::HeadParallel{layout, layout}},
                                   {"fc1", parallel::ColwiseParallel{.input = layout}},
                                   {"fc2", parallel::RowwiseParallel{.output = layout}}};
    if (sequence) plan.push_back({"norm*", parallel::SequenceParallel{}});
    in_groups(GetParam(), 8, [&, of_sequences = sequence, name = schedule](ProcessGroup& group) {
      const comm::Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}, {"tp", 2}});
      const auto d = static_cast<std::size_t>(mesh.coordinate("dp")),
                 p = static_cast<std::size_t>(mesh.coordinate("pp")),
                 t = static_cast<std::size_t>(mesh.coordinate("tp"));
      const Device device = gpu_of(group.rank());
      std::vector<testing::Block> plain = make();
      testing::Block own = make()[p];
      own.to(device);
      parallel::parallelize(own, *mesh["tp"], plan);
      const auto sharded = parallel::fully_shard(own, mesh["dp"]);
      parallel::Pipeline pipe(
          2, [&](std::size_t) { return nn::AnyModule(own); },
          {.devices = {device}, .chunks = 2, .schedule = name, .group = mesh["pp"]});
      std::vector<Tensor> all;
      for (const testing::Block& block : plain) {
        for (const Tensor& x : block.parameters()) all.push_back(x);
      }
      optim::Adam adam(own.parameters(), {.lr = 0.01}), plain_adam(all, {.lr = 0.01});
      for (int i = 0; i < 2; ++i) {
        const Shape shape = {4, testing::kLength, testing::kWidth};
        const Tensor x = testing::batch(i, shape, DType::f64).x,
                     y = testing::batch(i + 50, shape, DType::f64).x;
        const auto part = [&](const Tensor& of) {
          const Tensor rows = of.chunk(2)[d];
          return of_sequences ? rows.chunk(2, 1)[t] : rows;
        };
        adam.zero_grad(), plain_adam.zero_grad();
        pipe.step({part(x)}, {part(y)}, loss_of);
        // Each of two ranks has the mean over its part of the sequences, and gradients of the sum.
        if (of_sequences) {
          for (const Tensor& parameter : own.parameters()) raw::mul_(parameter.grad(), 0.5);
        }
        nn::mse_loss(plain[1](plain[0](x)), y).backward();
        EXPECT_NEAR(pipe.clip_grad_norm(0.1).item<double>(),
                    optim::clip_grad_norm(all, 0.1).item<double>(), 1e-9);
        adam.step(), plain_adam.step();
      }
      expect_near(sharded.state_dict(), plain[p].state_dict());
    });
  }
}

/// Goes on with the checkpoint in `folder`, if there is one, up to so many steps, and saves.
template <class Model, class State, class LossOf>
void train_up_to(int steps, const testing::TempFolder& folder, Model& model, State& state,
                 optim::Optimizer& optimizer, const LossOf& loss_of,
                 const train::Ranks& ranks = {}) {
  train::Options options;
  options.example = "parts";
  options.out = folder.path("out");
  options.batch_size = 4;
  options.epochs = steps;  // of one step
  options.resume = "latest";
  data::DataLoader loader(testing::Numbers{4}, {.batch_size = 4});
  train::Recorder recorder(options, ranks);
  recorder.resume(model, loader, state);
  while (recorder.next_epoch()) {
    for ([[maybe_unused]] auto& batch : recorder.batches(loader)) {
      const Tensor loss = loss_of(static_cast<int>(recorder.steps()));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      recorder.step(loss);
    }
    recorder.save(model, loader, state);
  }
}

train::Ranks ranks_of(ProcessGroup& group) {
  return {.rank = group.rank(),
          .size = group.size(),
          .backend = group.backend(),
          .gather = [&](const std::string& text) { return group.all_gather_object(text); }};
}

// One step with parts of rows, one with parts of layers, and one of a process on the host.
TEST_P(Sharding, ACheckpointInPartsGoesOnInAnyLayout) {
  const testing::TempFolder folder, other;
  const auto make = [](std::uint64_t seed) { return testing::seeded(seed, [] { return Net(0); }); };
  in_groups(GetParam(), 2, [&](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    Net net = make(3);
    net.to(device);
    for (testing::Block& block : net.blocks) parallel::fully_shard(block, group);
    auto sharded = parallel::fully_shard(net, group);
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    auto state = sharded.state_of(adam);
    const auto loss = [&](int i) { return testing::loss_of_all(net, on(device, text(i))); };
    train_up_to(1, folder, sharded, state, adam, loss, ranks_of(group));
  });
  if (IsSkipped()) return;
  in_groups(GetParam(), 2, [&](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    Net net = make(4);
    net.to(device);
    auto tp = parallel::parallelize(net, group, testing::plan_of(true));
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    auto state = tp.state_of(adam);
    const auto loss = [&](int i) { return testing::loss_of_part(net, tp, on(device, text(i))); };
    train_up_to(2, folder, tp, state, adam, loss, ranks_of(group));
  });
  const auto on_host = [&](const testing::TempFolder& where, std::uint64_t seed) {
    Net net = make(seed);
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    train_up_to(3, where, net, adam, adam,
                [&](int i) { return testing::loss_of_all(net, text(i)); });
    return net.state_dict();
  };
  expect_near(on_host(folder, 5), on_host(other, 3));
}

// Weights that have channels last on a GPU are row-major in files and on the host.
TEST_P(Sharding, ACheckpointInPartsOfConvolutionsGoesOnOnTheHost) {
  const testing::TempFolder folder, other;
  const auto make = [](std::uint64_t seed) {
    nn::Sequential net = testing::seeded(seed, testing::cnn);
    net.to(DType::f64);
    return net;
  };
  const auto loss_of = [](nn::Sequential& net, int i, Device device) {
    const auto data = testing::batch(i, {4, 1, 8, 8}, DType::f64);
    return nn::cross_entropy(net(data.x.to(device)), data.label.to(device));
  };
  in_groups(GetParam(), 2, [&](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Sequential net = make(3);
    net.to(device);
    auto sharded = cut_layers(net, group);
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    auto state = sharded.state_of(adam);
    train_up_to(
        1, folder, sharded, state, adam, [&](int i) { return loss_of(net, i, device); },
        ranks_of(group));
  });
  if (IsSkipped()) return;
  const auto on_host = [&](const testing::TempFolder& where, std::uint64_t seed) {
    nn::Sequential net = make(seed);
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    train_up_to(2, where, net, adam, adam, [&](int i) { return loss_of(net, i, Device()); });
    return net.state_dict();
  };
  expect_near(on_host(folder, 5), on_host(other, 3));
}

/// NCCL's own messages do not say what they are: of as many bytes it takes one for the other.
class ShardingOnNccl : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr comm::ProcessGroupOptions kChecks{.timeout = std::chrono::seconds(30),
                                                     .check_fingerprints = true};

  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Comm) << error.what();
      return error.what();
    }
    return "no error";
  }
};
INSTANTIATE_TEST_SUITE_P(OnGpus, ShardingOnNccl, ::testing::Values("nccl", "nccl-ring"));

TEST_P(ShardingOnNccl, RanksInDifferentModulesAreNamed) {
  const auto run = [](ProcessGroup& group) {
    const parallel::Collectives ranks(group.duplicate());
    const Tensor x = ones({2, 3}, {DType::f32, gpu_of(group.rank())});
    EXPECT_EQ(ranks.all_reduce(x).to_vector<float>(), std::vector<float>(6, 2));
    const std::string text = error_of([&] {
      const PathScope module(group.rank() == 0 ? "first" : "second");
      ranks.all_reduce(x);
    });
    const std::string what = "all_reduce of 6 f32 (all_reduce of f32 [2,3]) in ";
    EXPECT_HAS(text, "rank 0 calls " + what + "first, rank 1 calls " + what + "second;");
  };
  in_groups(GetParam(), 2, run, kChecks);
}

TEST_P(ShardingOnNccl, RanksThatGatherDifferentUnitsAreNamed) {
  const auto run = [](ProcessGroup& group) {
    nn::Sequential model{nn::Linear(4, 4), nn::Linear(4, 4)};
    const Device device = gpu_of(group.rank());
    model.to(device);
    cut_layers(model, group);
    const NoGrad no_grad;
    const Tensor x = ones({2, 4}, {DType::f32, device});
    model(x);
    const std::string text = error_of([&] { model[group.rank() == 0 ? 0 : 1](x); });
    EXPECT_HAS(text, "rank 0 calls all_gather of 10 f32 (0)");
    EXPECT_HAS(text, "rank 1 calls all_gather of 10 f32 (1)");
  };
  in_groups(GetParam(), 2, run, kChecks);
}

// An index that is no row is reported as the lookup of one GPU reports it.
TEST_P(Sharding, AWordThatIsNone) {
  in_groups(GetParam(), 2, [](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    nn::Embedding words(5, 3);
    words.to(device);
    parallel::parallelize(words, group, {{"", parallel::VocabParallel{}}});
    const NoGrad no_grad;
    const Tensor y = words(from_vector<std::int64_t>({0, 4}, {2}).to(device));
    EXPECT_EQ(y.to(Device()).shape(), (Shape{2, 3}));
    const auto look_up_none = [&] {
      const Tensor z = words(from_vector<std::int64_t>({0, 5}, {2}).to(device));
      z.to(Device());
    };
    EXPECT_WEFT_ERROR(look_up_none(), InvalidArgument, "index");
  });
}

}  // namespace
}  // namespace weft
