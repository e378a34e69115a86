// Trains the convolutional autoencoder, its encoder on one device and its decoder on another:
// `./weft run autoencoder_mp --host-devices 2`.
#include "weft/examples/autoencoder.h"
#include "weft/examples/devices.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct SplitAutoencoder : nn::Module<SplitAutoencoder> {
  examples::Encoder encoder = child("encoder", examples::Encoder());
  examples::Decoder decoder = child("decoder", examples::Decoder());
  Device second;

  SplitAutoencoder(const std::vector<Device>& devices, DType dtype) : second(devices[1]) {
    encoder.to(devices[0], dtype);
    decoder.to(devices[1], dtype);
  }

  /// {reconstruction, code}, on the second device
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor z = encoder(x).to(second);
    return {decoder(z), z};
  }
};

void autoencoder(train::Options options, const std::string& names) {
  const std::vector<Device> devices = examples::two_devices(options, names);
  SplitAutoencoder model(devices, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  data::DataLoader loader(images, options.loader());
  train::Step step(options, [&](const Tensor& x) {
    adam.zero_grad();
    const Tensor loss = nn::mse_loss(model(x).first, x.to(devices[1]));
    loss.backward();
    adam.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, adam);
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x));
    recorder.save(model, loader, adam);
  }
  std::fputs(train::memory_table(devices, true).c_str(), stdout);
  if (recorder.interrupted()) return;

  NoGrad no_grad;
  model.eval();
  auto test =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device});
  double squared_error = 0;
  for (auto& [x, label] : test) {
    train::throw_if_interrupted();
    const auto [output, code] = model(x);
    if (test.position() == 1)
      io::write_png(recorder.path("compare.png"), train::compare_picture(x, code, output));
    squared_error += nn::mse_loss(output, x.to(devices[1])).item<double>() * x.shape(0);
  }
  recorder.note(examples::peaks(devices));
  recorder.finish(model, "mse", squared_error / test.dataset().size());
}

int main(int argc, char** argv) {
  std::string devices = "all";
  return train::run(
      argc, argv,
      {.example = "autoencoder_mp",
       .description = "Trains a convolutional autoencoder on 28x28 images, on two devices."},
      [&](const train::Options& options) { autoencoder(options, devices); },
      {examples::devices_flag(devices)});
}
