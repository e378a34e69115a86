#include "weft/parallel/gradient_memory.h"

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

GradientMemory::GradientMemory(comm::ProcessGroup& group, std::span<const Tensor> parameters,
                               std::int64_t extra) {
  const DType dtype = parameters[0].dtype();
  const Device device = parameters[0].device();
  std::int64_t count = extra;
  for (const Tensor& p : parameters) count += p.numel();
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  all = device == Device() ? group.empty({count}, dtype) : empty({count}, {dtype, device});
  std::int64_t offset = 0;
  for (const Tensor& p : parameters) {
    places.push_back(as_strided(all.storage(), dtype, p.shape(),
                                p.is_dense() ? p.strides() : contiguous_strides(p.shape()),
                                offset));
    offset += p.numel();
  }
}

}  // namespace weft::parallel
