// Small versions of the examples' models, for the proofs of the engines, and a recurrent net.
// write_ddp_goldens.py has the first ones in PyTorch.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "weft/examples/char_transformer.h"
#include "weft/examples/cnn.h"
#include "weft/examples/resnet.h"
#include "weft/tests/parallel/nets.h"
#include "weft/weft.h"

namespace weft::testing {

/// x [N,1,8,8] -> logits [N,10]
inline nn::Sequential small_mlp() {
  return {nn::Flatten(), nn::Linear(64, 16), nn::ReLU(), nn::Linear(16, 10)};
}

/// x [N,1,8,8] -> code [N,6]
struct SmallEncoder : nn::Module<SmallEncoder> {
  nn::Conv2d conv1 = child("conv1", nn::Conv2d(1, 2, 3));
  nn::Conv2d conv2 = child("conv2", nn::Conv2d(2, 4, 3));
  nn::Linear fc = child("fc", nn::Linear(64, 6));

  Tensor forward(const Tensor& x) { return fc(relu(conv2(relu(conv1(x)))).flatten(1)); }
};

/// code [N,6] -> image [N,1,8,8] in (0,1)
struct SmallDecoder : nn::Module<SmallDecoder> {
  nn::Linear fc = child("fc", nn::Linear(6, 64));
  nn::ConvTranspose2d conv2 = child("conv2", nn::ConvTranspose2d(4, 2, 3));
  nn::ConvTranspose2d conv1 = child("conv1", nn::ConvTranspose2d(2, 1, 3));

  Tensor forward(const Tensor& z) {
    return sigmoid(conv1(relu(conv2(relu(fc(z).reshape({-1, 4, 4, 4}))))));
  }
};

struct SmallAutoencoder : nn::Module<SmallAutoencoder> {
  SmallEncoder encoder = child("encoder", SmallEncoder());
  SmallDecoder decoder = child("decoder", SmallDecoder());

  /// {reconstruction, code}
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor z = encoder(x);
    return {decoder(z), z};
  }
};

/// examples::BasicBlock with norm(channels) as batch norms.
template <class Norm>
struct SmallBlock : nn::Module<SmallBlock<Norm>> {
  using Base = nn::Module<SmallBlock<Norm>>;
  nn::Conv2d conv1;
  Norm bn1;
  nn::Conv2d conv2;
  Norm bn2;
  nn::Sequential downsample;

  template <class MakeNorm>
  SmallBlock(const MakeNorm& norm, std::int64_t in, std::int64_t planes, int stride)
      : conv1(Base::child("conv1", examples::conv3x3(in, planes, stride))),
        bn1(Base::child("bn1", norm(planes))),
        conv2(Base::child("conv2", examples::conv3x3(planes, planes))),
        bn2(Base::child("bn2", norm(planes))) {
    if (stride != 1 || in != planes)
      downsample = Base::child("downsample",
                               nn::Sequential{examples::conv1x1(in, planes, stride), norm(planes)});
  }

  Tensor forward(const Tensor& x) {
    const Tensor y = conv2(bn1(conv1(x), nn::then_relu()));
    return bn2(y, nn::then_add_relu(downsample(x)));
  }
};

/// x [N,3,8,8] -> logits [N,10]
template <class Norm>
struct SmallResNet : nn::Module<SmallResNet<Norm>> {
  using Base = nn::Module<SmallResNet<Norm>>;
  nn::Conv2d conv1 = Base::child("conv1", examples::conv3x3(3, 4));
  Norm bn1;
  SmallBlock<Norm> layer1, layer2;
  nn::AdaptiveAvgPool2d avgpool = Base::child("avgpool", nn::AdaptiveAvgPool2d(1));
  nn::Linear fc = Base::child("fc", nn::Linear(8, 10));

  template <class MakeNorm>
  explicit SmallResNet(const MakeNorm& norm)
      : bn1(Base::child("bn1", norm(4))),
        layer1(Base::child("layer1", SmallBlock<Norm>(norm, 4, 4, 1))),
        layer2(Base::child("layer2", SmallBlock<Norm>(norm, 4, 8, 2))) {}

  Tensor forward(const Tensor& images) {
    return fc(avgpool(layer2(layer1(bn1(conv1(images), nn::then_relu())))).flatten(1));
  }
};

/// x [N,1,8,8] -> logits [N,10]: reads an image line by line
struct SmallRecurrent : nn::Module<SmallRecurrent> {
  nn::LSTM lstm = child("lstm", nn::LSTM(8, 5, {.batch_first = true, .bidirectional = true}));
  nn::GRU gru = child("gru", nn::GRU(10, 6, {.batch_first = true}));
  nn::Linear fc = child("fc", nn::Linear(6, 10));

  Tensor forward(const Tensor& x) { return fc(gru(lstm(x.squeeze(1)).output).h_n[0]); }
};

/// x [N,1,8,8] -> logits [N,10]: reads the first lines of an image as a text of 10 characters
struct SmallTransformer : nn::Module<SmallTransformer> {
  examples::CharTransformer net = child(
      "net", examples::CharTransformer({.characters = 10, .context = 16, .width = 8, .heads = 2}));

  Tensor forward(const Tensor& x) {
    const Tensor text = ((x + 1.0) * 4.9).to(DType::i64).flatten(1).narrow(1, 0, 16);
    return net(text).select(1, -1);
  }
};

inline nn::BatchNorm2d batch_norm(std::int64_t channels) { return nn::BatchNorm2d(channels); }

/// Calls f(make, sample) for the mlp, the autoencoder, the cnn, the recurrent net, the transformer
/// or the resnet: make(norm) returns a new model, whose batch norms, if any, are norm(channels);
/// sample is the shape of a batch of one.
template <class F>
void with_model(const std::string& name, const F& f) {
  if (name == "mlp") {
    f([](const auto&) { return small_mlp(); }, Shape{1, 1, 8, 8});
  } else if (name == "autoencoder") {
    f([](const auto&) { return SmallAutoencoder(); }, Shape{1, 1, 8, 8});
  } else if (name == "cnn") {
    f([](const auto&) { return examples::cnn({.width_scale = 1.0 / 512}); }, Shape{1, 3, 32, 32});
  } else if (name == "recurrent") {
    f([](const auto&) { return SmallRecurrent(); }, Shape{1, 1, 8, 8});
  } else if (name == "transformer") {
    f([](const auto&) { return SmallTransformer(); }, Shape{1, 1, 8, 8});
  } else {
    f([](const auto& norm) { return SmallResNet<decltype(norm(1))>(norm); }, Shape{1, 3, 8, 8});
  }
}

/// Adam for the autoencoder, as in its program; SGD for the others, because it shows a gradient
/// with a wrong size, which Adam would hide.
template <class Model>
std::unique_ptr<optim::Optimizer> optimizer_of(Model& model) {
  if constexpr (std::is_same_v<Model, SmallAutoencoder>) {
    return std::make_unique<optim::Adam>(model.parameters(), optim::AdamOptions{.lr = 0.01});
  } else {
    return std::make_unique<optim::SGD>(
        model.parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
  }
}

}  // namespace weft::testing
