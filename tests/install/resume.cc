// A program outside the repository that uses train/: an MLP learns Fashion-MNIST, once without a
// stop, and once stopped in the middle and resumed. Losses and weights must be the same.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct Run {
  std::vector<double> losses;
  std::vector<float> weights;
  double accuracy = 0;
};

Run train_until(const char* out, std::int64_t steps, const char* resume) {
  manual_seed(1);
  nn::Sequential model{nn::Flatten(), nn::Linear(784, 32), nn::ReLU(), nn::Linear(32, 10)};
  optim::Adam adam(model.parameters());
  const train::Options options{.example = "resume",
                               .epochs = 2,
                               .batch_size = 500,
                               .workers = 1,
                               .limit_steps = steps,
                               .out = out,
                               .resume = resume};
  data::DataLoader loader(data::Mnist(), options.loader());
  train::Recorder recorder(options);
  recorder.resume(model, loader, adam);
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) {
      adam.zero_grad();
      const Tensor loss = nn::cross_entropy(model(x), label);
      loss.backward();
      adam.step();
      recorder.step(loss);
    }
    recorder.save(model, loader, adam);
  }
  data::DataLoader test(data::Mnist(data::kFashionMnistDir, {.train = false}), {.batch_size = 500});
  Run run{recorder.losses(), model.parameters()[0].to_vector<float>(),
          train::accuracy(model, test)};
  recorder.finish(model, "accuracy", run.accuracy);
  return run;
}

int main() {
  const Run whole = train_until("whole", 150, "");
  train_until("parts", 70, "");
  const Run parts = train_until("parts", 150, "latest");
  std::printf("150 steps, loss %.4f -> %.4f, accuracy %.3f\n", whole.losses.front(),
              whole.losses.back(), whole.accuracy);
  const bool same = parts.losses == whole.losses && parts.weights == whole.weights;
  const bool drawn = std::filesystem::exists("parts/loss.svg");
  return whole.losses.size() == 150 && whole.accuracy > 0.7 && same && drawn ? 0 : 1;
}
