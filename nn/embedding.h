// Rows of a table, by number.
#pragma once

#include <optional>

#include "weft/nn/module.h"

namespace weft::nn {

struct EmbeddingOptions {
  /// A row that starts as zeros and gets no gradient, for what fills up short sequences; negative
  /// from the end.
  std::optional<std::int64_t> padding_idx;
};

/// index i64 [..] in [0, num) -> [..,dim], the rows of weight. weight [num,dim] starts as N(0, 1),
/// as PyTorch's within 2e-6. An index that is no row throws InvalidArgument on the CPU and gives
/// NaN on CUDA, which is not waited for. Throws InvalidArgument for a padding_idx that is no row.
class Embedding : public Module<Embedding> {
 public:
  Embedding(std::int64_t num, std::int64_t dim, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& index) { return embedding(index, weight, padding_idx_); }

  Parameter weight;

 private:
  std::optional<std::int64_t> padding_idx_;
};

}  // namespace weft::nn
