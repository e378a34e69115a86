#include "weft/learn/05_average_gradients/reference/reference.h"

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::learn::reference {

void average_gradients(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  std::vector<comm::Work> works;
  for (const Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) parameter.set_grad(zeros_like(parameter));
    raw::div_(parameter.grad(), group.size());
    works.push_back(group.all_reduce(parameter.grad()));
  }
  for (const comm::Work& work : works) work.wait();
}

}  // namespace weft::learn::reference
