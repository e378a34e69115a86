// An operation's results and gradients in another dtype, to compare with those in f64.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft::testing {

/// f's results, then the gradients of the inputs, which are converted to `dtype` before. The
/// gradient of result i is upstream(its shape), rounded to bf16 so that every dtype has it exactly.
/// An input that f's results do not depend on has an undefined gradient.
inline std::vector<Tensor> with_gradients(
    const std::function<std::vector<Tensor>(std::span<const Tensor>)>& f,
    std::span<const Tensor> inputs, DType dtype,
    const std::function<Tensor(const Shape&)>& upstream = [](const Shape& shape) {
      return some(shape, DType::f64, -1, 1, 99);
    }) {
  std::vector<Tensor> leaves, gradients;
  for (const Tensor& x : inputs) leaves.push_back(raw::to(x, dtype).detach().set_requires_grad());
  std::vector<Tensor> results = f(leaves);
  for (const Tensor& y : results) {
    gradients.push_back(raw::to(raw::to(upstream(y.shape()), DType::bf16), y.dtype()));
  }
  autograd::backward(results, gradients);
  for (Tensor& y : results) y = y.detach();
  for (const Tensor& x : leaves) results.push_back(x.grad());
  return results;
}
/// The same for an f with one result.
inline std::vector<Tensor> with_gradients(
    const std::function<Tensor(std::span<const Tensor>)>& f, std::span<const Tensor> inputs,
    DType dtype, const std::function<Tensor(const Shape&)>& upstream = [](const Shape& shape) {
      return some(shape, DType::f64, -1, 1, 99);
    }) {
  const auto many = [&](std::span<const Tensor> x) { return std::vector<Tensor>{f(x)}; };
  return with_gradients(std::function<std::vector<Tensor>(std::span<const Tensor>)>(many), inputs,
                        dtype, upstream);
}

}  // namespace weft::testing
