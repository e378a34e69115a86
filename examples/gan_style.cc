// Trains a generator that makes small pictures four times larger. `./weft run gan_style --help`
// lists the options.
#include "weft/examples/gan_style.h"

#include <utility>

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void gan_style(const train::Options& options, const examples::GanStyleFlags& flags) {
  examples::GanStyle gan(flags);
  gan.to(options.device, options.dtype);
  train::show_model(options, gan.generator, {1, 1, 8, 8});
  train::show_model(options, gan.discriminator, {1, 1, 32, 32});
  if (train::show_model(options, gan.vgg, {1, 1, 32, 32})) return;
  optim::Adam adam_d(gan.discriminator.parameters(), {.lr = options.lr, .beta1 = 0.5});
  optim::Adam adam_g(gan.generator.parameters(), {.lr = options.lr, .beta1 = 0.5});
  const data::Mnist images = examples::pictures(options, /*train=*/true);
  data::DataLoader loader(images, options.loader());
  const Tensor tests = examples::first_tests(options);
  train::Step step(options, [&](const Tensor& real) {
    const Tensor fake = gan.generator(examples::shrink(real));
    const Tensor loss_d = examples::train_discriminator(gan.discriminator, adam_d, real, fake);
    return std::pair(loss_d, examples::train_generator(gan, adam_g, real, fake, flags));
  });

  train::Recorder recorder(options);
  recorder.resume(gan, loader, adam_d, adam_g);
  while (recorder.next_epoch()) {
    for (auto& [real, label] : recorder.batches(loader)) {
      const auto [loss_d, g] = step(real);
      recorder.step({{"generator", g.loss},
                     {"content", g.content},
                     {"style", g.style},
                     {"discriminator", loss_d}});
    }
    recorder.save(gan, loader, adam_d, adam_g);
    const std::string epoch = std::to_string(recorder.epoch());
    io::write_png(recorder.path("restored-epoch-" + epoch + ".png"),
                  examples::restored(gan, tests));
  }
  if (!recorder.interrupted()) recorder.finish(gan);
}

int main(int argc, char** argv) {
  examples::GanStyleFlags flags;
  return train::run(
      argc, argv,
      {.example = "gan_style",
       .description = "Trains a generator that makes pictures four times larger, by what a frozen "
                      "VGG sees in them and against a discriminator.",
       .batch_size = 64,
       .lr = 1e-3},
      [&](const train::Options& options) { gan_style(options, flags); }, examples::flags(flags));
}
