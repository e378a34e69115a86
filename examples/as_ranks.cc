// Takes in one process the steps of several ranks: with the same --batch-size and --lr the weights
// are, to the bit, those that `./weft launch --nproc-per-node 2 mlp_ddp` or autoencoder_ddp have
// (docs/ddp.md).
#include "weft/examples/autoencoder.h"
#include "weft/examples/mlp.h"
#include "weft/examples/shards.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

// Each batch is that of all ranks. loss(model's outputs, x, label); test(loader) returns the figure
// called `figure`.
template <class Model, class Optimizer, class Loss, class Test>
void train_as_ranks(train::Options options, int ranks, Model& model, Optimizer& optimizer,
                    const Loss& loss_of, const char* figure, const Test& test) {
  WEFT_CHECK(ranks <= 64, InvalidArgument, "as_ranks", "--ranks is ", ranks, ", at most 64");
  // The order of the images counts epochs from 0, so a resumed run would repeat it.
  WEFT_CHECK(options.resume.empty(), InvalidArgument, "as_ranks", "cannot --resume");
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const auto sampler = std::make_shared<examples::ShardsSampler>(
      images.size(), ranks, options.batch_size, options.shuffle);
  options.batch_size *= ranks;
  data::DataLoader loader(images, options.loader(sampler));
  train::Recorder recorder(options);
  recorder.resume(model, loader, optimizer);  // only for --weights
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) {
      optimizer.zero_grad();
      const Tensor loss = loss_of(examples::in_shards(model, x, ranks), x, label);
      loss.backward();
      optimizer.step();
      recorder.step(loss);
    }
  }
  if (recorder.interrupted()) return;
  auto tests =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device});
  recorder.finish(model, figure, test(tests));
}

void mlp(const train::Options& options, int ranks) {
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  train_as_ranks(
      options, ranks, model, sgd,
      [](const Tensor& y, const Tensor&, const Tensor& label) {
        return nn::cross_entropy(y, label);
      },
      "accuracy", [&](auto& tests) { return train::accuracy(model, tests); });
}

void autoencoder(const train::Options& options, int ranks) {
  examples::Autoencoder model;
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  train_as_ranks(
      options, ranks, model, adam,
      [](const auto& y, const Tensor& x, const Tensor&) { return nn::mse_loss(y.first, x); }, "mse",
      [&](auto& tests) {
        NoGrad no_grad;
        model.eval();
        double squared_error = 0;
        for (auto& [x, label] : tests)
          squared_error += nn::mse_loss(model(x).first, x).template item<double>() * x.shape(0);
        return squared_error / tests.dataset().size();
      });
}

int main(int argc, char** argv) {
  std::string program = "mlp";
  std::int64_t ranks = 2;
  return train::run(argc, argv,
                    {.example = "as_ranks",
                     .description = "Takes in one process the steps of several ranks of mlp_ddp or "
                                    "autoencoder_ddp with the same --batch-size and --lr.",
                     .batch_size = 64,
                     .lr = 0.1},
                    [&](const train::Options& options) {
                      (program == "mlp" ? mlp : autoencoder)(options, static_cast<int>(ranks));
                    },
                    {{"--program", &program, "whose steps", {"mlp", "autoencoder"}},
                     {"--ranks", &ranks, "how many take them"}});
}
