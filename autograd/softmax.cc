#include "weft/autograd/softmax.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/graph.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::Gradients;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class SoftmaxNode final : public Node {
 public:
  SoftmaxNode(const char* name, SoftmaxOp op, const Tensor& x, std::int64_t dim, const Tensor& y)
      : Node(name), op_(op), dim_(dim) {
    add_input(x);
    y_ = save(y);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::softmax_backward(op_, grads.y(), y_.get(*this), dim_));
  }

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
