// Trains the two-layer classifier. `./weft run mlp --help` lists the options.
#include "weft/examples/mlp.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void mlp(const train::Options& options) {
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  data::DataLoader loader(images, options.loader());
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, sgd);
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    recorder.save(model, loader, sgd);
  }
  if (recorder.interrupted()) return;

  step.reset();  // frees memory for the test
  auto test =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device});
  recorder.finish(model, "accuracy", train::accuracy(model, test));
}

int main(int argc, char** argv) {
  return train::run(argc, argv,
                    {.example = "mlp",
                     .description = "Trains a two-layer perceptron to classify 28x28 images.",
                     .batch_size = 64,
                     .lr = 0.1},
                    mlp);
}
