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

Tensor grad(const Tensor& y, const Tensor& x, const GradOptions& options) {
  return std::move(grad({&y, 1}, {&x, 1}, {}, options)[0]);
}

}  // namespace weft::autograd
