// Trains the convolutional autoencoder as a pipeline of several processes, or as several such
// pipelines: `./weft launch --nproc-per-node 2 autoencoder_pipe_ddp`, and with 4 ranks `--replicas
// 2`.
#include "weft/examples/autoencoder.h"
#include "weft/examples/pipeline_ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void autoencoder(const train::Options& options, const examples::PipelineFlags& flags,
                 const std::string& backend, std::int64_t replicas) {
  const examples::PipelineRanks ranks(comm::init_process_group({.backend = backend}), replicas);
  examples::Autoencoder model;
  model.to(options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  const std::int64_t rows = examples::micro_batches(flags, options.batch_size)[0];
  nn::Sequential layers = examples::layers(model);
  parallel::Pipeline pipe = examples::pipeline(
      layers, zeros({rows, 1, 28, 28}, {options.dtype, options.device}), ranks, flags);
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const auto sampler = ranks.sampler(images.size(), options);
  data::DataLoader loader(images, options.loader(sampler));
  train::Step step(options, [&](const Tensor& x) {
    adam.zero_grad();
    const Tensor loss = examples::pipeline_step(
        options, flags, pipe, layers, x, x,
        [](const Tensor& output, const Tensor& target) { return nn::mse_loss(output, target); });
    adam.step();
    return loss;
  });

  train::Recorder recorder(options, ranks.for_recorder());
  examples::WholeModel whole(model, pipe);
  examples::WholeOptimizer whole_adam(adam, pipe);
  recorder.resume(whole, loader, whole_adam);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x));
    recorder.save(whole, loader, whole_adam);
  }
  if (recorder.interrupted()) return;

  NoGrad no_grad;
  model.to(options.device);  // all stages: saving has collected them
  model.eval();
  auto test = train::test_loader(
      data::Mnist(options.data, {.train = false, .dtype = options.dtype}), options,
      {.batch_size = 500, .device = options.device}, ranks.for_recorder());
  double squared_error = 0;
  const train::Ranks all = examples::ranks(ranks.world);
  examples::own_batches(test, all, [&](const data::ImageBatch& batch) {
    const auto& [x, label] = batch;
    const auto [output, code] = model(x);
    if (test.position() == 1)
      io::write_png(recorder.path("compare.png"), train::compare_picture(x, code, output));
    squared_error += nn::mse_loss(output, x).item<double>() * x.shape(0);
  });
  const double mse = all.sum({squared_error})[0] / test.dataset().size();
  recorder.note(ranks.costs(pipe));
  recorder.finish(model, "mse", mse);
}

int main(int argc, char** argv) {
  examples::PipelineFlags flags;
  std::string backend = "auto";
  std::int64_t replicas = 1;
  std::vector<train::Flag> own = examples::schedule_flags(flags);
  own.push_back(examples::backend_flag(backend));
  own.push_back({"--replicas", &replicas, "pipelines, each of as many of the ranks"});
  return train::run(
      argc, argv,
      {.example = "autoencoder_pipe_ddp",
       .description = "Trains a convolutional autoencoder as a pipeline of several processes, see "
                      "./weft launch.",
       .local_rank = examples::local_rank},
      [&](const train::Options& options) { autoencoder(options, flags, backend, replicas); }, own);
}
