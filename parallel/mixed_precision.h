// MixedPrecisionPolicy: the dtypes in which a unit of fully_shard computes and sends.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "weft/core/base/dtype.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// As torch.distributed.fsdp.MixedPrecisionPolicy. The parts, which the optimiser updates, keep
/// their dtype, and so do their gradients, and buffers. fully_shard throws Dtype if one is not
/// floating.
struct MixedPrecisionPolicy {
  /// The dtype of gathered parameters, in which the module computes. Unset: that of the parts.
  std::optional<DType> param_dtype = {};
  /// In which gradients are summed over the ranks. Unset: as they are computed.
  std::optional<DType> reduce_dtype = {};
  /// To which the module's floating results are cast. Unset: they are not cast.
  std::optional<DType> output_dtype = {};
  /// Whether the module's floating arguments are cast to param_dtype.
  bool cast_forward_inputs = true;
};

// Private to parallel/.

/// Throws Dtype if one is not floating.
void check(const MixedPrecisionPolicy& policy);
std::string to_string(const MixedPrecisionPolicy& policy);
/// Replaces floating tensors by casts on the tape; the same tensor twice by the same cast.
void cast_floating(std::span<Tensor> tensors, DType dtype);

}  // namespace weft::parallel
