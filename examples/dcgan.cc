// Trains the DCGAN. `./weft run dcgan --help` lists the options.
#include "weft/examples/dcgan.h"

#include <utility>

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct DcganOptions {
  std::string image_size = "32";
  std::int64_t width = 16;
  std::int64_t latent = 100;
};

void dcgan(const train::Options& options, const DcganOptions& net) {
  const int size = std::stoi(net.image_size);
  // Drawn on the CPU, so that a seed gives the same numbers on every device.
  const auto noise = [&](std::int64_t count) {
    return randn({count, net.latent, 1, 1}, options.dtype).to(options.device);
  };
  examples::Gan gan(size, net.width, net.latent);
  gan.to(options.dtype);
  examples::dcgan_init(gan.generator);
  examples::dcgan_init(gan.discriminator);
  gan.to(options.device);
  train::show_model(options, gan.generator, {1, net.latent, 1, 1});
  if (train::show_model(options, gan.discriminator, {1, 1, size, size})) return;
  optim::Adam adam_d(gan.discriminator.parameters(), {.lr = options.lr, .beta1 = 0.5});
  optim::Adam adam_g(gan.generator.parameters(), {.lr = options.lr, .beta1 = 0.5});
  // 28x28 with a black margin, scaled to -1 to 1 like the output of tanh.
  data::DataLoader loader(
      data::Mnist(options.data, {.dtype = options.dtype,
                                 .transform = data::Compose({data::Pad(2), data::Resize(size)}),
                                 .normalize = {{0.5}, {0.5}}}),
      options.loader());
  const Tensor fixed_noise = noise(64);
  train::Step step(options, [&](const Tensor& real, const Tensor& z) {
    const Tensor fake = gan.generator(z);
    const Tensor loss_d = examples::train_discriminator(gan.discriminator, adam_d, real, fake);
    const Tensor loss_g = examples::train_generator(gan, adam_g, fake);
    return std::pair(loss_d, loss_g);
  });

  train::Recorder recorder(options);
  recorder.resume(gan, loader, adam_d, adam_g);
  while (recorder.next_epoch()) {
    for (auto& [real, label] : recorder.batches(loader)) {
      const auto [loss_d, loss_g] = step(real, noise(real.shape(0)));
      recorder.step({{"discriminator", loss_d}, {"generator", loss_g}});
    }
    recorder.save(gan, loader, adam_d, adam_g);

    NoGrad no_grad;
    gan.eval();
    const std::string epoch = std::to_string(recorder.epoch());
    io::write_png(recorder.path("samples-epoch-" + epoch + ".png"),
                  train::image_grid((gan.generator(fixed_noise) + 1) / 2));
    gan.train();
  }
  if (!recorder.interrupted()) recorder.finish(gan);
}

int main(int argc, char** argv) {
  DcganOptions net;
  return train::run(
      argc, argv,
      {.example = "dcgan",
       .description = "Trains a generator of images against a discriminator of them.",
       .epochs = 5,
       .batch_size = 64,
       .lr = 2e-4},
      [&](const train::Options& options) { dcgan(options, net); },
      {{"--image-size", &net.image_size, "height and width of the images", {"32", "64"}},
       {"--width", &net.width,
        "channels of the layers next to the image; 64x64 wants 64: with 16 the discriminator wins"},
       {"--latent", &net.latent, "random numbers an image is made from"}});
}
