// Trains a ResNet by several processes, each of which keeps a part of every parameter: `./weft
// launch --nproc-per-node 2 resnet_fsdp`. With another --strategy it keeps more.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/examples/ranks.h"
#include "weft/examples/resnet_program.h"
#include "weft/nn/evaluation.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct Flags {
  examples::ResNetFlags net;
  std::string backend = "auto", strategy = "fsdp";
};

/// Cuts each block, then what is left. Not as soon as each is made: the net draws the weights of
/// its convolutions once more when all are there.
parallel::FullySharded cut(examples::ResNet& net, const std::string& strategy,
                           const std::shared_ptr<comm::ProcessGroup>& group) {
  parallel::FullyShardOptions how;
  if (strategy == "zero2") how.reshard_after_forward = false;
  for (nn::Sequential* layer : {&net.layer1, &net.layer2, &net.layer3, &net.layer4}) {
    for (const nn::AnyModule& block : *layer) parallel::fully_shard(block, group, how);
  }
  return parallel::fully_shard(net, group, how);
}

/// The shares of the labels that are the highest logit, and one of the five highest. All ranks take
/// all batches: each has a part of the parameters of every call.
template <class Loader>
std::vector<double> top_accuracy(examples::ResNet& net, Loader& test, const train::Ranks& ranks) {
  const NoGrad no_grad;
  const nn::EvaluationScope evaluation(net);
  double top1 = 0, top5 = 0;
  for (auto& [x, label] : test) {
    // A signal to one rank ends all of them before the same batch.
    if (ranks.sum({train::interrupted() ? 1.0 : 0.0})[0] > 0) throw train::Interrupted();
    const Tensor logits = net(x);
    const Tensor best = logits.topk(std::min<std::int64_t>(5, logits.shape(1))).indices;
    const Tensor right = (best == label.unsqueeze(1)).to(DType::f64);
    top1 += right.select(1, 0).sum().item<double>();
    top5 += right.sum().item<double>();
  }
  const auto size = static_cast<double>(test.dataset().size());
  return {top1 / size, top5 / size};
}

/// Trains `net`, called as `model`. `saved` and `state`: net and optimiser as one process has them.
/// `traffic`: so far.
template <class Model, class Saved, class State, class... Engine>
void train_on_ranks(const train::Options& options, const Flags& flags,
                    const std::shared_ptr<comm::ProcessGroup>& group, const examples::Images& sets,
                    examples::ResNet& net, Model& model, Saved& saved, optim::SGD& sgd,
                    const std::function<comm::Traffic()>& traffic, State& state,
                    Engine&... engine) {
  const train::Ranks ranks = examples::ranks(group);
  const auto schedule = examples::make_schedule(flags.net.schedule, sgd, options.epochs);
  const auto sampler = examples::distributed_sampler(sets.train.size(), options, ranks);
  data::DataLoader loader(sets.train, options.loader(sampler));
  auto test = train::test_loader(
      sets.test, options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device},
      ranks);
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(saved, loader, state, *schedule, engine...);
  const auto test_net = [&] {
    // The tests use the running statistics of the first rank, which are saved.
    for (const auto& [name, buffer] : net.named_buffers()) group->broadcast(buffer, 0).wait();
    const std::vector<double> top = top_accuracy(net, test, ranks);
    recorder.test("top1", top[0]);
    recorder.test("top5", top[1]);
  };
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    if (loader.position() == 0) {  // the epoch is complete
      schedule->step();
      test_net();
    }
    recorder.save(saved, loader, state, *schedule, engine...);
  }
  if (recorder.interrupted()) return;
  if (loader.position() > 0) test_net();
  recorder.note(examples::costs(traffic()));
  recorder.finish(saved);
}

void resnet(const train::Options& options, const Flags& flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const int size = static_cast<int>(flags.net.image_size);
  const examples::Images sets = examples::images(options, size);
  examples::ResNet net = examples::resnet(
      flags.net.depth,
      {.num_classes = sets.classes, .zero_init_residual = flags.net.zero_init_residual});
  net.to(options.device, options.dtype);
  if (flags.net.freeze == "all-but-fc") {
    net.requires_grad(false);
    net.fc.requires_grad(true);
    net.eval();  // the running statistics do not change either
  }
  std::optional<parallel::FullySharded> sharded;
  if (flags.strategy == "fsdp" || flags.strategy == "zero2")
    sharded = cut(net, flags.strategy, group);
  if (train::show_model(options, net, {1, 3, size, size})) return;
  optim::SGD sgd(examples::trainable(net),
                 {.lr = options.lr, .momentum = 0.9, .weight_decay = 1e-4});
  if (!sharded) {
    parallel::DistributedDataParallel ddp(net, group);
    const auto train = [&](auto& optimizer) {
      train_on_ranks(
          options, flags, group, sets, net, ddp, net, optimizer, [&] { return group->traffic(); },
          optimizer, ddp);
    };
    if (flags.strategy == "ddp") return train(sgd);
    parallel::ZeroRedundancyOptimizer zero(std::move(sgd), group);
    return train(zero);
  }
  auto state = sharded->state_of(sgd);
  train_on_ranks(
      options, flags, group, sets, net, net, *sharded, sgd, [&] { return sharded->traffic(); },
      state);
}

int main(int argc, char** argv) {
  Flags flags;
  std::vector<train::Flag> all = examples::flags(flags.net);
  all.push_back(examples::backend_flag(flags.backend));
  all.push_back(examples::strategy_flag(flags.strategy));
  return train::run(
      argc, argv,
      {.example = "resnet_fsdp",
       .description = "Trains a ResNet with fully sharded parameters on pictures in folders, or on "
                      "made-up ones, see ./weft launch.",
       .local_rank = examples::local_rank,
       .lr = 0.0125,  // 0.1 for 256 images
       .data = "fake",
       .data_help = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or fake for made-up images",
       .head = "fc.",
       .log_every = 10},
      [&](const train::Options& options) { resnet(options, flags); }, all);
}
