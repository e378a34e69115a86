// Gradients of chosen tensors, and backwards that are recorded.
#pragma once

#include <span>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::autograd {

struct GradOptions {
  bool retain_graph = false;  ///< keep the saved tensors; create_graph keeps them, too
  /// Record the backward: its results can be differentiated again. Throws Unsupported for what has
  /// no second derivative (docs/from_pytorch.md has the list) and for nodes of several devices. In
  /// backward() a leaf then owns its gradient's history, which owns the leaf: zero_grad() ends
  /// that.
  bool create_graph = false;
  bool allow_unused = false;  ///< an input that L does not depend on has an undefined gradient
};

/// Returns dL/dinputs[i] for each i, with L = sum_i <outputs[i], grads[i]>, and leaves every
/// .grad() alone. As torch.autograd.grad. An undefined grads[i] stands for 1 if output i has one
/// element. Throws InvalidArgument, which names the position, if L does not depend on an input.
/// Other errors as backward().
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads = {}, const GradOptions& options = {});
/// dy/dx of a y of one element.
Tensor grad(const Tensor& y, const Tensor& x, const GradOptions& options = {});

}  // namespace weft::autograd
