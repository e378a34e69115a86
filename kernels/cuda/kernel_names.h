// Which kernels a library queues, for WEFT_LOG=perf: cuDNN's plans do not tell their names.
#pragma once

#include <string>
#include <vector>

#include "weft/kernels/cuda/check.h"

namespace weft::cuda {

/// The kernels that a stream records from here on. Only the nodes of a CUDA graph have names, so
/// there are none where the stream does not record, or where thread_state().log_perf is off.
class RecordedKernels {
 public:
  explicit RecordedKernels(const Stream& stream);
  /// Those of libraries, such as "sm90_xmma_fprop_..., sm90_...". Empty if nothing is known.
  std::string of_libraries() const;

 private:
  cudaGraph_t graph_ = nullptr;
  std::vector<cudaGraphNode_t> before_;  // sorted
};

}  // namespace weft::cuda
