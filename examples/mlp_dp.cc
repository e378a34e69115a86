// Trains the two-layer classifier on several devices of one process: `./weft run mlp_dp
// --host-devices 2`.
#include "weft/examples/devices.h"
#include "weft/examples/mlp.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void mlp(train::Options options, const std::string& names) {
  const std::vector<Device> devices = examples::devices(options, names);
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  parallel::DataParallel dp(model, {.devices = devices});
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  data::DataLoader loader(images, options.loader());
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
    recorder.save(model, loader, sgd);
  }
  std::fputs(train::memory_table(devices).c_str(), stdout);
  if (recorder.interrupted()) return;

  auto test =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device});
  recorder.note(examples::peaks(devices));
  recorder.finish(model, "accuracy", train::accuracy(model, test));
}

int main(int argc, char** argv) {
  std::string devices = "all";
  return train::run(
      argc, argv,
      {.example = "mlp_dp",
       .description = "Trains a two-layer perceptron on several devices of one process.",
       .batch_size = 64,
       .lr = 0.1},
      [&](const train::Options& options) { mlp(options, devices); },
      {examples::devices_flag(devices)});
}
