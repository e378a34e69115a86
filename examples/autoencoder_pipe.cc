// Trains the convolutional autoencoder as a pipeline: `./weft run autoencoder_pipe --host-devices
// 2`.
#include "weft/examples/autoencoder.h"
#include "weft/examples/pipeline.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void autoencoder(train::Options options, const examples::PipelineFlags& flags) {
  const std::vector<Device> devices = examples::devices(options, flags.devices);
  examples::Autoencoder model;
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  const std::int64_t rows = examples::micro_batches(flags, options.batch_size)[0];
  nn::Sequential layers = examples::layers(model);
  parallel::Pipeline pipe = examples::pipeline(
      layers, zeros({rows, 1, 28, 28}, {options.dtype, options.device}), devices, flags);
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  data::DataLoader loader(images, options.loader());
  train::Step step(options, [&](const Tensor& x) {
    adam.zero_grad();
    const Tensor loss = examples::pipeline_step(
        options, flags, pipe, layers, x, x,
        [](const Tensor& output, const Tensor& target) { return nn::mse_loss(output, target); });
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
  model.to(options.device);
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
  recorder.note(examples::peaks(devices));
  recorder.finish(model, "mse", squared_error / test.dataset().size());
}

int main(int argc, char** argv) {
  examples::PipelineFlags flags;
  return train::run(
      argc, argv,
      {.example = "autoencoder_pipe",
       .description = "Trains a convolutional autoencoder on 28x28 images as a pipeline."},
      [&](const train::Options& options) { autoencoder(options, flags); }, examples::flags(flags));
}
