// Trains the WGAN-GP. `./weft run wgan_gp --help` lists the options.
#include "weft/examples/wgan_gp.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct WganOptions {
  std::string image_size = "32";
  std::int64_t width = 16;
  std::int64_t latent = 100;
  std::int64_t critic_steps = 5;
  double penalty = 10;
};

void wgan_gp(const train::Options& options, const WganOptions& net) {
  const int size = std::stoi(net.image_size);
  // Drawn on the CPU, so that a seed gives the same numbers on every device.
  const auto noise = [&](std::int64_t count) {
    return randn({count, net.latent, 1, 1}, options.dtype).to(options.device);
  };
  examples::WganGp gan(size, net.width, net.latent);
  gan.to(options.dtype);
  gan.to(options.device);
  train::show_model(options, gan.generator, {1, net.latent, 1, 1});
  if (train::show_model(options, gan.critic, {1, 1, size, size})) return;
  optim::Adam adam_c(gan.critic.parameters(), {.lr = options.lr, .beta1 = 0, .beta2 = 0.9});
  optim::Adam adam_g(gan.generator.parameters(), {.lr = options.lr, .beta1 = 0, .beta2 = 0.9});
  // 28x28 with a black margin, scaled to -1 to 1 like the output of tanh.
  data::DataLoader loader(
      data::Mnist(options.data, {.dtype = options.dtype,
                                 .transform = data::Compose({data::Pad(2), data::Resize(size)}),
                                 .normalize = {{0.5}, {0.5}}}),
      options.loader());
  const Tensor fixed_noise = noise(64);
  train::Step critic_step(options, [&](const Tensor& real, const Tensor& z, const Tensor& share) {
    return examples::train_critic(gan.critic, adam_c, real, gan.generator(z), share, net.penalty);
  });
  train::Step generator_step(options, [&](const Tensor& z) {
    return examples::train_generator(gan.critic, adam_g, gan.generator(z));
  });

  train::Recorder recorder(options);
  recorder.resume(gan, loader, adam_c, adam_g);
  while (recorder.next_epoch()) {
    for (auto& [real, label] : recorder.batches(loader)) {
      const std::int64_t count = real.shape(0);
      const Tensor z = noise(count);
      const Tensor share = rand({count, 1, 1, 1}, options.dtype).to(options.device);
      const auto [loss, distance, penalty] = critic_step(real, z, share);
      if (loader.position() % net.critic_steps == 0) generator_step(noise(count));
      recorder.step({{"critic", loss}, {"distance", distance}, {"penalty", penalty}});
    }
    recorder.save(gan, loader, adam_c, adam_g);

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
  WganOptions net;
  return train::run(
      argc, argv,
      {.example = "wgan_gp",
       .description = "Trains a generator of images against a critic whose slope is held near 1.",
       .epochs = 5,
       .batch_size = 64,
       .lr = 1e-4},
      [&](const train::Options& options) { wgan_gp(options, net); },
      {{"--image-size", &net.image_size, "height and width of the images", {"32", "64"}},
       {"--width", &net.width, "channels of the layers next to the image"},
       {"--latent", &net.latent, "random numbers an image is made from"},
       {"--critic-steps", &net.critic_steps, "steps of the critic for one of the generator"},
       {"--penalty", &net.penalty, "weight of the penalty on the critic's slope"}});
}
