#include "weft/benchmarks/work.h"

#include "weft/autograd/autograd.h"
#include "weft/core/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/mlp.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"

namespace weft::bench {

namespace {

class AutoencoderWork final : public Work {
 public:
  void step() override {
    const Tensor& x = data_[at_++ % data_.size()].first;
    adam_.zero_grad();
    nn::mse_loss(model_(x).first, x).backward();
    adam_.step();
  }
  std::int64_t batch_size() const override { return 32; }

 private:
  examples::Autoencoder model_;
  optim::Adam adam_{model_.parameters()};
  std::vector<std::pair<Tensor, Tensor>> data_ = batches(32);
  std::size_t at_ = 0;
};

class MlpWork final : public Work {
 public:
  void step() override {
    const auto& [x, label] = data_[at_++ % data_.size()];
    sgd_.zero_grad();
    nn::cross_entropy(model_(x), label).backward();
    sgd_.step();
  }
  std::int64_t batch_size() const override { return 64; }

 private:
  nn::Sequential model_ = examples::mlp();
  optim::SGD sgd_{model_.parameters()};
  std::vector<std::pair<Tensor, Tensor>> data_ = batches(64);
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::pair<Tensor, Tensor>> batches(std::int64_t size, std::int64_t count) {
  std::vector<std::pair<Tensor, Tensor>> result;
  std::int64_t pixel = 0, sample = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    std::vector<float> x(static_cast<std::size_t>(size) * 784);
    for (float& v : x) v = static_cast<float>(pixel++ * 7919 % 256) / 255.f;
    std::vector<std::int64_t> label(static_cast<std::size_t>(size));
    for (auto& l : label) l = sample++ * 7 % 10;
    result.emplace_back(from_vector(x, {size, 1, 28, 28}), from_vector(label, {size}));
  }
  return result;
}

std::unique_ptr<Work> make_work(const std::string& name) {
  manual_seed(0);
  if (name == "autoencoder") return std::make_unique<AutoencoderWork>();
  if (name == "mlp") return std::make_unique<MlpWork>();
  WEFT_THROW(InvalidArgument, "bench", "no work named '", name, "'; there are autoencoder and mlp");
}

}  // namespace weft::bench
