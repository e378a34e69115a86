// Exercise 6: what you write, and what you write it with.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/comm/group/process_group.h"
#include "weft/learn/judge/messages.h"
#include "weft/tensor/ops.h"

namespace weft::learn {

/// Called once, before the training: from now on each backward averages the gradients of the
/// parameters over the ranks while it still runs. The training calls the result after each
/// backward; when it returns, parameter.grad() is the mean. `group` lives as long as the training,
/// the vector `parameters` only during this call.
std::function<void()> overlap(comm::ProcessGroup& group, const std::vector<Tensor>& parameters);

}  // namespace weft::learn
