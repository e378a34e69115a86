// A small transformer in f64 whose layers ranks share, and what it learns from.
#pragma once

#include <cstdint>
#include <utility>

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/attention.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/module_list.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/vocab_loss.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::testing {

using parallel::ParallelPlan;

inline constexpr std::int64_t kWords = 9, kLength = 8, kWidth = 16, kHeads = 4;

struct Block : nn::Module<Block> {
  explicit Block(double p)
      : attention(child("attention", nn::MultiheadAttention(kWidth, kHeads,
                                                            {.dropout = p, .batch_first = true}))),
        drop1(child("drop1", nn::Dropout(p))),
        drop2(child("drop2", nn::Dropout(p))) {}
  Tensor forward(const Tensor& x) const {
    const Tensor y = x + drop1(attention(norm1(x), {.is_causal = true}));
    return y + fc2(drop2(gelu(fc1(norm2(y)))));
  }

  nn::LayerNorm norm1 = child("norm1", nn::LayerNorm(kWidth));
  nn::LayerNorm norm2 = child("norm2", nn::LayerNorm(kWidth));
  nn::Linear fc1 = child("fc1", nn::Linear(kWidth, 2 * kWidth));
  nn::Linear fc2 = child("fc2", nn::Linear(2 * kWidth, kWidth));
  nn::MultiheadAttention attention;
  nn::Dropout drop1, drop2;
};

struct Net : nn::Module<Net> {
  explicit Net(double p = 0.2) : blocks(child("blocks", nn::ModuleList<Block>())) {
    for (int i = 0; i < 2; ++i) blocks.append(Block(p));
    // So that nothing is added that is 0 at the beginning.
    for (const auto& [name, x] : named_parameters()) {
      if (name.ends_with("bias")) raw::uniform_(x, -0.5, 0.5);
    }
    to(DType::f64);
  }
  Tensor forward(const Tensor& text) const {
    const auto end = static_cast<double>(first_place + text.shape(1));
    Tensor x = words(text) + places(arange(static_cast<double>(first_place), end, 1,
                                           {DType::i64, text.device()}));
    for (const Block& block : blocks) {
      x = checkpointed ? autograd::checkpoint([&](const Tensor& y) { return block(y); }, x)
                       : block(x);
    }
    return head(norm(x));
  }

  nn::Embedding words = child("words", nn::Embedding(kWords, kWidth));
  nn::Embedding places = child("places", nn::Embedding(kLength, kWidth));
  nn::LayerNorm norm = child("norm", nn::LayerNorm(kWidth));
  nn::Linear head = child("head", nn::Linear(kWidth, kWords));
  nn::ModuleList<Block> blocks;
  bool checkpointed = false;
  std::int64_t first_place = 0;
};

inline ParallelPlan plan_of(bool sequence) {
  using namespace parallel;
  if (!sequence) {
    return {{"words", VocabParallel{}},          {"blocks.*.attention", HeadParallel{}},
            {"blocks.*.fc1", ColwiseParallel{}}, {"blocks.*.drop2", DropoutParallel{}},
            {"blocks.*.fc2", RowwiseParallel{}}, {"head", VocabParallel{}}};
  }
  const Layout part = Shard{1};
  return {{"words", VocabParallel{.output = part}},
          {"places", VocabParallel{.output = Shard{0}}},
          {"blocks.*.norm*", SequenceParallel{}},
          {"blocks.*.attention", HeadParallel{.input = part, .output = part}},
          {"blocks.*.drop1", SequenceParallel{}},
          {"blocks.*.fc1", ColwiseParallel{.input = part}},
          {"blocks.*.drop2", DropoutParallel{}},
          {"blocks.*.fc2", RowwiseParallel{.output = part}},
          {"norm", SequenceParallel{}},
          {"head", VocabParallel{.input = part}}};
}

// [rows, kLength] words, and the ones that follow.
inline std::pair<Tensor, Tensor> text(int i, std::int64_t rows = 4) {
  Generator generator(static_cast<std::uint64_t>(100 + i));
  const auto draw = [&] {
    return uniform({rows, kLength}, 0, kWords, DType::f64, &generator).to(DType::i64);
  };
  const Tensor x = draw();
  return {x, draw()};
}

inline Tensor loss_of_all(const Net& net, const std::pair<Tensor, Tensor>& data) {
  const Tensor logits = net(data.first);
  return nn::cross_entropy(logits.flatten(0, 1), data.second.flatten());
}
inline Tensor loss_of_part(const Net& net, const parallel::Parallelized& tp,
                           const std::pair<Tensor, Tensor>& data) {
  const Tensor logits = net(data.first);
  return parallel::cross_entropy(tp.ranks(), logits.flatten(0, 1), data.second.flatten(), kWords);
}

}  // namespace weft::testing
