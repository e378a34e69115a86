#include "weft/autograd/hook_list.h"

#include "weft/core/base/error.h"

namespace weft::autograd {

void run_grad_hooks(OutputHooks& hooks, std::span<Tensor> gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Tensor& grad = gradients[i];
    hooks.for_each([&](const OutputHook& entry) {
      if (entry.output != static_cast<int>(i) || !grad.defined()) return;
      Tensor replaced = entry.hook(grad);
      if (!replaced.defined()) return;
      WEFT_CHECK(replaced.shape() == grad.shape() && replaced.dtype() == grad.dtype() &&
                     replaced.device() == grad.device(),
                 Shape, "grad_hook", "the hook returned ", replaced.dtype(), " ", replaced.shape(),
                 " on ", replaced.device(), " for a gradient ", grad.dtype(), " ", grad.shape(),
                 " on ", grad.device());
      grad = std::move(replaced);
    });
  }
}

}  // namespace weft::autograd
