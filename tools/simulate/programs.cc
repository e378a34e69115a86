#include "weft/tools/simulate/programs.h"

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/char_transformer.h"
#include "weft/examples/cnn.h"
#include "weft/examples/mlp.h"
#include "weft/examples/resnet.h"
#include "weft/nn/loss.h"
#include "weft/nn/summary.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"

namespace weft::simulator {
namespace {

template <class Optimizer, class Options>
auto maker(const Options& options) {
  return [options](const std::vector<Tensor>& parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

// The layers of a CharTransformer before and behind its blocks, for a Sequential.
class Tables : public nn::Module<Tables> {
 public:
  explicit Tables(const examples::CharTransformer& net)
      : characters(child("characters", net.characters)),
        positions(child("positions", net.positions)) {}
  Tensor forward(const Tensor& text) {
    return characters(text) +
           positions(arange(0, static_cast<double>(text.shape(1)), 1, {DType::i64, text.device()}));
  }
  nn::Embedding characters, positions;
};
class Head : public nn::Module<Head> {
 public:
  explicit Head(const examples::CharTransformer& net)
      : norm(child("norm", net.norm)), head(child("head", net.head)) {}
  Tensor forward(const Tensor& x) { return head(norm(x)); }
  nn::LayerNorm norm;
  nn::Linear head;
};

// Cut as by tensor_plan() of examples/transformer_program.h.
Program char_transformer() {
  constexpr std::int64_t kCharacters = 96;  // in weft's own docs
  const examples::TransformerOptions options{.characters = kCharacters};
  examples::CharTransformer net(options);
  nn::Sequential layers;
  layers.append(Tables(net));
  for (const auto& block : net.blocks) layers.append(block);
  layers.append(Head(net));
  const std::size_t last = layers.size() - 1;
  return {.name = "char_transformer",
          .layers = layers,
          .row = {options.context},
          .characters = kCharacters,
          .make_optimizer = maker<optim::AdamW>(optim::AdamWOptions()),
          .optimizer_passes = 7,
          .batch_size = 32,
          .own_unit = [last](std::size_t layer) { return 0 < layer && layer < last; },
          .is_cut =
              [](std::size_t, const std::string& name) {
                return name == "characters.weight" || name.starts_with("head.") ||
                       (name.starts_with("attention.") && name != "attention.out_proj.bias") ||
                       name.starts_with("mlp.0.") || name == "mlp.2.weight";
              },
          .sums = [last](std::size_t layer) -> std::pair<int, int> {
            if (layer == 0) return {1, 0};
            return layer == last ? std::pair(0, 1) : std::pair(2, 2);
          },
          .plan = {{"0.characters", parallel::VocabParallel{}},
                   {"*.attention", parallel::HeadParallel{}},
                   {"*.mlp.0", parallel::ColwiseParallel{}},
                   {"*.mlp.2", parallel::RowwiseParallel{}},
                   {std::to_string(last) + ".head", parallel::VocabParallel{}}},
          .heads = options.heads,
          .sizes = {1, 4, 16, 32}};
}

}  // namespace

std::pair<Tensor, Tensor> Program::batch(std::int64_t count) const {
  Shape shape = {count};
  for (const std::int64_t size : row) shape.push_back(size);
  if (characters > 0) {
    const auto text = [&] { return randint(0, characters, shape); };
    return {text(), text()};
  }
  const Tensor x = rand(shape);
  return {x, classifies ? zeros({count}, DType::i64) : x};
}

Tensor Program::loss(const Tensor& output, const Tensor& target) const {
  if (characters > 0) return nn::cross_entropy(output.flatten(0, 1), target.flatten());
  return classifies ? nn::cross_entropy(output, target) : nn::mse_loss(output, target);
}

const std::vector<std::string>& program_names() {
  static const std::vector<std::string> names = {
      "autoencoder", "mlp", "mlp_adam", "cnn", "resnet18", "resnet50", "char_transformer"};
  return names;
}

Program make_program(const std::string& name) {
  constexpr std::int64_t kClasses = 10;
  const auto sgd = maker<optim::SGD>(optim::SGDOptions{.lr = 0.01});
  if (name == "autoencoder") {
    return {.name = name,
            .layers = examples::layers(examples::Autoencoder()),
            .row = {1, 28, 28},
            .classifies = false,
            .make_optimizer = maker<optim::Adam>(optim::AdamOptions()),
            .optimizer_passes = 7,  // reads w, g and both moments, writes all except g
            .first_part = 6,
            .batch_size = 256};
  }
  if (name == "mlp_adam") {  // as mlp_zero trains it
    Program program = make_program("mlp");
    program.name = name;
    program.make_optimizer = maker<optim::Adam>(optim::AdamOptions());
    return program;
  }
  if (name == "mlp") {
    return {.name = name,
            .layers = examples::mlp(),
            .row = {1, 28, 28},
            .make_optimizer = sgd,
            .sizes = {4, 16, 64, 256, 1024}};
  }
  if (name == "cnn") {  // as narrow as in the benchmarks
    return {.name = name,
            .layers = examples::cnn({.width_scale = 1.0 / 16}),
            .row = {3, 32, 32},
            .make_optimizer = sgd,
            .sizes = {2, 8, 32, 64}};
  }
  if (name == "char_transformer") return char_transformer();
  WEFT_CHECK(name == "resnet18" || name == "resnet50", InvalidArgument, "simulate",
             "there is no program ", name);
  const examples::ResNet model =
      examples::resnet(name == "resnet18" ? 18 : 50, {.num_classes = kClasses});
  return {.name = name,
          .layers = examples::layers(model),
          .row = {3, 224, 224},
          .make_optimizer = maker<optim::SGD>(
              optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4}),
          .optimizer_passes = 5,
          .batch_size = 8,
          .sizes = {1, 4}};
}

Work work_of(const Program& program) {
  Shape shape = {1};
  for (const std::int64_t size : program.row) shape.push_back(size);
  Work work{.program = program.name, .optimizer_passes = program.optimizer_passes};
  double input = static_cast<double>(numel(shape)) * sizeof(float);
  nn::Sequential layers = program.layers;
  for (const nn::SummaryRow& row : nn::summary(layers, shape).rows) {
    // A module that only calls others has no work of its own; an in-place one such as ReLU hardly
    // counts.
    if (row.macs == 0 && row.activation_bytes == 0) continue;
    work.layers.push_back({.macs = static_cast<double>(row.macs),
                           .input_bytes = input,
                           .output_bytes = static_cast<double>(row.activation_bytes),
                           .parameter_bytes = static_cast<double>(row.parameters) * sizeof(float)});
    if (row.activation_bytes > 0) input = work.layers.back().output_bytes;
  }
  return work;
}

}  // namespace weft::simulator
