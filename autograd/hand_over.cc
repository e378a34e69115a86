// A rule that computes dL/dy by a product may also apply the gradient of a relu that y ends with.
#include "weft/autograd/engine.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::autograd {

// Undefined unless the gradient of this link is the only one that the node gets, in this stream,
// and nobody else sees it.
Tensor Run::relu_mask(const Link& link) {
  if (link.task < 0 || distributed_ || thread_state().create_graph) return {};
  const Task& to = found.tasks[link.task];
  if (to.leaf || to.pending > 1 || to.captured || !to.runs) return {};
  Node& node = to.node();
  if (node.hooks() || gradient(to, link.output).defined()) return {};
  if (current_stream(node.device()) != node.stream()) return {};
  const NodeUse use(node, /*retain=*/true);
  return node.relu_mask();
}

Tensor Gradients::relu_mask(int input) const { return run_.relu_mask(links_[std::size_t(input)]); }

void Gradients::set_past_relu(int input, Tensor grad) {
  run_.found.tasks[links_[std::size_t(input)].task].before_relu = true;
  set(input, std::move(grad));
}

}  // namespace weft::autograd
