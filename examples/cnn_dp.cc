// Trains the convolutional net on CIFAR-10 on several devices of one process: `./weft run cnn_dp
// --host-devices 2`.
#include "weft/examples/cifar.h"
#include "weft/examples/cnn.h"
#include "weft/examples/devices.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void cnn(train::Options options, const examples::CnnOptions& net, const std::string& names) {
  const std::vector<Device> devices = examples::devices(options, names);
  examples::check_cifar(options);
  nn::Sequential model = examples::cnn(net);
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 3, 32, 32})) return;
  parallel::DataParallel dp(model, {.devices = devices});
  data::DataLoader loader(examples::cifar(options, true), options.loader());
  auto test = train::test_loader(
      examples::cifar(options, false), options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device});
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(dp(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, sgd);
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    // Only after a complete epoch: a test draws from the generator that the rest of the epoch
    // needs.
    if (loader.position() == 0) recorder.test("accuracy", train::accuracy(model, test));
    recorder.save(model, loader, sgd);
  }
  std::fputs(train::memory_table(devices).c_str(), stdout);
  if (recorder.interrupted()) return;
  if (loader.position() > 0) recorder.test("accuracy", train::accuracy(model, test));
  recorder.note(examples::peaks(devices));
  recorder.finish(model);
}

int main(int argc, char** argv) {
  examples::CnnOptions net;
  std::string devices = "all";
  return train::run(
      argc, argv,
      {.example = "cnn_dp",
       .description =
           "Trains a convolutional net on CIFAR-10 on several devices of one process; at "
           "full width it has 801 million parameters.",
       .epochs = 10,
       .batch_size = 64,
       .lr = 0.01,
       .data = "cifar-10-batches-bin",
       .data_help = "folder of CIFAR-10's binary files, or fake for made-up images",
       .log_every = 100,
       .keep_checkpoints = true},
      [&](const train::Options& options) { cnn(options, net, devices); },
      {{"--width-scale", &net.width_scale, "times the width of every layer: 1/16, 0.25, 1"},
       {"--hidden", &net.hidden, "features of the first linear layer: 8000, or 5000 for a GPU"},
       examples::devices_flag(devices)});
}
