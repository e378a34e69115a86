// The convolutional autoencoder: encodes 28x28 grey images as 32 values and decodes them.
#pragma once

#include <utility>

#include "weft/weft.h"

namespace weft::examples {

/// x [N,1,28,28] -> code [N,32]
struct Encoder : nn::Module<Encoder> {
  nn::Conv2d conv1 = child("conv1", nn::Conv2d(1, 8, 3));
  nn::Conv2d conv2 = child("conv2", nn::Conv2d(8, 64, 3));
  nn::Linear fc = child("fc", nn::Linear(64 * 24 * 24, 32));

  Tensor forward(const Tensor& x) {
    return fc(conv2(conv1(x, nn::then_relu()), nn::then_relu()).flatten(1));
  }
};

/// code [N,32] -> image [N,1,28,28] in (0,1)
struct Decoder : nn::Module<Decoder> {
  nn::Linear fc = child("fc", nn::Linear(32, 64 * 24 * 24));
  nn::ConvTranspose2d conv2 = child("conv2", nn::ConvTranspose2d(64, 8, 3));
  nn::ConvTranspose2d conv1 = child("conv1", nn::ConvTranspose2d(8, 1, 3));

  Tensor forward(const Tensor& z) {
    return sigmoid(conv1(conv2(relu(fc(z).reshape({-1, 64, 24, 24})), nn::then_relu())));
  }
};

struct Autoencoder : nn::Module<Autoencoder> {
  Encoder encoder = child("encoder", Encoder());
  Decoder decoder = child("decoder", Decoder());

  /// {reconstruction, code}
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor z = encoder(x);
    return {decoder(z), z};
  }
};

/// The layers of `model` as a chain that shares them: x [N,1,28,28] -> reconstruction.
inline nn::Sequential layers(const Autoencoder& model) {
  const auto& [encoder, decoder] = std::tie(model.encoder, model.decoder);
  return {encoder.conv1, nn::ReLU(),    encoder.conv2, nn::ReLU(),
          nn::Flatten(), encoder.fc,    decoder.fc,    nn::Unflatten(1, {64, 24, 24}),
          nn::ReLU(),    decoder.conv2, nn::ReLU(),    decoder.conv1,
          nn::Sigmoid()};
}

}  // namespace weft::examples
