#include "weft/autograd/grad.h"

#include <utility>

#include "weft/autograd/engine.h"
#include "weft/core/trace/trace.h"

namespace weft::autograd {

std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads, const GradOptions& options) {
  const Span span("phase", "grad");
  return run_backward("grad", outputs, grads, &inputs, options);
}

std::vector<Tensor> grad(const Tensor& y, std::span<const Tensor> inputs,
                         const GradOptions& options) {
  return grad({&y, 1}, inputs, {}, options);
}
std::vector<Tensor> grad(const Tensor& y, std::initializer_list<Tensor> inputs,
                         const GradOptions& options) {
  return grad(y, std::span(inputs.begin(), inputs.size()), options);
}
Tensor grad(const Tensor& y, const Tensor& x, const GradOptions& options) {
  return std::move(grad(y, std::span(&x, 1), options)[0]);
}

}  // namespace weft::autograd
