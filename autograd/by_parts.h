// The rules of fused operations in a backward that is recorded.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "weft/autograd/graph.h"

namespace weft::autograd {

/// dL/d(inputs[i]) from dL/dy, recorded, where y = f(inputs) and f is composed of recorded
/// operations. An undefined result where `wants` is false or the input is undefined. For fused
/// rules: f says once more, in single operations, what the fused kernel computes. The inputs count
/// as independent of each other, whatever their histories are.
std::vector<Tensor> gradients_by_parts(const Gradients& grads, std::span<const Tensor> inputs,
                                       const std::function<Tensor(std::span<const Tensor>)>& f);

}  // namespace weft::autograd
