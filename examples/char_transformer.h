// A transformer that reads a text character by character and predicts the next one.
#pragma once

#include <cstdint>
#include <functional>

#include "weft/weft.h"

namespace weft::examples {

struct TransformerOptions {
  std::int64_t characters = 0;  ///< number of different characters
  std::int64_t context = 64;    ///< the longest text that the model reads
  std::int64_t width = 64;      ///< numbers per character in every layer
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  /// Called with each block as soon as it is made.
  std::function<void(nn::ModuleBase& block)> made = {};
};

/// A table with values U(-0.1, 0.1), which are the same bits here and in PyTorch; normal values
/// would differ in the last bits.
inline nn::Embedding table(std::int64_t rows, std::int64_t width) {
  nn::Embedding table(rows, width);
  nn::init::uniform_(table.weight, -0.1, 0.1);
  return table;
}

/// x [N,L,width] -> [N,L,width]: attention of each character to itself and the ones before, then a
/// layer for each character by itself. The results of both are added to their input.
class TransformerBlock : public nn::Module<TransformerBlock> {
 public:
  explicit TransformerBlock(const TransformerOptions& o)
      : norm1(child("norm1", nn::LayerNorm(o.width))),
        attention(
            child("attention", nn::MultiheadAttention(o.width, o.heads, {.batch_first = true}))),
        norm2(child("norm2", nn::LayerNorm(o.width))),
        mlp(child("mlp", nn::Sequential{nn::Linear(o.width, 4 * o.width), nn::GELU(),
                                        nn::Linear(4 * o.width, o.width)})) {}

  Tensor forward(const Tensor& x) {
    const Tensor y = x + attention(norm1(x), {.is_causal = true});
    return y + mlp(norm2(y));
  }

  nn::LayerNorm norm1;
  nn::MultiheadAttention attention;
  nn::LayerNorm norm2;
  nn::Sequential mlp;
};

/// Numbers of characters i64 [N,L], L up to the context -> logits of the next character
/// [N,L,characters], each from the characters up to there. The layers are those of GPT-2 (Radford
/// et al., 2019), without dropout.
class CharTransformer : public nn::Module<CharTransformer> {
 public:
  explicit CharTransformer(const TransformerOptions& o)
      : characters(child("characters", table(o.characters, o.width))),
        positions(child("positions", table(o.context, o.width))),
        norm(child("norm", nn::LayerNorm(o.width))),
        head(child("head", nn::Linear(o.width, o.characters))),
        blocks(child("blocks", nn::ModuleList<TransformerBlock>())) {
    for (std::int64_t i = 0; i < o.layers; ++i) {
      blocks.append(TransformerBlock(o));
      if (o.made) o.made(blocks[static_cast<std::size_t>(i)]);
    }
  }

  Tensor forward(const Tensor& text) {
    const Tensor places =
        arange(0, static_cast<double>(text.shape(1)), 1, {DType::i64, text.device()});
    Tensor x = characters(text) + positions(places);
    for (TransformerBlock& block : blocks) x = block(x);
    return head(norm(x));
  }

  nn::Embedding characters, positions;
  nn::LayerNorm norm;
  nn::Linear head;
  nn::ModuleList<TransformerBlock> blocks;
};

/// The mean cross-entropy over all characters of a batch. `model`: a CharTransformer, or what calls
/// it, such as DistributedDataParallel.
template <class Model>
Tensor next_character_loss(Model& model, const Tensor& x, const Tensor& y) {
  const Tensor logits = model(x);
  return nn::cross_entropy(logits.reshape({-1, logits.shape(2)}), y.reshape({-1}));
}

}  // namespace weft::examples
