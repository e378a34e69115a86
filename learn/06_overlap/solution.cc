// Exercise 6: gradients averaged during backward. README.md says what to write; ./weft learn 6
// judges it.
#include "weft/learn/06_overlap/solution.h"

namespace weft::learn {

std::function<void()> overlap(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  // What has begun in this backward. The hooks and the result share it.
  const auto works = std::make_shared<std::vector<comm::Work>>();

  for (const Tensor& parameter : parameters) {
    autograd::add_leaf_hook(parameter, [works, &group](const Tensor& leaf) {
      not_yet("begin to average leaf.grad(), which is complete, and keep the work");
    });
  }
  return [works] { not_yet("wait for all works"); };
}

}  // namespace weft::learn
