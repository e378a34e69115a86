// What a data set and a loader exchange: batches, and the kind of memory for their tensors. A batch
// is a Tensor or any structure that tensor/tree.h walks.
#pragma once

#include <cstdint>
#include <tuple>

#include "weft/tensor/tree.h"

namespace weft::data {

/// A batch of the image data sets in this folder.
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

  /// Makes `x` a row-major tensor of this shape and dtype, with unspecified contents. The old
  /// memory of x is used again if it is large enough, of this kind, not borrowed and not shared
  /// (is_unshared). So a data set that fills the same batch again and again allocates nothing.
  void prepare(Tensor& x, const Shape& shape, DType dtype) const;
};

/// Whether no other handle shares the tensor or its memory, and the tensor has no autograd state.
bool is_unshared(const Tensor& x);

}  // namespace weft::data
