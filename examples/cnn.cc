// Trains the convolutional net on CIFAR-10. `./weft run cnn --help` lists the options.
#include "weft/examples/cnn.h"
#include "weft/examples/cifar.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void cnn(const train::Options& options, const examples::CnnOptions& net) {
  examples::check_cifar(options);
  nn::Sequential model = examples::cnn(net);
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 3, 32, 32})) return;
  data::DataLoader loader(examples::cifar(options, true), options.loader());
  auto test = train::test_loader(
      examples::cifar(options, false), options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device});
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, sgd);
  const auto test_model = [&] {
    step.reset();  // frees memory for the test
    recorder.test("accuracy", train::accuracy(model, test));
  };
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    // Only after a complete epoch: a test draws from the generator that the rest of the epoch
    // needs.
    if (loader.position() == 0) test_model();
    recorder.save(model, loader, sgd);
  }
  if (recorder.interrupted()) return;
  if (loader.position() > 0) test_model();
  recorder.finish(model);
}

int main(int argc, char** argv) {
  examples::CnnOptions net;
  return train::run(
      argc, argv,
      {.example = "cnn",
       .description = "Trains a convolutional net on CIFAR-10; at full width it has 801 million "
                      "parameters.",
       .epochs = 10,
       .batch_size = 64,
       .lr = 0.01,
       .data = "cifar-10-batches-bin",
       .data_help = "folder of CIFAR-10's binary files, or fake for made-up images",
       .log_every = 100,
       .keep_checkpoints = true},
      [&](const train::Options& options) { cnn(options, net); },
      {{"--width-scale", &net.width_scale, "times the width of every layer: 1/16, 0.25, 1"},
       {"--hidden", &net.hidden, "features of the first linear layer: 8000, or 5000 for a GPU"}});
}
