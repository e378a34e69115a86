// Trains the nets of gan_style by several processes, each on its share of the images:
// `./weft launch --nproc-per-node 2 gan_style_ddp`.
#include "weft/examples/gan_style.h"

#include <utility>

#include "weft/core/runtime/phase.h"
#include "weft/examples/ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void gan_style(const train::Options& options, const examples::GanStyleFlags& flags,
               const examples::DdpFlags& ddp_flags) {
  const auto group = comm::init_process_group({.backend = ddp_flags.backend});
  const train::Ranks ranks = examples::ranks(group);
  examples::GanStyle gan(flags);
  gan.to(options.device, options.dtype);
  train::show_model(options, gan.generator, {1, 1, 8, 8});
  train::show_model(options, gan.discriminator, {1, 1, 32, 32});
  if (train::show_model(options, gan.vgg, {1, 1, 32, 32})) return;
  // Each net that is trained gets a wrapper of its own, since they are trained in turn. The VGG
  // gets none, so its weights are copied from rank 0 here.
  const auto ddp_options = examples::ddp_options(ddp_flags);
  parallel::DistributedDataParallel generator(gan.generator, group, ddp_options);
  parallel::DistributedDataParallel discriminator(gan.discriminator, group, ddp_options);
  for (const Tensor& weight : gan.vgg.parameters()) group->broadcast(weight, 0).wait();
  optim::Adam adam_d(gan.discriminator.parameters(), {.lr = options.lr, .beta1 = 0.5});
  optim::Adam adam_g(gan.generator.parameters(), {.lr = options.lr, .beta1 = 0.5});
  const data::Mnist images = examples::pictures(options, /*train=*/true);
  const auto sampler = examples::distributed_sampler(images.size(), options, ranks);
  data::DataLoader loader(images, options.loader(sampler));
  const Tensor tests = examples::first_tests(options);
  train::Step step(options, [&](const Tensor& real) {
    const Tensor fake = generator(examples::shrink(real));
    const Tensor loss_d = examples::train_discriminator(discriminator, adam_d, real, fake);
    return std::pair(loss_d, examples::train_generator(gan, adam_g, real, fake, flags));
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(gan, loader, adam_d, adam_g, discriminator, generator);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [real, label] : recorder.batches(loader)) {
      const auto [loss_d, g] = step(real);
      recorder.step({{"generator", g.loss},
                     {"content", g.content},
                     {"style", g.style},
                     {"discriminator", loss_d}});
    }
    recorder.save(gan, loader, adam_d, adam_g, discriminator, generator);
    if (ranks.rank != 0) continue;
    const BusyScope busy("save");
    const std::string epoch = std::to_string(recorder.epoch());
    io::write_png(recorder.path("restored-epoch-" + epoch + ".png"),
                  examples::restored(gan, tests));
  }
  if (recorder.interrupted()) return;
  recorder.note(
      examples::costs(ranks, {group->traffic()}, {discriminator.stats(), generator.stats()}));
  recorder.finish(gan);
}

int main(int argc, char** argv) {
  examples::GanStyleFlags flags;
  examples::DdpFlags ddp_flags;
  std::vector<train::Flag> all_flags = examples::flags(flags);
  for (const train::Flag& flag : examples::ddp_flags(ddp_flags)) all_flags.push_back(flag);
  return train::run(
      argc, argv,
      {.example = "gan_style_ddp",
       .description = "Trains a generator that makes pictures four times larger by several "
                      "processes, see ./weft launch.",
       .local_rank = examples::local_rank,
       .batch_size = 64,
       .lr = 1e-3},
      [&](const train::Options& options) { gan_style(options, flags, ddp_flags); }, all_flags);
}
