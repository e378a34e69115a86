#include "weft/autograd/deferred.h"

#include "weft/autograd/autograd.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::autograd {

constinit ThreadLocal<DeferredGradients::Current> DeferredGradients::current_;

void DeferredGradients::run() {
  const NoGrad no_grad;
  const Scoped autocast(&ThreadState::autocast, ThreadState().autocast);
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gradients);
  const auto work = std::exchange(work_, {});
  for (const std::function<void()>& gradient : work) gradient();
}

void DeferredGradients::add(const Tensor& leaf, Tensor grad) {
  ensure_leaf_state(leaf).accumulate(leaf, std::move(grad));
}

}  // namespace weft::autograd
