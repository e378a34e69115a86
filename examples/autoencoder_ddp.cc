// Trains the convolutional autoencoder by several processes, each on its share of the images:
// `./weft launch --nproc-per-node 2 autoencoder_ddp`.
#include "weft/examples/autoencoder.h"
#include "weft/examples/ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void autoencoder(const train::Options& options, const examples::DdpFlags& flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const train::Ranks ranks = examples::ranks(group);
  examples::Autoencoder model;
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  parallel::DistributedDataParallel ddp(model, group, examples::ddp_options(flags));
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const auto sampler = examples::distributed_sampler(images.size(), options, ranks);
  data::DataLoader loader(images, options.loader(sampler));
  train::Step step(options, [&](const Tensor& x) {
    adam.zero_grad();
    const Tensor loss = nn::mse_loss(ddp(x).first, x);
    loss.backward();
    adam.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(model, loader, adam, ddp);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x));
    recorder.save(model, loader, adam, ddp);
  }
  if (recorder.interrupted()) return;

  NoGrad no_grad;
  model.eval();
  auto test =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device}, ranks);
  double squared_error = 0;
  examples::own_batches(test, ranks, [&](const data::ImageBatch& batch) {
    const auto& [x, label] = batch;
    const auto [output, code] = model(x);
    if (test.position() == 1)
      io::write_png(recorder.path("compare.png"), train::compare_picture(x, code, output));
    squared_error += nn::mse_loss(output, x).item<double>() * x.shape(0);
  });
  const double mse = ranks.sum({squared_error})[0] / test.dataset().size();
  recorder.note(examples::costs(ranks, *group, ddp.stats()));
  recorder.finish(model, "mse", mse);
}

int main(int argc, char** argv) {
  examples::DdpFlags flags;
  return train::run(
      argc, argv,
      {.example = "autoencoder_ddp",
       .description = "Trains a convolutional autoencoder by several processes, see ./weft launch.",
       .local_rank = examples::local_rank},
      [&](const train::Options& options) { autoencoder(options, flags); },
      examples::ddp_flags(flags));
}
