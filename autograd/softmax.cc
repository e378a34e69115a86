#include "weft/autograd/softmax.h"

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/reduce.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::creates_graph;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class SoftmaxNode final : public DifferentiableNode {
 public:
  SoftmaxNode(const char* name, SoftmaxOp op, const Tensor& x, std::int64_t dim, const Tensor& y)
      : DifferentiableNode(name), op_(op), dim_(dim) {
    add_input(x);
    y_ = save_output(y);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor &g = grads.y(), y = y_.get(*this);
    if (!creates_graph()) {
      grads.set(0, raw::softmax_backward(op_, g, y, dim_));
    } else if (op_ == SoftmaxOp::softmax) {
      grads.set(0, y * (g - sum(g * y, {dim_}, true)));
    } else {
      grads.set(0, g - exp(y) * sum(g, {dim_}, true));
    }
  }
  void describe(autograd::Description& d) const override { d.set("dim", dim_); }

 private:
  void release_saved() override { y_.reset(); }
  SoftmaxOp op_;
  std::int64_t dim_;
  SavedTensor y_;
};

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return softmax(autocast(CastPolicy::f32_on_cuda, x), dim);
  Tensor y = raw::softmax(x, dim);
  return recording(x) ? record<SoftmaxNode>(y, "softmax", SoftmaxOp::softmax, x, dim, y) : y;
}
Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return log_softmax(autocast(CastPolicy::f32_on_cuda, x), dim);
  Tensor y = raw::log_softmax(x, dim);
  return recording(x) ? record<SoftmaxNode>(y, "log_softmax", SoftmaxOp::log_softmax, x, dim, y)
                      : y;
}

}  // namespace weft
