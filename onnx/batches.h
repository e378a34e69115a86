// The two batches for which a model is traced. Private to onnx/.
#pragma once

#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::onnx {

struct Batches {
  std::pair<std::int64_t, std::int64_t> sizes;  ///< 1 and 1 if the batch is not dynamic
  std::vector<Tensor> first, second;
};

/// Both batches have rows of the example, at least two; the second has twice as many, so that
/// results of half of the batch differ, too. It has other rows of integer inputs and other values
/// of floating ones. Throws InvalidArgument for inputs without a batch, or of different batches,
/// and for an integer input that holds one value only: another value might be none that the model
/// takes.
Batches batches_of(const std::vector<Tensor>& example, bool dynamic);

/// Whether the tensors have the same shape, dtype and bits.
bool same_bits(const Tensor& a, const Tensor& b);

}  // namespace weft::onnx
