// Exercise 11: what you write, and what you write it with.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/learn/judge/messages.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::learn {

/// SGD with momentum, whose state is dealt out over the ranks (ZeRO, stage 1). `momentum[p]` is the
/// state of parameter p, undefined before the first step; a rank keeps those of its own parameters
/// alone. All ranks have the same parameters, with the same mean gradients.
///
///   momentum = 0.9 momentum + gradient       (momentum = gradient in the first step)
///   parameter = parameter - lr momentum
///
/// parameters[p] and gradients[p] are plain tensors, to be changed by raw:: operations.
void zero_step(comm::ProcessGroup& group, const std::vector<Tensor>& parameters,
               const std::vector<Tensor>& gradients, std::vector<Tensor>& momentum, double lr);

}  // namespace weft::learn
