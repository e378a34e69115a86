// Exercise 6, solved.
#pragma once

#include <functional>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::learn::reference {

std::function<void()> overlap(comm::ProcessGroup& group, const std::vector<Tensor>& parameters);

}  // namespace weft::learn::reference
