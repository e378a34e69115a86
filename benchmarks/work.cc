#include "weft/benchmarks/work.h"

#include <algorithm>
#include <array>

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/char_transformer.h"
#include "weft/examples/cnn.h"
#include "weft/examples/dcgan.h"
#include "weft/examples/mlp.h"
#include "weft/examples/resnet.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/train/step.h"

namespace weft::bench {

namespace {

using Batches = std::vector<std::pair<Tensor, Tensor>>;

train::Options step_options(const WorkOptions& options) {
  train::Options result;
  result.device = thread_state().device;
  result.graph = options.captured;
  return result;
}

/// For one step; converted weights are cached for this time, or for that of a scope around it.
autograd::Autocast autocast(const WorkOptions& options) {
  return autograd::Autocast(thread_state().device.type, {.enabled = options.amp});
}

Batches batches_of(const WorkSpec& spec, const WorkOptions& options) {
  Batches result = batches(spec.images, spec.classes, spec.count);
  for (auto& [x, label] : result) {
    if (options.channels_last) x = raw::contiguous(x, MemoryFormat::nhwc);
  }
  return result;
}

class AutoencoderWork final : public Work {
 public:
  AutoencoderWork(const WorkSpec& spec, const WorkOptions& options)
      : data_(batches_of(spec, options)), step_(step_options(options), [=, this](const Tensor& x) {
          const autograd::Autocast scope = autocast(options);
          adam_.zero_grad();
          const Tensor loss = nn::mse_loss(model_(x).first, x);
          loss.backward();
          adam_.step();
          return loss;
        }) {}
  void step() override { step_(data_[at_++ % data_.size()].first); }

 private:
  examples::Autoencoder model_;
  optim::Adam adam_{model_.parameters()};
  Batches data_;
  std::size_t at_ = 0;
  train::Step<Tensor(const Tensor&)> step_;
};

template <class Model>
class ClassifierWork final : public Work {
 public:
  ClassifierWork(Model model, const optim::SGDOptions& sgd, const WorkSpec& spec,
                 const WorkOptions& options)
      : model_(std::move(model)),
        sgd_(model_.parameters(), sgd),
        data_(batches_of(spec, options)),
        step_(step_options(options), [=, this](const Tensor& x, const Tensor& label) {
          const autograd::Autocast scope = autocast(options);
          sgd_.zero_grad();
          const Tensor loss = nn::cross_entropy(model_(x), label);
          loss.backward();
          sgd_.step();
          return loss;
        }) {}
  void step() override {
    const auto& [x, label] = data_[at_++ % data_.size()];
    step_(x, label);
  }

 private:
  Model model_;
  optim::SGD sgd_;
  Batches data_;
  std::size_t at_ = 0;
  train::Step<Tensor(const Tensor&, const Tensor&)> step_;
};

class TransformerWork final : public Work {
 public:
  TransformerWork(const WorkSpec& spec, const WorkOptions& options)
      : model_({.characters = spec.classes, .context = spec.images[1]}),
        train_(spec.train),
        data_(texts(spec)),
        step_(step_options(options), [=, this](const Tensor& x, const Tensor& y) {
          const autograd::Autocast scope = autocast(options);
          if (!train_) return model_(x);
          adam_.zero_grad();
          const Tensor loss = examples::next_character_loss(model_, x, y);
          loss.backward();
          adam_.step();
          return loss;
        }) {
    if (!train_) model_.eval();
  }
  void step() override {
    const auto& [x, y] = data_[at_++ % data_.size()];
    if (train_) {
      step_(x, y);
    } else {
      const NoGrad no_grad;
      step_(x, y);
    }
  }

 private:
  examples::CharTransformer model_;
  optim::AdamW adam_{model_.parameters()};
  const bool train_;
  Batches data_;
  std::size_t at_ = 0;
  train::Step<Tensor(const Tensor&, const Tensor&)> step_;
};

/// One step of the discriminator, one of the generator.
class DcganWork final : public Work {
 public:
  DcganWork(const WorkSpec& spec, const WorkOptions& options)
      : gan_(static_cast<int>(spec.images[2]), spec.channels, spec.latent),
        real_(batches_of(spec, options)),
        noise_(batches({spec.images[0], spec.latent, 1, 1}, spec.classes, spec.count)),
        step_(step_options(options), [=, this](const Tensor& real, const Tensor& z) {
          const autograd::Autocast scope = autocast(options);
          const Tensor fake = gan_.generator(z);
          examples::train_discriminator(gan_.discriminator, adam_d_, real, fake);
          return examples::train_generator(gan_, adam_g_, fake);
        }) {
    examples::dcgan_init(gan_);
  }
  void step() override {
    const std::size_t at = at_++ % real_.size();
    step_(real_[at].first, noise_[at].first);
  }

 private:
  static constexpr optim::AdamOptions kAdam = {.lr = 2e-4, .beta1 = 0.5};
  examples::Gan gan_;
  optim::Adam adam_d_{gan_.discriminator.parameters(), kAdam};
  optim::Adam adam_g_{gan_.generator.parameters(), kAdam};
  Batches real_, noise_;
  std::size_t at_ = 0;
  train::Step<Tensor(const Tensor&, const Tensor&)> step_;
};

const std::array kWorks = {
    WorkSpec{.name = "autoencoder", .model = "autoencoder", .images = {32, 1, 28, 28}},
    WorkSpec{.name = "mlp", .model = "mlp", .images = {64, 1, 28, 28}, .block = 200},
    WorkSpec{.name = "cnn",
             .model = "cnn",
             .images = {64, 3, 32, 32},
             .count = 2,
             .block = 1,
             .width = 1.0 / 16},
    WorkSpec{.name = "cnn-full",
             .model = "cnn",
             .images = {64, 3, 32, 32},
             .count = 2,
             .block = 1,
             .hidden = 5000},
    WorkSpec{.name = "resnet50",
             .model = "resnet",
             .images = {8, 3, 224, 224},
             .classes = 1000,
             .count = 2,
             .block = 1},
    WorkSpec{.name = "resnet50-b256",
             .model = "resnet",
             .images = {256, 3, 224, 224},
             .classes = 1000,
             .count = 2,
             .block = 1},
    WorkSpec{.name = "dcgan", .model = "dcgan", .images = {64, 1, 64, 64}, .count = 2, .block = 1},
    WorkSpec{.name = "transformer", .model = "transformer", .images = {32, 64}, .classes = 96},
    WorkSpec{.name = "transformer-infer",
             .model = "transformer",
             .images = {32, 64},
             .classes = 96,
             .train = false},
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

Batches texts(const WorkSpec& spec) {
  Batches result;
  const std::int64_t size = numel(spec.images);
  for (std::int64_t b = 0; b < spec.count; ++b) {
    const auto text = [&](std::int64_t first) {
      std::vector<std::int64_t> characters(static_cast<std::size_t>(size));
      for (auto& character : characters) character = first++ * 7919 % spec.classes;
      return from_vector(characters, spec.images);
    };
    result.emplace_back(text(b * size), text(b * size + 1));
  }
  return result;
}

WorkSpec find_work(const std::string& name) {
  const auto found = std::ranges::find(kWorks, name, &WorkSpec::name);
  if (found != kWorks.end()) return *found;
  std::string names;
  for (const WorkSpec& spec : kWorks) names += (names.empty() ? "" : ", ") + spec.name;
  WEFT_THROW(InvalidArgument, "bench", "no work named '", name, "'; there are ", names);
}

WorkSpec tiny(WorkSpec spec) {
  if (spec.images.size() == 2) {
    spec.images = {2, 4};
    spec.count = 2;
    spec.block = 1;
    return spec;
  }
  const bool any_size = spec.model == "resnet" || spec.model == "dcgan";
  const std::int64_t side = any_size ? 32 : spec.images[2];
  spec.images = {2, spec.images[1], side, side};
  spec.classes = 10;
  spec.count = 2;
  spec.block = 1;
  spec.width = 1.0 / 64;
  spec.depth = 18;
  spec.channels = 2;
  spec.latent = 4;
  return spec;
}

nlohmann::json to_json(const WorkSpec& spec) {
  return {{"name", spec.name},
          {"model", spec.model},
          {"images", std::vector<std::int64_t>(spec.images.begin(), spec.images.end())},
          {"classes", spec.classes},
          {"count", spec.count},
          {"block", spec.block},
          {"width", spec.width},
          {"hidden", spec.hidden},
          {"depth", spec.depth},
          {"channels", spec.channels},
          {"latent", spec.latent},
          {"train", spec.train}};
}

std::unique_ptr<Work> make_work(const WorkSpec& spec, const WorkOptions& options) {
  manual_seed(0);
  const auto classifier = [&]<class Model>(Model model, const optim::SGDOptions& sgd) {
    return std::make_unique<ClassifierWork<Model>>(std::move(model), sgd, spec, options);
  };
  if (spec.model == "autoencoder") return std::make_unique<AutoencoderWork>(spec, options);
  if (spec.model == "mlp") return classifier(examples::mlp(), {.lr = 1e-3});
  if (spec.model == "cnn") {
    return classifier(examples::cnn({.width_scale = spec.width, .hidden = spec.hidden}),
                      {.lr = 0.01});
  }
  if (spec.model == "resnet") {
    return classifier(examples::resnet(spec.depth, {.num_classes = spec.classes}),
                      {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4});
  }
  if (spec.model == "transformer") return std::make_unique<TransformerWork>(spec, options);
  return std::make_unique<DcganWork>(spec, options);
}

}  // namespace weft::bench
