#include "weft/autograd/by_parts.h"

#include "weft/autograd/differentiable.h"
#include "weft/autograd/grad.h"

namespace weft::autograd {

std::vector<Tensor> gradients_by_parts(const Gradients& grads, std::span<const Tensor> inputs,
                                       const std::function<Tensor(std::span<const Tensor>)>& f) {
  std::vector<Tensor> named(inputs.begin(), inputs.end()), wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !grads.wants(static_cast<int>(i))) continue;
    // A path from y to one input must not lead through another.
    named[i] = in_place_of(inputs[i], inputs[i]);
    wanted.push_back(named[i]);
  }
  std::vector<Tensor> results(inputs.size());
  if (wanted.empty()) return results;
  const Tensor y = f(named);
  const GradOptions options{.create_graph = true, .allow_unused = true};
  const std::vector<Tensor> values = grad({&y, 1}, wanted, {&grads.y(), 1}, options);
  for (std::size_t i = 0, next = 0; i < results.size(); ++i) {
    if (named[i].defined() && grads.wants(static_cast<int>(i))) results[i] = values[next++];
  }
  return results;
}

}  // namespace weft::autograd
