// TensorSlice: a part of a tensor, as a SliceWriter writes it and a SliceReader reads it.
#pragma once

#include <string>

#include "weft/tensor/tensor.h"

namespace weft::io {

/// A box of a named tensor: of dimension d the tensor.shape(d) places from offsets[d] on.
struct TensorSlice {
  std::string name;
  Shape whole;    ///< of the named tensor
  Shape offsets;  ///< as many as `whole` has dimensions
  Tensor tensor;  ///< the box's values
};

}  // namespace weft::io
