// Embedding: the rows of a table, chosen by index.
#pragma once

#include <optional>

#include "weft/autograd/indexing.h"
#include "weft/nn/module.h"

namespace weft::nn {

struct EmbeddingOptions {
  /// A row that starts as zeros and gets no gradient, for the padding of short sequences. A
  /// negative number counts from the end.
  std::optional<std::int64_t> padding_idx{};
};

/// index i64 [..] with values in [0, num) -> [..,dim], the rows of weight. weight [num,dim] starts
/// as N(0, 1), equal to PyTorch's within 2e-6. An index outside throws InvalidArgument, on CUDA
/// when the thread next waits for a device; until then it gives NaN. The constructor throws
/// InvalidArgument for a negative num or dim and for a padding_idx that is no row.
class Embedding : public Module<Embedding> {
 public:
  Embedding(std::int64_t num, std::int64_t dim, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& index) const { return embedding(index, weight, padding_idx_); }

  Parameter weight;

 private:
  std::optional<std::int64_t> padding_idx_;
};

}  // namespace weft::nn
