#include "weft/learn/11_zero/reference/reference.h"

#include <cstddef>

#include "weft/tensor/ops.h"

namespace weft::learn::reference {

void sgd_step(const Tensor& parameter, const Tensor& gradient, Tensor& momentum, double lr) {
  if (momentum.defined()) {
    raw::mul_(momentum, 0.9);
    raw::add_scaled_(momentum, 1, gradient);
  } else {
    momentum = gradient.clone();
  }
  raw::add_scaled_(parameter, -lr, momentum);
}

void zero_step(comm::ProcessGroup& group, const std::vector<Tensor>& parameters,
               const std::vector<Tensor>& gradients, std::vector<Tensor>& momentum, double lr) {
  const auto owner = [&](std::size_t p) { return static_cast<int>(p % group.size()); };
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (owner(p) == group.rank()) sgd_step(parameters[p], gradients[p], momentum[p], lr);
  }
  std::vector<comm::Work> works;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    works.push_back(group.broadcast(parameters[p], owner(p)));
  }
  for (const comm::Work& work : works) work.wait();
}

}  // namespace weft::learn::reference
