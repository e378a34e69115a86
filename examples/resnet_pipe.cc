// Trains a ResNet as a pipeline: `./weft run resnet_pipe --host-devices 2`.
#include "weft/examples/pipeline.h"
#include "weft/examples/resnet_program.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void resnet(train::Options options, const examples::ResNetFlags& flags,
            const examples::PipelineFlags& pipeline) {
  const std::vector<Device> devices = examples::devices(options, pipeline.devices);
  const examples::Images sets = examples::images(options, static_cast<int>(flags.image_size));
  examples::ResNet model = examples::resnet(
      flags.depth, {.num_classes = sets.classes, .zero_init_residual = flags.zero_init_residual});
  model.to(options.device, options.dtype);
  if (flags.freeze == "all-but-fc") {
    model.requires_grad(false);
    model.fc.requires_grad(true);
    model.eval();  // the running statistics do not change either
  }
  if (train::show_model(options, model, {1, 3, flags.image_size, flags.image_size})) return;
  const std::vector<std::int64_t> micro_batches =
      examples::micro_batches(pipeline, options.batch_size);
  data::DataLoaderOptions loading = options.loader();
  if (flags.deferred_batch_norm) {
    parallel::convert_deferred_batch_norm(model, static_cast<int>(micro_batches.size()));
    loading.drop_last = true;  // the last batch may have fewer micro-batches
    WEFT_CHECK(sets.train.size() >= options.batch_size, InvalidArgument, "resnet_pipe",
               "--deferred-batch-norm leaves out what is no full batch, and there are only ",
               sets.train.size(), " images for --batch-size ", options.batch_size);
  }
  const Shape shape = {micro_batches[0], 3, flags.image_size, flags.image_size};
  nn::Sequential layers = examples::layers(model);
  parallel::Pipeline pipe =
      examples::pipeline(layers, zeros(shape, {options.dtype, options.device}), devices, pipeline);
  optim::SGD sgd(examples::trainable(model),
                 {.lr = options.lr, .momentum = 0.9, .weight_decay = 1e-4});
  const auto schedule = examples::make_schedule(flags.schedule, sgd, options.epochs);
  data::DataLoader loader(sets.train, loading);
  auto test = train::test_loader(
      sets.test, options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = devices.back()});
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = examples::pipeline_step(options, pipeline, pipe, layers, x, label,
                                                [](const Tensor& logits, const Tensor& labels) {
                                                  return nn::cross_entropy(logits, labels);
                                                });
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, sgd, *schedule);
  const auto test_model = [&] {
    const std::vector<double> top = train::top_accuracy(pipe, test, {1, 5});
    recorder.test("top1", top[0]);
    recorder.test("top5", top[1]);
  };
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    if (loader.position() == 0) {  // the epoch is complete
      schedule->step();
      test_model();
    }
    recorder.save(model, loader, sgd, *schedule);
  }
  std::fputs(train::memory_table(devices, true).c_str(), stdout);
  if (recorder.interrupted()) return;
  if (loader.position() > 0) test_model();
  recorder.note(examples::peaks(devices));
  recorder.finish(model);
}

int main(int argc, char** argv) {
  examples::ResNetFlags flags;
  examples::PipelineFlags pipeline;
  std::vector<train::Flag> all = examples::flags(flags);
  std::ranges::move(examples::flags(pipeline, "--pipeline-schedule"), std::back_inserter(all));
  all.push_back({"--deferred-batch-norm", &flags.deferred_batch_norm,
                 "batch norms keep the statistics of whole batches; leaves out an epoch's last "
                 "batch if it is not full"});
  return train::run(
      argc, argv,
      {.example = "resnet_pipe",
       .description = "Trains a ResNet as a pipeline, on pictures in folders or on made-up ones.",
       .lr = 0.0125,  // 0.1 for 256 images
       .data = "fake",
       .data_help = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or fake for made-up images",
       .head = "fc.",
       .log_every = 10},
      [&](const train::Options& options) { resnet(options, flags, pipeline); }, all);
}
