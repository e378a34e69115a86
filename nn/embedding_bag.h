// EmbeddingBag: sums, means or maxima of the rows of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct EmbeddingBagOptions {
  std::string mode = "mean";         ///< or "sum", "max"
  bool include_last_offset = false;  ///< the offsets end with the number of indices
  /// A row that starts as zeros, gets no gradient, and counts in no bag. A negative number counts
  /// from the end.
  std::optional<std::int64_t> padding_idx{};
};

/// index i64 [bags,n] -> [bags,dim]: for each bag the sum, mean or maximum of its rows of weight.
/// Or index [n], and i64 offsets [bags] in ascending order: bag b begins at offsets[b] and ends
/// where the next one begins. A bag without rows gives zeros. As torch.nn.EmbeddingBag.
///   Tensor y = bag(index, offsets);
///   Tensor y = bag(index, offsets, weights);   // mode "sum": each row times its weight
///
/// weight [num,dim] starts as N(0, 1), as Embedding's. With offsets the sums are in the order of
/// index, on CUDA too. Those of bf16 are in f32, and rounded at the end, after the mean's division;
/// gradients of equal indices are added in the dtype of weight. An index outside [0, num)
/// throws InvalidArgument, on CUDA later, as in Embedding; offsets that do not begin with 0,
/// descend or end above n throw InvalidArgument on the CPU, and on CUDA are not checked. "max" with
/// offsets waits for the device, which knows the longest bag. Throws Shape, and InvalidArgument for
/// weights in another mode than "sum"; the constructor throws InvalidArgument for a negative num or
/// dim, for a padding_idx that is no row and for another mode.
class EmbeddingBag : public Module<EmbeddingBag> {
 public:
  EmbeddingBag(std::int64_t num, std::int64_t dim, const EmbeddingBagOptions& options = {});
  Tensor forward(const Tensor& index, const Tensor& offsets = {},
                 const Tensor& per_sample_weights = {}) const;
  Tensor operator()(const Tensor& index, const Tensor& offsets = {},
                    const Tensor& per_sample_weights = {}) const {
    return Module::operator()(index, offsets, per_sample_weights);
  }

  Parameter weight;

 private:
  enum class Mode { sum, mean, max };
  Tensor not_padding(const Tensor& index) const;
  Tensor of_bags(const Tensor& index, const Tensor& counts, const Tensor& weights) const;
  Tensor of_offsets(const Tensor& index, Tensor offsets, const Tensor& weights) const;

  Mode mode_;
  bool include_last_offset_;
  std::optional<std::int64_t> padding_idx_;
};

}  // namespace weft::nn
