// Trains the two-layer classifier by several processes, each with a part of the optimiser's state:
// `./weft launch --nproc-per-node 2 mlp_zero`.
#include "weft/examples/mlp.h"
#include "weft/examples/ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void mlp(const train::Options& options, const examples::DdpFlags& flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const train::Ranks ranks = examples::ranks(group);
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  parallel::DistributedDataParallel ddp(model, group, examples::ddp_options(flags));
  parallel::ZeroRedundancyOptimizer adam(optim::Adam(model.parameters(), {.lr = options.lr}),
                                         group);
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const auto sampler = examples::distributed_sampler(images.size(), options, ranks);
  data::DataLoader loader(images, options.loader(sampler));
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    adam.zero_grad();
    const Tensor loss = nn::cross_entropy(ddp(x), label);
    loss.backward();
    adam.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(model, loader, adam, ddp);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    recorder.save(model, loader, adam, ddp);
  }
  if (recorder.interrupted()) return;

  auto test =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device}, ranks);
  const double accuracy = train::accuracy(model, test, ranks);
  recorder.note(examples::costs(ranks, *group, ddp.stats()));
  recorder.finish(model, "accuracy", accuracy);
}

int main(int argc, char** argv) {
  examples::DdpFlags flags;
  return train::run(
      argc, argv,
      {.example = "mlp_zero",
       .description = "Trains a two-layer perceptron with ZeRO-1, see ./weft launch.",
       .local_rank = examples::local_rank,
       .batch_size = 64,
       .lr = 1e-3},
      [&](const train::Options& options) { mlp(options, flags); }, examples::ddp_flags(flags));
}
