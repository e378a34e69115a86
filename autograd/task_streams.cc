#include "weft/autograd/task_streams.h"

#include "weft/autograd/internal.h"
#include "weft/core/runtime/runtime.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

Stream TaskStreams::of_cuda(const Task& task, Device device) const {
  if (task.leaf) return leaves_->on(device);
  return task.node().device() == device ? task.node().stream() : caller_.on(device);
}

void TaskStreams::hand_over_cuda(const Tensor& x, const Stream& to) {
  const Stream from = current_stream(to.device);
  const auto event = runtime(to.device).new_event(to.device.index);
  event->record(from);
  event->block(to);
  x.storage()->record_stream(to);
}

void TaskStreams::give_away_cuda(Tensor& x, const Stream& to) {
  // The only holder of a gradient may overwrite it, even if another stream must still read it. So a
  // gradient that others hold is copied before it goes to another stream. In a recorded backward
  // nobody overwrites gradients, and a copy would have no history.
  if (!thread_state().create_graph && !is_alone(x)) x = raw::clone(x);
  hand_over_cuda(x, to);
}

}  // namespace weft::autograd
