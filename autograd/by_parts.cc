#include "weft/autograd/by_parts.h"

#include "weft/autograd/differentiable.h"
#include "weft/autograd/grad.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

// x under another name: a path from a result to it does not lead through another input.
class NamedNode final : public DifferentiableNode {
 public:
  explicit NamedNode(const Tensor& x) : DifferentiableNode("alias") { add_input(x); }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, grads.y());
  }
};

}  // namespace

std::vector<Tensor> gradients_by_parts(const Gradients& grads, std::span<const Tensor> inputs,
                                       const std::function<Tensor(std::span<const Tensor>)>& f) {
  std::vector<Tensor> named(inputs.begin(), inputs.end()), wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !grads.wants(static_cast<int>(i))) continue;
    named[i] = record<NamedNode>(raw::alias(inputs[i]), inputs[i]);
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
