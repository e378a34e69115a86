// Which part of a layer a rank computes: the styles of parallelize (tensor_parallel.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::parallel {

// How a tensor lies on the ranks.

/// Each rank has the whole tensor, the same one.
struct Replicate {};
/// Rank r of n has the r-th of n equal parts along a dimension; -1 is the last one.
struct Shard {
  std::int64_t dim = -1;
};
using Layout = std::variant<Replicate, Shard>;

// How a layer is cut. `input`: how its argument lies, `output`: how its result shall lie. The names
// and their meaning are those of torch.distributed.tensor.parallel.

/// A Linear of which each rank computes some outputs, from the whole input: rows of the weight
/// [out,in] and of the bias. The output is Shard(-1) or Replicate.
struct ColwiseParallel {
  Layout input = Replicate{}, output = Shard{-1};
};
/// A Linear of which each rank uses some inputs, columns of the weight. The results are summed;
/// then the bias, which is not cut, is added. The input is Shard(-1) or Replicate. Must be called
/// without an activation. Its member `bias` is zeros from now on.
struct RowwiseParallel {
  Layout input = Shard{-1}, output = Replicate{};
};
/// A MultiheadAttention of which each rank computes some heads: ColwiseParallel for in_proj_weight
/// and in_proj_bias, each of whose three blocks is cut, RowwiseParallel for out_proj. Calls must
/// not ask for the weights of the attention (need_weights), and a mask must be the same for all
/// heads.
struct HeadParallel {
  Layout input = Replicate{}, output = Replicate{};
};
/// An Embedding or a Linear whose weight has a row for each word of a vocabulary. Each rank has
/// ceil(rows / n) rows, the last ranks fewer or none. An Embedding gives Replicate (the default) or
/// Shard: each rank looks up the words that it has, and the results are summed. A Linear computes
/// the logits of its words: Shard(-1) (the default), for parallel::cross_entropy, or Replicate.
struct VocabParallel {
  Layout input = Replicate{};
  std::optional<Layout> output = {};
};
/// A layer that computes with a part of the sequence, Shard(sequence_dim), and with each element of
/// it by itself, such as LayerNorm: its parameters are not cut, and their gradients are summed. A
/// Dropout in it draws the mask of the whole sequence and takes its part: with equal generators on
/// all ranks the result is that of one process, and each rank draws as many numbers. Not for layers
/// that compute one element from others (Conv1d, LSTM, BatchNorm1d, attention ...), nor for Linear
/// and Embedding, whose gradients a pipeline may put off.
struct SequenceParallel {
  std::int64_t sequence_dim = 1;
};
/// A Dropout whose argument and result are Shard(dim), such as those between ColwiseParallel and
/// RowwiseParallel. It draws as one under SequenceParallel.
struct DropoutParallel {
  std::int64_t dim = -1;
};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, HeadParallel, VocabParallel,
                                   SequenceParallel, DropoutParallel>;
/// Paths of modules, as in named_modules(); in each name of a path * stands for any characters.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

}  // namespace weft::parallel
