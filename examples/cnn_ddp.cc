// Trains the convolutional net on CIFAR-10 by several processes, each on its share of the images:
// `./weft launch --nproc-per-node 2 cnn_ddp`.
#include "weft/examples/cifar.h"
#include "weft/examples/cnn.h"
#include "weft/examples/ranks.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void cnn(const train::Options& options, const examples::CnnOptions& net,
         const examples::DdpFlags& flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const train::Ranks ranks = examples::ranks(group);
  examples::check_cifar(options);
  nn::Sequential model = examples::cnn(net);
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 3, 32, 32})) return;
  parallel::DistributedDataParallel ddp(model, group, examples::ddp_options(flags));
  const data::ImageSet images = examples::cifar(options, true);
  const auto sampler = examples::distributed_sampler(images.size(), options, ranks);
  data::DataLoader loader(images, options.loader(sampler));
  auto test = train::test_loader(
      examples::cifar(options, false), options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device},
      ranks);
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(ddp(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(model, loader, sgd, ddp);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    // Only after a complete epoch: a test draws from the generator that the rest of the epoch
    // needs.
    if (loader.position() == 0) recorder.test("accuracy", train::accuracy(model, test, ranks));
    recorder.save(model, loader, sgd, ddp);
  }
  if (recorder.interrupted()) return;
  if (loader.position() > 0) recorder.test("accuracy", train::accuracy(model, test, ranks));
  recorder.note(examples::costs(ranks, *group, ddp.stats()));
  recorder.finish(model);
}

int main(int argc, char** argv) {
  examples::CnnOptions net;
  examples::DdpFlags flags;
  std::vector<train::Flag> all_flags = examples::ddp_flags(flags);
  all_flags.push_back(
      {"--width-scale", &net.width_scale, "times the width of every layer: 1/16, 0.25, 1"});
  all_flags.push_back(
      {"--hidden", &net.hidden, "features of the first linear layer: 8000, or 5000 for a GPU"});
  return train::run(
      argc, argv,
      {.example = "cnn_ddp",
       .description = "Trains a convolutional net on CIFAR-10 by several processes, see ./weft "
                      "launch; at full width it has 801 million parameters.",
       .local_rank = examples::local_rank,
       .epochs = 10,
       .batch_size = 64,
       .lr = 0.01,
       .data = "cifar-10-batches-bin",
       .data_help = "folder of CIFAR-10's binary files, or fake for made-up images",
       .log_every = 100,
       .keep_checkpoints = true},
      [&](const train::Options& options) { cnn(options, net, flags); }, all_flags);
}
