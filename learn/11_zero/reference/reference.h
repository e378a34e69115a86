// Exercise 11, solved.
#pragma once

#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::learn::reference {

void sgd_step(const Tensor& parameter, const Tensor& gradient, Tensor& momentum, double lr);
void zero_step(comm::ProcessGroup& group, const std::vector<Tensor>& parameters,
               const std::vector<Tensor>& gradients, std::vector<Tensor>& momentum, double lr);

}  // namespace weft::learn::reference
