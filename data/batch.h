// What passes between a data set and a loader: batches, and the memory their tensors are put in. A
// batch is a Tensor or any structure that tensor/tree.h walks.
#pragma once

#include <cstdint>
#include <tuple>

#include "weft/tensor/tree.h"

namespace weft::data {

/// What the image sets of this folder give.
struct ImageBatch {
  Tensor x;      ///< f32 or f64 [B,C,H,W]
  Tensor label;  ///< i64 [B]
  auto tensors() { return std::tie(x, label); }
};

/// Host memory of the kind a loader wants its batches in.
struct HostMemory {
  Device device;  ///< a CPU device
  bool pinned =
      false;  ///< page-locked, so that a CUDA device can fetch it without stopping the host

  /// Makes `x` a row-major tensor of this shape and dtype, contents unspecified. What x held is
  /// used again where it is large enough and nobody else has a hold on it; so a data set that fills
  /// the same batch over and over allocates nothing.
  void prepare(Tensor& x, const Shape& shape, DType dtype) const;
};

/// Nobody but this handle can see the tensor or its memory.
bool is_unshared(const Tensor& x);

}  // namespace weft::data
