#include "weft/autograd/pooling.h"

#include "weft/autograd/graph.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::Gradients;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class MaxPoolNode final : public Node {
 public:
  MaxPoolNode(const Tensor& x, const Tensor& index, const Pool2dParams& params)
      : Node(params.adaptive ? "adaptive_max_pool2d" : "max_pool2d"),
        params_(params),
        x_shape_(x.shape()) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::max_pool2d_backward(grads.y(), index_.get(*this), x_shape_, params_));
  }

 private:
  void release_saved() override { index_.reset(); }
  Pool2dParams params_;
  Shape x_shape_;
  SavedTensor index_;
};

class AvgPoolNode final : public Node {
 public:
  AvgPoolNode(const Tensor& x, const AvgPool2dParams& params)
      : Node(params.adaptive ? "adaptive_avg_pool2d" : "avg_pool2d"),
        params_(params),
        x_shape_(x.shape()) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::avg_pool2d_backward(grads.y(), x_shape_, params_));
  }

 private:
  AvgPool2dParams params_;
  Shape x_shape_;
};

// Whether x is an image [C,H,W] without a batch.
bool is_single(const Tensor& x) { return x.defined() && x.dim() == 3; }

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2dParams& params) {
  if (is_single(x)) return max_pool2d(x.unsqueeze(0), params).squeeze(0);
  auto [y, index] = raw::max_pool2d(x, params);
  return recording(x) ? record<MaxPoolNode>(std::move(y), x, index, params) : y;
}

Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  if (is_single(x)) return adaptive_max_pool2d(x.unsqueeze(0), size).squeeze(0);
  auto [y, index] = raw::adaptive_max_pool2d(x, size);
  return recording(x) ? record<MaxPoolNode>(std::move(y), x, index, Pool2dParams{.adaptive = true})
                      : y;
}

Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params) {
  if (is_single(x)) return avg_pool2d(x.unsqueeze(0), params).squeeze(0);
  Tensor y = raw::avg_pool2d(x, params);
  return recording(x) ? record<AvgPoolNode>(std::move(y), x, params) : y;
}

Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  if (is_single(x)) return adaptive_avg_pool2d(x.unsqueeze(0), size).squeeze(0);
  Tensor y = raw::adaptive_avg_pool2d(x, size);
  return recording(x) ? record<AvgPoolNode>(std::move(y), x, AvgPool2dParams{.adaptive = true}) : y;
}

}  // namespace weft
