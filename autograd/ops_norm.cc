// Batch norm and layer norm.
#include <algorithm>
#include <initializer_list>

#include "weft/autograd/autocast.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"

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

// What both save: x, and the statistics forward found.
class NormNode : public Node {
 protected:
  NormNode(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
           const raw::NormResult& result)
      : Node(op), weighted_(weight.defined()) {
    add_input(x);
    add_input(weight);
    add_input(bias);
    x_ = save(x);
    mean_ = save(result.mean);
    invstd_ = save(result.invstd);
    if (weighted_ && needs(0)) weight_ = save(weight);
  }
  // Undefined where grad_x does not need it.
  Tensor weight() const { return weighted_ && needs(0) ? weight_.get(*this) : Tensor(); }
  static raw::NormWants wants(const Gradients& grads) {
    return {grads.wants(0), grads.wants(1), grads.wants(2)};
  }
  static void set(Gradients& grads, raw::NormGradients values) {
    if (values.x.defined()) grads.set(0, std::move(values.x));
    if (values.weight.defined()) grads.set(1, std::move(values.weight));
    if (values.bias.defined()) grads.set(2, std::move(values.bias));
  }

  SavedTensor x_, mean_, invstd_;

 private:
  void release_saved() override {
    x_.reset();
    mean_.reset();
    invstd_.reset();
    weight_.reset();
  }
  bool weighted_;
  SavedTensor weight_;
};

class BatchNormNode final : public NormNode {
 public:
  BatchNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const raw::NormResult& result, bool training)
      : NormNode("batch_norm", x, weight, bias, result), training_(training) {}
  void apply(Gradients& grads) override {
    set(grads, raw::batch_norm_backward(grads.y(), x_.get(*this), weight(), mean_.get(*this),
                                        invstd_.get(*this), training_, wants(grads)));
  }

 private:
  bool training_;
};

class LayerNormNode final : public NormNode {
 public:
  LayerNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const raw::NormResult& result, const Shape& normalized_shape)
      : NormNode("layer_norm", x, weight, bias, result), normalized_shape_(normalized_shape) {}
  void apply(Gradients& grads) override {
    set(grads, raw::layer_norm_backward(grads.y(), x_.get(*this), normalized_shape_, weight(),
                                        mean_.get(*this), invstd_.get(*this), wants(grads)));
  }

 private:
  Shape normalized_shape_;
};

// PyTorch takes bf16 images with f32 weights and statistics, as autocast makes them: computed in
// f32, the result is bf16. The kernels take one dtype, so x is converted.
bool is_mixed(const Tensor& x, std::initializer_list<const Tensor*> others) {
  if (x.dtype() != DType::bf16) return false;
  return std::any_of(others.begin(), others.end(), [](const Tensor* other) {
    return other->defined() && other->dtype() == DType::f32;
  });
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const RunningStats& running, const BatchNormParams& params) {
  if (is_mixed(x, {&weight, &bias, &running.mean, &running.var})) {
    return batch_norm(x.to(DType::f32), weight, bias, running, params).to(DType::bf16);
  }
  raw::NormResult result = raw::batch_norm(x, weight, bias, running, params);
  if (!recording(x, weight, bias)) return result.y;
  return record<BatchNormNode>(result.y, x, weight, bias, result, params.training);
}

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  constexpr auto policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x, weight, bias)) [[unlikely]] {
    return layer_norm(autocast(policy, x), normalized_shape, autocast(policy, weight),
                      autocast(policy, bias), eps);
  }
  if (is_mixed(x, {&weight, &bias})) {
    return layer_norm(x.to(DType::f32), normalized_shape, weight, bias, eps).to(DType::bf16);
  }
  raw::NormResult result = raw::layer_norm(x, normalized_shape, weight, bias, eps);
  if (!recording(x, weight, bias)) return result.y;
  return record<LayerNormNode>(result.y, x, weight, bias, result, normalized_shape);
}

}  // namespace weft
