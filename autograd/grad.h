// Gradients of chosen tensors.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "weft/autograd/grad_options.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// Returns dL/dinputs[i] for each i, with L = sum_i <outputs[i], grads[i]>, and leaves every
/// .grad() alone. As torch.autograd.grad. An undefined grads[i] stands for 1 if output i has one
/// element. Throws InvalidArgument, which names the position, if L does not depend on an input.
/// Other errors as backward().
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads = {}, const GradOptions& options = {});
/// The same for one output of one element.
std::vector<Tensor> grad(const Tensor& y, std::span<const Tensor> inputs,
                         const GradOptions& options = {});
std::vector<Tensor> grad(const Tensor& y, std::initializer_list<Tensor> inputs,
                         const GradOptions& options = {});
/// dy/dx of a y of one element.
Tensor grad(const Tensor& y, const Tensor& x, const GradOptions& options = {});

}  // namespace weft::autograd
