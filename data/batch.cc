#include "weft/data/batch.h"

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"

namespace weft::data {

bool is_unshared(const Tensor& x) {
  return x.impl()->use_count() == 1 && x.storage()->use_count() == 1 && !x.impl()->autograd;
}

void HostMemory::prepare(Tensor& x, const Shape& shape, DType dtype) const {
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype);
  // Borrowed memory has another owner, who may go on reading it.
  const bool reusable = x.defined() && is_unshared(x) && x.storage()->owned() &&
                        x.device() == device && x.storage()->pinned() == pinned &&
                        x.storage()->bytes() >= bytes;
  if (reusable && x.dtype() == dtype && x.shape() == shape && x.is_contiguous() &&
      x.offset() == 0) {
    return;
  }
  // The last batch of an epoch is often smaller: it gets a view of the same memory.
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::batches);
  const intrusive_ptr<Storage> storage = reusable ? x.storage()
                                         : pinned ? Storage::allocate_pinned(bytes)
                                                  : Storage::allocate(device, bytes);
  x = as_strided(storage, dtype, shape, contiguous_strides(shape));
}

}  // namespace weft::data
