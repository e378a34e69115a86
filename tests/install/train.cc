// A program outside the repository: two MLPs learn Fashion-MNIST at the same time, each in its own
// thread, without disturbing each other.
#include <cstdio>
#include <thread>
#include <vector>

#include "weft/weft.h"

using namespace weft;

std::vector<double> train(std::uint64_t seed, int steps) {
  manual_seed(seed);
  nn::Sequential model{nn::Flatten(), nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10)};
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  data::DataLoader loader(data::Mnist(), {.batch_size = 64, .shuffle = true, .workers = 1});
  std::vector<double> losses;
  for (auto& [x, label] : loader) {
    sgd.zero_grad();
    auto loss = nn::cross_entropy(model(x), label);
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
    if (static_cast<int>(losses.size()) == steps) break;
  }
  return losses;
}

int main() {
  const int steps = 200;
  const auto alone = train(1, steps);
  std::vector<double> first, second;
  std::thread a([&] { first = train(1, steps); });
  std::thread b([&] { second = train(2, steps); });
  a.join();
  b.join();
  std::printf("loss %.4f -> %.4f, the other %.4f -> %.4f\n", first.front(), first.back(),
              second.front(), second.back());
  const bool learned = first.back() < 0.7 * first.front() && second.back() < 0.7 * second.front();
  return learned && first == alone && first != second ? 0 : 1;
}
