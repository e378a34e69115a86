// fully_shard and parallelize compared with PyTorch's fully_shard and parallelize_module with Gloo,
// in f64: write_sharding_goldens.py has the same runs, models and batches.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/mesh.h"
#include "weft/examples/char_transformer.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/vocab_loss.h"
#include "weft/tests/parallel/golden_values.h"
#include "weft/tests/parallel/models.h"

namespace weft::parallel {
namespace {

using nlohmann::json;
using testing::loss_of;

constexpr std::int64_t kRows = 4;  // in each rank's batch

const json& goldens() {
  static const json all = json::parse(std::ifstream("tests/parallel/sharding_goldens.json"));
  return all["runs"];
}

// The modules that are cut before the whole model.
bool is_unit(const std::string& name) {
  for (const char* unit : {"1", "encoder", "decoder", "layer1", "layer2"}) {
    if (name == unit) return true;
  }
  return false;
}

template <class Make>
void expect_golden(const std::string& run, const Make& make, const Shape& sample,
                   comm::ProcessGroup& group, const json& golden) {
  auto model = testing::seeded(3, make);
  model.to(DType::f64);
  if (run == "frozen") model.named_parameters()[0].second.set_requires_grad(false);
  std::optional<comm::Mesh> mesh;
  std::shared_ptr<comm::ProcessGroup> shards = group.duplicate();
  FullyShardOptions options{.reshard_after_forward = run != "whole_after_forward"};
  if (run == "replicas") {
    mesh.emplace(shards, std::vector<comm::MeshAxis>{{"replica", 2}, {"shard", 2}});
    shards = (*mesh)["shard"], options.replicas = (*mesh)["replica"];
  }
  model.apply([&](nn::ModuleBase& module) {
    if (is_unit(module.name())) fully_shard(module, shards, options);
  });
  const FullySharded sharded = fully_shard(model, shards, options);
  auto optimizer = testing::optimizer_of(model);
  if (run == "sgd") {
    optimizer = std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = 0.05});
  }
  std::vector<double> losses;
  const auto backward = [&](int number) {
    const Shape shape = testing::batch_of(kRows * group.size(), sample);
    const Tensor loss =
        loss_of(model, testing::batch(number, shape, DType::f64).shard(group.rank(), group.size()));
    losses.push_back(loss.item<double>());
    loss.backward();
  };
  for (int step = 0; step < (run == "sgd" ? 1 : 6); ++step) {
    optimizer->zero_grad();
    if (run == "no_sync") {
      {
        const auto local = sharded.no_sync();
        backward(3 * step);
        backward(3 * step + 1);
      }
      backward(3 * step + 2);
    } else {
      backward(step);
    }
    if (run == "clip") sharded.clip_grad_norm(0.1);
    optimizer->step();
  }
  const nn::NamedTensors weights = model.named_parameters();
  nn::NamedTensors gradients;
  for (const auto& [name, x] : weights) {
    if (x.requires_grad()) gradients.emplace_back(name, x.grad());
  }
  testing::expect_golden_losses(losses, golden["losses"]);
  testing::expect_golden_values(gradients, golden["gradients"]);
  testing::expect_golden_values(weights, golden["weights"]);
}

/// [N,L] -> logits [N,L,6]
struct Texts : nn::Module<Texts> {
  Tensor forward(const Tensor& text) const {
    const Tensor x = words(text);
    return head(norm2(x + fc2(gelu(fc1(norm1(x))))));
  }
  nn::Embedding words = child("words", examples::table(7, 12));
  nn::LayerNorm norm1 = child("norm1", nn::LayerNorm(12));
  nn::Linear fc1 = child("fc1", nn::Linear(12, 18));
  nn::Linear fc2 = child("fc2", nn::Linear(18, 12));
  nn::LayerNorm norm2 = child("norm2", nn::LayerNorm(12));
  nn::Linear head = child("head", nn::Linear(12, 6));
};

/// With `sequence`, what lies between the products is cut along the text.
ParallelPlan plan_of(bool sequence) {
  const Layout part = sequence ? Layout(Shard{1}) : Layout(Replicate{});
  ParallelPlan plan = {{"words", VocabParallel{.output = part}},
                       {"fc1", ColwiseParallel{.input = part}},
                       {"fc2", RowwiseParallel{.output = part}},
                       {"head", ColwiseParallel{.input = part}}};
  if (sequence) plan.push_back({"norm*", SequenceParallel{}});
  return plan;
}

void expect_golden_of_parts(bool sequence, comm::ProcessGroup& group, const json& golden) {
  Texts model = testing::seeded(3, [] { return Texts(); });
  model.to(DType::f64);
  const Parallelized tp = parallelize(model, group, plan_of(sequence));
  optim::SGD sgd(model.parameters(), {.lr = 0.5});
  std::vector<double> losses;
  for (int step = 0; step < 6; ++step) {
    std::vector<std::int64_t> text, target;
    for (std::int64_t i = 0; i < 4 * 6; ++i) {
      text.push_back((i * (step + 3) + step) % 7);
      target.push_back(text.back() * 5 % 6);
    }
    sgd.zero_grad();
    const Tensor loss = cross_entropy(tp.ranks(), model(from_vector(text, {4, 6})).flatten(0, 1),
                                      from_vector(target, {4 * 6}), 6);
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
  }
  testing::expect_golden_losses(losses, golden["losses"]);
  testing::expect_golden_values(tp.state_dict(), golden["weights"]);
}

class ShardingGoldens : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ShardingGoldens, EachRankIsPyTorchs) {
  const json& golden = goldens().at(GetParam());
  const std::string run = golden["run"];
  comm::run_ranks(golden["size"], [&](comm::ProcessGroup& group) {
    SCOPED_TRACE("rank " + std::to_string(group.rank()));
    if (run == "parts" || run == "sequence") {
      return expect_golden_of_parts(run == "sequence", group, golden["ranks"].at(0));
    }
    const bool is_model = run == "autoencoder" || run == "resnet";
    testing::with_model(is_model ? run : "mlp", [&](const auto& make, const Shape& sample) {
      const auto made = [&] { return make(testing::batch_norm); };
      expect_golden(run, made, sample, group,
                    golden["ranks"].at(static_cast<std::size_t>(group.rank())));
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Runs, ShardingGoldens, ::testing::Range(std::size_t{0}, goldens().size()),
                         [](const auto& info) {
                           const json& golden = goldens().at(info.param);
                           return golden["run"].template get<std::string>() + "_" +
                                  std::to_string(golden["size"].template get<int>());
                         });

}  // namespace
}  // namespace weft::parallel
