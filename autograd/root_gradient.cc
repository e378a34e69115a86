#include "weft/autograd/root_gradient.h"

#include <map>
#include <mutex>
#include <utility>

#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {
namespace {

// A one for each device and dtype.
using Ones = std::map<std::pair<int, DType>, Tensor>;
Ones& ones() {
  static Ones& all = *new Ones;  // captured steps read them at any time
  return all;
}
constinit std::mutex mutex;

}  // namespace

Tensor shared_one(const Tensor& y) {
  const std::lock_guard lock(mutex);
  Tensor& one = ones()[{y.device().index, y.dtype()}];
  if (!one.defined()) {
    // A captured step would fill it only in its replays, and must not wait.
    if (thread_state().capture || thread_state().trial) return ones_like(y);
    one = full({}, 1, {y.dtype(), y.device()});
    runtime(y.device()).synchronize(current_stream(y.device()));  // others may read it at once
  }
  return as_strided(one.storage(), y.dtype(), y.shape(), contiguous_strides(y.shape()));
}

void make_own(Tensor& grad) {
  if (!grad.defined() || !grad.device().is_cuda()) return;
  const std::lock_guard lock(mutex);
  const auto one = ones().find({grad.device().index, grad.dtype()});
  if (one != ones().end() && one->second.storage() == grad.storage()) grad = raw::clone(grad);
}

}  // namespace weft::autograd
