#include "weft/benchmarks/work.h"

#include "weft/autograd/autograd.h"
#include "weft/core/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/cnn.h"
#include "weft/examples/mlp.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"

namespace weft::bench {

namespace {

using Batches = std::vector<std::pair<Tensor, Tensor>>;

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
  Batches data_ = batches({32, 1, 28, 28}, 10, 8);
  std::size_t at_ = 0;
};

template <class Model>
class ClassifierWork final : public Work {
 public:
  ClassifierWork(Model model, const optim::SGDOptions& options, Batches data, int block)
      : model_(std::move(model)),
        sgd_(model_.parameters(), options),
        data_(std::move(data)),
        block_(block) {}
  void step() override {
    const auto& [x, label] = data_[at_++ % data_.size()];
    sgd_.zero_grad();
    nn::cross_entropy(model_(x), label).backward();
    sgd_.step();
  }
  std::int64_t batch_size() const override { return data_[0].first.shape(0); }
  int block() const override { return block_; }

 private:
  Model model_;
  optim::SGD sgd_;
  Batches data_;
  int block_;
  std::size_t at_ = 0;
};

template <class Model>
std::unique_ptr<Work> classifier(Model model, const optim::SGDOptions& options, Batches data,
                                 int block) {
  return std::make_unique<ClassifierWork<Model>>(std::move(model), options, std::move(data), block);
}

}  // namespace

Batches batches(const Shape& shape, std::int64_t classes, std::int64_t count) {
  Batches result;
  std::int64_t pixel = 0, sample = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    std::vector<float> x(static_cast<std::size_t>(numel(shape)));
    for (float& v : x) v = static_cast<float>(pixel++ * 7919 % 256) / 255.f;
    std::vector<std::int64_t> label(static_cast<std::size_t>(shape[0]));
    for (auto& l : label) l = sample++ * 7 % classes;
    result.emplace_back(from_vector(x, shape), from_vector(label, {shape[0]}));
  }
  return result;
}

std::unique_ptr<Work> make_work(const std::string& name) {
  manual_seed(0);
  if (name == "autoencoder") return std::make_unique<AutoencoderWork>();
  if (name == "mlp")
    return classifier(examples::mlp(), {.lr = 1e-3}, batches({64, 1, 28, 28}, 10, 8), 200);
  if (name == "cnn")
    return classifier(examples::cnn({.width_scale = 1.0 / 16}), {.lr = 0.01},
                      batches({64, 3, 32, 32}, 10, 2), 1);
  WEFT_THROW(InvalidArgument, "bench", "no work named '", name,
             "'; there are autoencoder, mlp and cnn");
}

}  // namespace weft::bench
