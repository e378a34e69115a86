#include "weft/autograd/random.h"

#include <utility>

#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/operand.h"
#include "weft/tensor/creation.h"

namespace weft {

using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::Operand;
using autograd::record;
using autograd::recording;

namespace {

class NormalNode final : public DifferentiableNode {
 public:
  NormalNode(const Tensor& mean, const Tensor& std)
      : DifferentiableNode("normal"),
        operands_{Operand(mean.defined() ? mean : std), Operand(std.defined() ? std : mean)} {
    add_input(mean);
    add_input(std);
  }
  void apply(Gradients& grads) override {
    for (const int i : {0, 1}) {
      if (!grads.wants(i)) continue;
      grads.set(i, zeros(operands_[i].shape(), {operands_[i].dtype(), grads.y().device()}));
    }
  }

 private:
  Operand operands_[2];
};

Tensor recorded(Tensor y, const Tensor& mean, const Tensor& std) {
  return recording(mean, std) ? record<NormalNode>(std::move(y), mean, std) : y;
}

}  // namespace

Tensor normal(const Tensor& mean, const Tensor& std, Generator* generator) {
  return recorded(raw::normal(mean, std, generator), mean, std);
}
Tensor normal(const Tensor& mean, double std, Generator* generator) {
  return recorded(raw::normal(mean, std, generator), mean, {});
}
Tensor normal(double mean, const Tensor& std, Generator* generator) {
  return recorded(raw::normal(mean, std, generator), {}, std);
}

}  // namespace weft
