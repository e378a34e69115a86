#include "weft/learn/06_overlap/reference/reference.h"

#include <memory>

#include "weft/autograd/autograd.h"
#include "weft/tensor/ops.h"

namespace weft::learn::reference {

std::function<void()> overlap(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& parameter : parameters) {
    autograd::add_leaf_hook(parameter, [works, &group](const Tensor& leaf) {
      raw::div_(leaf.grad(), group.size());
      works->push_back(group.all_reduce(leaf.grad()));
    });
  }
  return [works] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
  };
}

}  // namespace weft::learn::reference
