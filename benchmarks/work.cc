#include "weft/benchmarks/work.h"

#include "weft/autograd/autograd.h"
#include "weft/core/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/cnn.h"
#include "weft/examples/dcgan.h"
#include "weft/examples/mlp.h"
#include "weft/examples/resnet.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

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

/// One step of the discriminator, one of the generator.
class DcganWork final : public Work {
 public:
  DcganWork() { examples::dcgan_init(gan_); }
  void step() override {
    const Tensor& real = real_[at_ % real_.size()].first;
    const Tensor fake = gan_.generator(noise_[at_++ % noise_.size()].first);
    examples::train_discriminator(gan_, adam_d_, real, fake);
    examples::train_generator(gan_, adam_g_, fake);
  }
  std::int64_t batch_size() const override { return 64; }
  int block() const override { return 1; }

 private:
  static constexpr optim::AdamOptions kAdam = {.lr = 2e-4, .beta1 = 0.5};
  examples::Gan gan_{64, 64, 100};
  optim::Adam adam_d_{gan_.discriminator.parameters(), kAdam};
  optim::Adam adam_g_{gan_.generator.parameters(), kAdam};
  Batches real_ = batches({64, 1, 64, 64}, 10, 2);
  Batches noise_ = batches({64, 100, 1, 1}, 10, 2);
  std::size_t at_ = 0;
};

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

bool has_layouts(const std::string& name) { return name == "cnn" || name == "resnet50"; }

std::unique_ptr<Work> make_work(const std::string& name, bool channels_last, WorkSize size) {
  manual_seed(0);
  const bool full = size == WorkSize::full;
  const auto images = [&](const Shape& shape, std::int64_t classes, std::int64_t count) {
    Batches result = batches(shape, classes, count);
    for (auto& [x, label] : result) {
      if (channels_last) x = raw::contiguous(x, MemoryFormat::nhwc);
    }
    return result;
  };
  if (name == "autoencoder") return std::make_unique<AutoencoderWork>();
  if (name == "mlp")
    return classifier(examples::mlp(), {.lr = 1e-3}, batches({64, 1, 28, 28}, 10, 8), 200);
  if (name == "cnn")
    return classifier(examples::cnn({.width_scale = full ? 1 : 1.0 / 16}), {.lr = 0.01},
                      images({64, 3, 32, 32}, 10, 2), 1);
  if (name == "resnet50")
    return classifier(examples::resnet50(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4},
                      images({full ? 256 : 8, 3, 224, 224}, 1000, 2), 1);
  if (name == "dcgan") return std::make_unique<DcganWork>();
  WEFT_THROW(InvalidArgument, "bench", "no work named '", name,
             "'; there are autoencoder, mlp, cnn, resnet50 and dcgan");
}

}  // namespace weft::bench
