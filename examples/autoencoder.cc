// Trains the convolutional autoencoder. `./weft run autoencoder --help` lists the options.
#include "weft/examples/autoencoder.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void autoencoder(const train::Options& options) {
  examples::Autoencoder model;
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  data::DataLoader loader(images, options.loader());
  train::Step step(options, [&](const Tensor& x) {
    adam.zero_grad();
    const Tensor loss = nn::mse_loss(model(x).first, x);
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
  if (recorder.interrupted()) return;

  step.reset();  // frees memory for the test
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
    squared_error += nn::mse_loss(output, x).item<double>() * x.shape(0);
  }
  recorder.finish(model, "mse", squared_error / test.dataset().size());
}

int main(int argc, char** argv) {
  return train::run(argc, argv,
                    {.example = "autoencoder",
                     .description = "Trains a convolutional autoencoder on 28x28 images."},
                    autoencoder);
}
