// Gradients side by side in one block of memory, so that they are reduced in one message and in
// place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

struct GradientMemory {
  /// For parameters of one dtype and device, followed by `extra` numbers. On the CPU it is
  /// ProcessGroup::empty(): all ranks make it, and wait for each other.
  GradientMemory(comm::ProcessGroup& group, std::span<const Tensor> parameters,
                 std::int64_t extra = 0);

  Tensor all;                  ///< the whole, one dimension
  std::vector<Tensor> places;  ///< of each gradient, with its parameter's strides
};

}  // namespace weft::parallel
