// The plain convolutional net for CIFAR-10: six convolutions, three linear layers, no activation.
#pragma once

#include <algorithm>
#include <cmath>

#include "weft/weft.h"

namespace weft::examples {

struct CnnOptions {
  double width_scale = 1;      ///< factor for all channels and hidden features; at least 1 is left
  std::int64_t hidden = 8000;  ///< features of the first linear layer
};

/// x [N,3,32,32] -> logits [N,10]
inline nn::Sequential cnn(const CnnOptions& options = {}) {
  const auto scaled = [&](std::int64_t width) {
    return std::max<std::int64_t>(1, std::llround(width * options.width_scale));
  };
  const auto conv = [&](std::int64_t in, std::int64_t out) {
    return nn::Conv2d(in == 3 ? in : scaled(in), scaled(out), 5, {.padding = 2});
  };
  const std::int64_t hidden = scaled(options.hidden);
  return {conv(3, 32),
          conv(32, 64),
          conv(64, 512),
          nn::MaxPool2d(2),
          conv(512, 1024),
          nn::MaxPool2d(2),
          conv(1024, 2048),
          conv(2048, 4096),
          nn::MaxPool2d(2),
          nn::Flatten(),
          nn::Linear(scaled(4096) * 4 * 4, hidden),
          nn::Linear(hidden, 64),
          nn::Linear(64, 10)};
}

}  // namespace weft::examples
