// onnx.checker and onnxruntime read the models that weft exports, and compute the same:
// onnx_peer.py.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/char_transformer.h"
#include "weft/examples/cnn.h"
#include "weft/examples/dcgan.h"
#include "weft/examples/mlp.h"
#include "weft/examples/resnet.h"
#include "weft/io/npy.h"
#include "weft/nn/activation.h"
#include "weft/nn/embedding.h"
#include "weft/nn/group_norm.h"
#include "weft/nn/instance_norm.h"
#include "weft/nn/padding.h"
#include "weft/nn/pixel_shuffle.h"
#include "weft/nn/recurrent.h"
#include "weft/nn/transformer.h"
#include "weft/nn/upsample.h"
#include "weft/onnx/export.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/io/files.h"
#include "weft/tests/peers/onnx_random.h"

namespace weft::onnx {
namespace {

// Models and what they compute, in a folder that the peer reads.
class Peer {
 public:
  Peer() : python_(std::getenv("WEFT_PEER")) {}
  bool missing() const { return python_ == nullptr; }

  // `input` makes the input for a batch.
  template <class Model>
  void add(const std::string& name, Model model, std::vector<std::function<Tensor(int)>> inputs) {
    const auto batch_of = [&](int rows) {
      std::vector<Tensor> batch;
      for (const auto& input : inputs) batch.push_back(input(rows));
      return batch;
    };
    nn::AnyModule any(model);
    any.train();
    save(any, batch_of(3), folder_.path(name + ".onnx"));
    EXPECT_TRUE(any.is_training());
    any.eval();
    const NoGrad no_grad;
    for (const int rows : {3, 1, 5}) {
      const std::vector<Tensor> x = batch_of(rows), y = any(x);
      NamedTensors arrays;
      for (std::size_t i = 0; i < x.size(); ++i)
        arrays.emplace_back(named("input", i, x.size()), x[i]);
      for (std::size_t i = 0; i < y.size(); ++i)
        arrays.emplace_back(named("output", i, y.size()), y[i]);
      io::save_npz(folder_.path(name + "." + std::to_string(rows) + ".npz"), arrays);
    }
  }

  int run() const {
    const std::string command =
        std::string(python_) + " tests/peers/onnx_peer.py " + folder_.root();
    return std::system(command.c_str());
  }

 private:
  using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
  static std::string named(const std::string& kind, std::size_t i, std::size_t count) {
    return count == 1 ? kind : kind + "_" + std::to_string(i);
  }
  const char* python_;
  testing::TempFolder folder_;
};

#define WEFT_NEEDS_PEER(peer) \
  if (peer.missing()) GTEST_SKIP() << "set WEFT_PEER to a Python with onnx and onnxruntime"

std::function<Tensor(int)> floats(const Dims& row) {
  return [row](int rows) {
    Dims shape = row;
    shape.insert(0, rows);
    return randn(shape);
  };
}
std::function<Tensor(int)> ids(std::int64_t length, std::int64_t count) {
  return [=](int rows) { return randint(0, count, {rows, length}); };
}

// After two steps that move the running statistics.
template <class Model>
Model trained(Model model, const std::function<Tensor(int)>& input) {
  const NoGrad no_grad;
  for (int step = 0; step < 2; ++step) model(input(8));
  return model;
}

// A user's own module: two branches, joined.
struct Branches : nn::Module<Branches> {
  nn::Conv2d left = child("left", nn::Conv2d(3, 4, 3, {.padding = 1}));
  nn::Conv2d right = child("right", nn::Conv2d(3, 4, 3, {.stride = 2, .padding = 1}));
  nn::Parameter scale = parameter("scale", full({8, 1, 1}, 0.5));
  nn::Linear head = child("head", nn::Linear(8 * 12 * 12, 10));
  Tensor forward(const Tensor& x) const {
    const Tensor small = relu(right(x));
    const Tensor both =
        cat({left(x), interpolate(small, {.scale_factor = {2}, .mode = "bilinear"})}, 1);
    const Tensor sum = both + both.flatten(1).mean({1}, true).unsqueeze(2).unsqueeze(3) * scale;
    return head(sum.flatten(1));
  }
};

TEST(OnnxPeer, OnnxruntimeComputesTheExamples) {
  Peer peer;
  WEFT_NEEDS_PEER(peer);
  manual_seed(1);
  using namespace examples;
  peer.add("mlp", mlp(), {floats({1, 28, 28})});
  peer.add("autoencoder", Autoencoder(), {floats({1, 28, 28})});
  peer.add("cnn", cnn({.width_scale = 0.1, .hidden = 100}), {floats({3, 32, 32})});
  const auto pictures = floats({3, 64, 64});
  peer.add("resnet18", trained(resnet18({.num_classes = 10}), pictures), {pictures});
  peer.add("resnet50", trained(resnet50(), pictures), {pictures});
  peer.add("transformer", CharTransformer({.characters = 30}), {ids(16, 30)});
  const auto noise = floats({20, 1, 1}), digits = floats({1, 32, 32});
  peer.add("generator", trained(examples::Generator(32, 8, 20), noise), {noise});
  peer.add("discriminator", trained(Discriminator(32, 8), digits), {digits});
  peer.add("branches", Branches(), {floats({3, 12, 12})});
  EXPECT_EQ(peer.run(), 0);
}

struct Classifier : nn::Module<Classifier> {
  nn::Parameter token = parameter("token", randn({1, 1, 16}));
  nn::Conv2d patches = child("patches", nn::Conv2d(3, 16, 4, {.stride = 4}));
  nn::TransformerEncoder encoder = child(
      "encoder", nn::TransformerEncoder(nn::TransformerEncoderLayer(
                                            16, 4, {.activation = "gelu", .batch_first = true}),
                                        2, nn::LayerNorm(16)));
  Tensor forward(const Tensor& x) const {
    const Tensor rows = patches(x).flatten(2).transpose(1, 2);
    const Tensor all = cat({token.expand({x.shape(0), 1, 16}), rows}, 1);
    return encoder(all, {}).select(1, 0);
  }
};

// The mask is an input, too; a query that sees no key gets 0.
struct Masked : nn::Module<Masked> {
  Tensor forward(const Tensor& x, const Tensor& mask, const Tensor& hidden) const {
    const Tensor q = x.unsqueeze(1);
    const Tensor y = scaled_dot_product_attention(q, q, q, {.attn_mask = mask}).squeeze(1);
    return y + masked_fill(x, hidden, 2);
  }
};

// Masks that the model computes: of ids, of numbers that are none, and of half of the columns.
struct Padded : nn::Module<Padded> {
  nn::Embedding table = child("table", nn::Embedding(10, 8));
  Tensor forward(const Tensor& ids, const Tensor& x) const {
    const Tensor hidden = (ids == 0.0) | (ids > 7.0), q = table(ids.remainder(9.0)).unsqueeze(1);
    const Tensor mask = (~hidden).unsqueeze(1).unsqueeze(1).expand({ids.shape(0), 1, 5, 5});
    const Tensor y = scaled_dot_product_attention(q, q, q, {.attn_mask = mask}).squeeze(1);
    const Tensor added = where(hidden, -std::numeric_limits<double>::infinity(), x.sum({2}) * 0.0)
                             .unsqueeze(1)
                             .unsqueeze(1)
                             .expand({ids.shape(0), 1, 5, 5});
    const Tensor z = scaled_dot_product_attention(q, q, q, {.attn_mask = added}).squeeze(1);
    const Tensor counts = (ids != 0.0).to(DType::f32).sum({1}, true).unsqueeze(2);
    const Tensor finite = where(isfinite(x / relu(x)), x, zeros_like(x)) + all(x < 1.0, {2}, true);
    const Tensor steps = (ids.floor_divide(2.0) + ids.to(DType::i32)).to(DType::f32).unsqueeze(2);
    return y + z + counts + finite + steps + any(isnan(x) | (x.detach() >= 1.5), {1}, true);
  }
};

// In-place methods on tensors of the program, and activations of comparisons.
struct Written : nn::Module<Written> {
  nn::Parameter gain = parameter("gain", randn({4}));
  nn::PReLU prelu = child("prelu", nn::PReLU(4));
  nn::Sequential rest =
      child("rest", nn::Sequential{nn::ReLU6(), nn::Hardswish(), nn::Hardsigmoid()});
  Tensor forward(const Tensor& x) const {
    Tensor scale = full({4}, 0.5), sum = zeros_like(x);
    scale.mul_(gain);
    sum += x * scale;
    sum -= gain;
    return rest(x * 4.0) + prelu(sum) + remainder(x, 0.3) + fmod(x, 0.4) +
           floor_divide((x * 10.0).round(), 0.1) * 0.01;
  }
};

template <class Layer>
struct Last : nn::Module<Last<Layer>> {
  Layer layer;
  explicit Last(Layer l) : layer(this->child("layer", std::move(l))) {}
  Tensor forward(const Tensor& x) const { return layer(x).output; }
};

TEST(OnnxPeer, OnnxruntimeComputesLayers) {
  Peer peer;
  WEFT_NEEDS_PEER(peer);
  manual_seed(2);
  peer.add("classifier", Classifier(), {floats({3, 16, 16})});
  const auto mask = [](const Dims& row) {
    return [x = floats(row)](int rows) { return raw::gt(x(rows), rows == 3 ? 0.0 : 1.3); };
  };
  peer.add("masked", Masked(), {floats({5, 8}), mask({1, 5, 5}), mask({5, 1})});
  peer.add("padded", Padded(), {ids(5, 10), floats({5, 8})});
  peer.add("written", Written(), {floats({4})});
  peer.add("lstm",
           Last(nn::LSTM(4, 6, {.num_layers = 2, .batch_first = true, .bidirectional = true})),
           {floats({5, 4})});
  peer.add("gru", Last(nn::GRU(4, 6, {.batch_first = true})), {floats({5, 4})});
  peer.add("norms",
           nn::Sequential{nn::GroupNorm(2, 6), nn::InstanceNorm2d(6), nn::Tanh(),
                          nn::GroupNorm(3, 6, {.affine = false}), nn::Softplus()},
           {floats({6, 5, 4})});
  peer.add("upsampled",
           nn::Sequential{nn::Upsample({.scale_factor = {2.5}}), nn::Conv2d(3, 4, 3),
                          nn::Upsample({.scale_factor = {2}, .mode = "bilinear"}),
                          nn::ReflectionPad2d(1), nn::PixelShuffle(2)},
           {floats({3, 5, 4})});
  EXPECT_EQ(peer.run(), 0);
}

// WEFT_ONNX_RANDOM: how many, with another seed for each number.
TEST(OnnxPeer, OnnxruntimeComputesRandomChains) {
  Peer peer;
  WEFT_NEEDS_PEER(peer);
  const char* given = std::getenv("WEFT_ONNX_RANDOM");
  const int count = given ? std::atoi(given) : 60;
  testing::RandomChains chains(static_cast<unsigned>(count));
  manual_seed(static_cast<std::uint64_t>(count));
  for (int i = 0; i < count; ++i) {
    const testing::Chain chain = chains.next(1 + i % 5);
    SCOPED_TRACE(chain.text);
    if (given) std::printf("random%d:%s\n", i, chain.text.c_str());
    peer.add("random" + std::to_string(i), chain, {[&](int rows) { return chains.input(rows); }});
  }
  EXPECT_EQ(peer.run(), 0);
}

}  // namespace
}  // namespace weft::onnx
