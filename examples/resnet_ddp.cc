// Trains a ResNet by several processes that it starts itself, each on its share of the pictures:
// `./weft run resnet_ddp --nprocs 2`.
#include "weft/examples/ranks.h"
#include "weft/examples/resnet_program.h"
#include "weft/launch/spawn.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void resnet(const train::Options& options, const examples::ResNetFlags& flags,
            const examples::DdpFlags& ddp_flags, const std::shared_ptr<comm::ProcessGroup>& group) {
  const train::Ranks ranks = examples::ranks(group);
  const examples::Images sets = examples::images(options, static_cast<int>(flags.image_size));
  examples::ResNet model = examples::resnet(
      flags.depth, {.num_classes = sets.classes, .zero_init_residual = flags.zero_init_residual});
  model.to(options.device, options.dtype);
  if (flags.freeze == "all-but-fc") {
    model.requires_grad(false);
    model.fc.requires_grad(true);
    model.eval();  // the running statistics do not change either
  }
  const auto of_norms = flags.sync_bn ? group->duplicate() : nullptr;
  if (of_norms) parallel::convert_sync_batchnorm(model, of_norms);
  if (train::show_model(options, model, {1, 3, flags.image_size, flags.image_size})) return;
  parallel::DistributedDataParallel ddp(model, group, examples::ddp_options(ddp_flags));
  optim::SGD sgd(examples::trainable(model),
                 {.lr = options.lr, .momentum = 0.9, .weight_decay = 1e-4});
  const auto schedule = examples::make_schedule(flags.schedule, sgd, options.epochs);
  const auto sampler = examples::distributed_sampler(sets.train.size(), options, ranks);
  data::DataLoader loader(sets.train, options.loader(sampler));
  auto test = train::test_loader(
      sets.test, options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device},
      ranks);
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(ddp(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(model, loader, sgd, *schedule, ddp);
  const auto test_model = [&] {
    // The tests use the running statistics of the first rank, whose model is saved.
    for (const auto& [name, buffer] : model.named_buffers()) group->broadcast(buffer, 0).wait();
    const std::vector<double> top = train::top_accuracy(model, test, {1, 5}, ranks);
    recorder.test("top1", top[0]);
    recorder.test("top5", top[1]);
  };
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    if (loader.position() == 0) {  // the epoch is complete
      schedule->step();
      test_model();
    }
    recorder.save(model, loader, sgd, *schedule, ddp);
  }
  if (recorder.interrupted()) return;
  if (loader.position() > 0) test_model();
  recorder.note(examples::costs(
      ranks, {group->traffic(), of_norms ? of_norms->traffic() : comm::Traffic()}, {ddp.stats()}));
  recorder.finish(model);
}

/// --batch-size and --workers count for all ranks together.
train::Options share(train::Options options, std::int64_t ranks) {
  WEFT_CHECK(options.batch_size % ranks == 0, InvalidArgument, "resnet_ddp", "--batch-size ",
             options.batch_size, " cannot be shared by ", ranks, " ranks; use a multiple");
  options.batch_size /= ranks;
  options.workers = static_cast<int>((options.workers + ranks - 1) / ranks);
  return options;
}

int main(int argc, char** argv) {
  examples::ResNetFlags flags;
  std::int64_t nprocs = 2;
  std::string init_method = "tcp://127.0.0.1:2568";
  examples::DdpFlags ddp_flags;
  std::vector<train::Flag> all_flags = examples::flags(flags);
  all_flags.push_back({"--nprocs", &nprocs, "processes to start, which share --batch-size"});
  all_flags.push_back(
      {"--init-method", &init_method, "where they meet: tcp://, file:// or env://"});
  for (const train::Flag& flag : examples::ddp_flags(ddp_flags)) all_flags.push_back(flag);
  all_flags.push_back(
      {"--sync-bn", &flags.sync_bn, "batch norms take the statistics of all ranks' batches"});
  return train::run(
      argc, argv,
      {.example = "resnet_ddp",
       .description = "Trains a ResNet by several processes on pictures in folders, or on made-up "
                      "ones.",
       .local_rank = examples::local_rank,
       .lr = 0.0125,  // 0.1 for 256 images
       .data = "fake",
       .data_help = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or fake for made-up images",
       .head = "fc.",
       .log_every = 10},
      [&](const train::Options& options) {
        const auto size = static_cast<int>(nprocs);
        const train::Options shared = share(options, nprocs);
        launch::spawn(argc, argv, size, [&](int rank) {
          resnet(shared, flags, ddp_flags,
                 comm::init_process_group({.init_method = init_method,
                                           .rank = rank,
                                           .world_size = size,
                                           .backend = ddp_flags.backend}));
        });
      },
      all_flags);
}
