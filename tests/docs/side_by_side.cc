#include <cstdio>

#include "weft/weft.h"
using namespace weft;

struct Net : nn::Module<Net> {
  nn::Linear fc1 = child("fc1", nn::Linear(784, 128));
  nn::Linear fc2 = child("fc2", nn::Linear(128, 10));

  Tensor forward(const Tensor& x) const { return fc2(relu(fc1(x.flatten(1)))); }
};

int main() {
  const Device device = device_count(DeviceType::cuda) > 0 ? "cuda" : "cpu";
  manual_seed(0);
  Net model;
  model.to(device);
  optim::AdamW adam(model.parameters(), {.lr = 1e-3, .weight_decay = 0.01});
  optim::CosineAnnealingLR schedule(adam, {.T_max = 3});
  data::DataLoader loader(data::Mnist(), {.batch_size = 64, .shuffle = true, .device = device});

  for (int epoch = 0; epoch < 3; ++epoch) {
    Tensor loss;
    for (auto& [x, label] : loader) {
      adam.zero_grad();
      loss = nn::cross_entropy(model(x), label);
      loss.backward();
      adam.step();
    }
    schedule.step();
    std::printf("epoch %d: loss %.4f\n", epoch, loss.item<double>());
  }
  io::save_safetensors("model.safetensors", model.state_dict());
}
