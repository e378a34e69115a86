// Exercise 11: ZeRO-1. README.md says what to write; ./weft learn 11 judges it.
#include "weft/learn/11_zero/solution.h"

namespace weft::learn {
namespace {

// A step of one parameter: changes it and its momentum.
void step(const Tensor& parameter, const Tensor& gradient, Tensor& momentum, double lr) {
  if (momentum.defined()) {
    raw::mul_(momentum, 0.9);
    raw::add_scaled_(momentum, 1, gradient);
  } else {
    momentum = gradient.clone();
  }
  raw::add_scaled_(parameter, -lr, momentum);
}

}  // namespace

void zero_step(comm::ProcessGroup& group, const std::vector<Tensor>& parameters,
               const std::vector<Tensor>& gradients, std::vector<Tensor>& momentum, double lr) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    not_yet("which rank makes the step of parameter p?");
    step(parameters[p], gradients[p], momentum[p], lr);
  }
  not_yet("how do the other ranks get the new parameters?");
}

}  // namespace weft::learn
