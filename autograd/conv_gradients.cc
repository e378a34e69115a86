// The gradients of a convolution, on the tape.
#include "weft/autograd/conv.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

class OfXNode final : public DifferentiableNode {
 public:
  OfXNode(const Tensor& g, const Tensor& w, const Conv2dParams& params)
      : DifferentiableNode("conv2d_backward_data"),
        params_(params),
        w_shape_(w.shape()),
        w_format_(format_of(w)) {
    add_input(g);
    add_input(w);
    if (needs(1)) g_ = save(g);
    if (needs(0)) w_ = save(w);
  }
  void apply(Gradients& grads) override {
    const Tensor& h = grads.y();
    if (grads.wants(0)) grads.set(0, conv2d(h, w_.get(*this), {}, params_));
    if (grads.wants(1)) {
      grads.set(1, conv_gradient_of_w(h, g_.get(*this), w_shape_, params_, w_format_));
    }
  }

 private:
  void release_saved() override {
    g_.reset();
    w_.reset();
  }
  Conv2dParams params_;
  Shape w_shape_;
  MemoryFormat w_format_;
  SavedTensor g_, w_;
};

class OfWNode final : public DifferentiableNode {
 public:
  OfWNode(const Tensor& x, const Tensor& g, const Conv2dParams& params)
      : DifferentiableNode("conv2d_backward_weights"), params_(params), x_shape_(x.shape()) {
    add_input(x);
    add_input(g);
    if (needs(1)) x_ = save(x);
    if (needs(0)) g_ = save(g);
  }
  void apply(Gradients& grads) override {
    const Tensor& h = grads.y();
    if (grads.wants(0)) {
      grads.set(0, conv_gradient_of_x(g_.get(*this), h, x_shape_, params_, MemoryFormat::nchw));
    }
    if (grads.wants(1)) grads.set(1, conv2d(x_.get(*this), h, {}, params_));
  }

 private:
  void release_saved() override {
    x_.reset();
    g_.reset();
  }
  Conv2dParams params_;
  Shape x_shape_;
  SavedTensor x_, g_;
};

}  // namespace

Tensor conv_gradient_of_x(const Tensor& g, const Tensor& w, const Shape& x_shape,
                          const Conv2dParams& params, MemoryFormat format) {
  Tensor y = raw::conv2d_backward_data(g, w, x_shape, params, format);
  return recording(g, w) ? record<OfXNode>(std::move(y), g, w, params) : y;
}

Tensor conv_gradient_of_w(const Tensor& x, const Tensor& g, const Shape& w_shape,
                          const Conv2dParams& params, MemoryFormat format) {
  Tensor y = raw::conv2d_backward_weights(x, g, w_shape, false, params, format).first;
  return recording(x, g) ? record<OfWNode>(std::move(y), x, g, params) : y;
}

}  // namespace weft::autograd
