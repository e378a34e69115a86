// What the programs that train a transformer have in common.
#pragma once

#include <cmath>
#include <vector>

#include "weft/examples/char_transformer.h"
#include "weft/examples/text.h"
#include "weft/train/train.h"

namespace weft::examples {

inline std::vector<train::Flag> transformer_flags(TransformerOptions& net) {
  return {{"--context", &net.context, "characters it looks back at"},
          {"--width", &net.width, "numbers for each character, a multiple of --heads"},
          {"--heads", &net.heads, "of each layer's attention"},
          {"--layers", &net.layers, "blocks of attention and a perceptron"}};
}

/// The mean cross-entropy over all characters of `pieces`, in bits.
inline double bits_per_character(CharTransformer& model, const Windows& pieces,
                                 const train::Options& options, std::int64_t batch_size = 100,
                                 const train::Ranks& ranks = {}) {
  auto test =
      train::test_loader(pieces, options, {.batch_size = batch_size, .device = options.device});
  double nats = 0;
  for (auto& [x, y] : test) {
    // A signal to one rank ends all of them before the same batch.
    if (ranks.sum({train::interrupted() ? 1.0 : 0.0})[0] > 0) throw train::Interrupted();
    nats += next_character_loss(model, x, y).template item<double>() * x.shape(0);
  }
  return nats / test.dataset().size() / std::log(2.0);
}

}  // namespace weft::examples
