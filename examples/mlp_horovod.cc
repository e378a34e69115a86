// Trains the two-layer classifier as a Horovod program does:
// `./weft launch -np 2 mlp_horovod`.
#include "weft/examples/mlp.h"
#include "weft/examples/ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void mlp(const train::Options& options, const std::string& backend) {
  const parallel::Horovod hvd = parallel::horovod_init({.backend = backend});
  const train::Ranks ranks = examples::ranks(hvd.group());
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  hvd.broadcast_parameters(model.state_dict());
  parallel::DistributedOptimizer sgd(hvd, optim::SGD(model.parameters(), {.lr = options.lr}),
                                     model.named_parameters());
  hvd.broadcast_optimizer_state(sgd);
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const auto sampler = examples::distributed_sampler(images.size(), options, ranks);
  data::DataLoader loader(images, options.loader(sampler));
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(model, loader, sgd);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    recorder.save(model, loader, sgd);
  }
  if (recorder.interrupted()) return;

  auto test =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device}, ranks);
  const double accuracy = train::accuracy(model, test, ranks);
  recorder.note(examples::costs(ranks, {hvd.group()->traffic(), sgd.traffic()}, {sgd.stats()}));
  recorder.finish(model, "accuracy", accuracy);
}

int main(int argc, char** argv) {
  std::string backend = "auto";
  return train::run(
      argc, argv,
      {.example = "mlp_horovod",
       .description = "Trains a two-layer perceptron as a Horovod program, see ./weft launch.",
       .local_rank = examples::local_rank,
       .batch_size = 64,
       .lr = 0.1},
      [&](const train::Options& options) { mlp(options, backend); },
      {examples::backend_flag(backend)});
}
