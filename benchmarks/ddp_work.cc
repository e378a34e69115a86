#include "weft/benchmarks/ddp_work.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/char_transformer.h"
#include "weft/examples/mlp.h"
#include "weft/examples/resnet.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/fully_shard.h"
#include "weft/tensor/ops.h"

namespace weft::bench {
namespace {

parallel::Reduction reduce_later(comm::ProcessGroup& group, const Tensor& gradients) {
  raw::mul_(gradients, 1.0 / group.size());
  parallel::Reduction reduction;
  reduction.finish = [&group, gradients] { group.all_reduce(gradients).wait(); };
  return reduction;
}

using Batches = std::vector<std::pair<Tensor, Tensor>>;

template <class Optimizer, class Model, class Loss>
class DdpStep final : public DdpWork {
 public:
  template <class OptimizerOptions>
  DdpStep(Model model, const OptimizerOptions& optimizer, Loss loss, Batches data,
          std::shared_ptr<comm::ProcessGroup> group, const RankWorkOptions& options)
      : optimizer_(model.parameters(), optimizer),
        ddp_(std::move(model), std::move(group),
             {.bucket_cap_mb = options.bucket_cap_mb,
              .comm_hook = options.overlap ? parallel::CommHook() : reduce_later}),
        loss_(std::move(loss)),
        data_(std::move(data)) {}

  void step() override {
    const auto& [x, label] = data_[at_++ % data_.size()];
    optimizer_.zero_grad();
    loss_(ddp_, x, label).backward();
    optimizer_.step();
  }

  const parallel::ReducerStats& stats() const override { return ddp_.stats(); }

 private:
  Optimizer optimizer_;
  parallel::DistributedDataParallel<Model> ddp_;
  Loss loss_;
  Batches data_;
  std::size_t at_ = 0;
};

/// `units`: the types of modules that are cut before the whole model.
template <class Optimizer, class Model, class Loss>
class ShardedStep final : public Work {
 public:
  template <class OptimizerOptions>
  ShardedStep(Model model, const OptimizerOptions& optimizer, Loss loss, Batches data,
              const std::shared_ptr<comm::ProcessGroup>& group, const std::string& strategy,
              const std::set<std::string>& units)
      : model_(std::move(model)), loss_(std::move(loss)), data_(std::move(data)) {
    parallel::FullyShardOptions how;
    if (strategy == "zero2") how.reshard_after_forward = false;
    for (const auto& [path, module] : model_.named_modules()) {
      if (units.contains(module.type_name())) parallel::fully_shard(module, group, how);
    }
    parallel::fully_shard(model_, group, how);
    optimizer_.emplace(model_.parameters(), optimizer);
  }

  void step() override {
    const auto& [x, label] = data_[at_++ % data_.size()];
    optimizer_->zero_grad();
    loss_(model_, x, label).backward();
    optimizer_->step();
  }

 private:
  Model model_;
  std::optional<Optimizer> optimizer_;  // of the parts
  Loss loss_;
  Batches data_;
  std::size_t at_ = 0;
};

}  // namespace

std::unique_ptr<Work> make_rank_work(const WorkSpec& spec,
                                     const std::shared_ptr<comm::ProcessGroup>& group,
                                     const RankWorkOptions& options) {
  manual_seed(0);
  const auto make = [&]<class Optimizer>(
                        auto model, const auto& optimizer, auto loss, Batches data,
                        const std::set<std::string>& units) -> std::unique_ptr<Work> {
    using Model = decltype(model);
    using Loss = decltype(loss);
    if (options.strategy == "ddp") {
      return std::make_unique<DdpStep<Optimizer, Model, Loss>>(model, optimizer, loss,
                                                               std::move(data), group, options);
    }
    return std::make_unique<ShardedStep<Optimizer, Model, Loss>>(
        model, optimizer, loss, std::move(data), group, options.strategy, units);
  };
  const auto classify = [](auto& model, const Tensor& x, const Tensor& label) {
    return nn::cross_entropy(model(x), label);
  };
  if (spec.model == "transformer") {
    return make.operator()<optim::AdamW>(
        examples::CharTransformer({.characters = spec.classes, .context = spec.images[1]}),
        optim::AdamWOptions(),
        [](auto& model, const Tensor& x, const Tensor& y) {
          return examples::next_character_loss(model, x, y);
        },
        texts(spec), {"TransformerBlock"});
  }
  Batches data = batches(spec.images, spec.classes, spec.count);
  if (spec.model == "autoencoder") {
    return make.operator()<optim::Adam>(
        examples::Autoencoder(), optim::AdamOptions(),
        [](auto& model, const Tensor& x, const Tensor&) { return nn::mse_loss(model(x).first, x); },
        std::move(data), {"Encoder", "Decoder"});
  }
  if (spec.model == "mlp") {
    return make.operator()<optim::SGD>(examples::mlp(), optim::SGDOptions{.lr = 1e-3}, classify,
                                       std::move(data), {"Linear"});
  }
  WEFT_CHECK(spec.model == "resnet", InvalidArgument, "bench", spec.name,
             " is not timed by several ranks; autoencoder, mlp, transformer and resnet50 are");
  return make.operator()<optim::SGD>(
      examples::resnet(spec.depth, {.num_classes = spec.classes}),
      optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4}, classify,
      std::move(data), {"BasicBlock", "Bottleneck"});
}

}  // namespace weft::bench
