#include "weft/autograd/norm.h"

#include <algorithm>
#include <initializer_list>

#include "weft/autograd/autocast.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/reduce.h"
#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// What all of these nodes save: x and the statistics from forward.
class NormNode : public Node {
 protected:
  NormNode(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
           const raw::NormResult& result)
      : Node(op) {
    add_input(x);
    add_input(weight);
    add_input(bias);
    x_ = save(x);
    mean_ = save(result.mean);
    invstd_ = save(result.invstd);
    if (weight.defined() && needs(0)) weight_ = save(weight);
  }
  // Undefined if grad_x does not need it.
  Tensor weight() const { return weight_.defined() ? weight_.get(*this) : Tensor(); }
  static raw::NormWants wants(const Gradients& grads) {
    return {grads.wants(0), grads.wants(1), grads.wants(2)};
  }
  static void set(Gradients& grads, raw::NormGradients values) {
    if (values.x.defined()) grads.set(0, std::move(values.x));
    if (values.weight.defined()) grads.set(1, std::move(values.weight));
    if (values.bias.defined()) grads.set(2, std::move(values.bias));
    if (values.addend.defined()) grads.set(3, std::move(values.addend));
  }

  void release_saved() override {
    x_.reset();
    mean_.reset();
    invstd_.reset();
    weight_.reset();
  }

  SavedTensor x_, mean_, invstd_, weight_;
};

class BatchNormNode final : public NormNode {
 public:
  BatchNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const raw::NormResult& result, const BatchNormParams& params, const Tensor& addend)
      : NormNode("batch_norm", x, weight, bias, result), params_(params), adds_(addend.defined()) {
    if (adds_) add_input(addend);
    if (!params.negative_slope) return;
    if (adds_) {
      y_ = save(result.y);
      return;
    }
    // Saves copies: the separate operations would allow changes of weight and bias before backward.
    if (weight.defined() && !needs(0)) weight_ = save(raw::clone(weight));
    if (bias.defined()) bias_ = save(raw::clone(bias));
  }
  void apply(Gradients& grads) override {
    raw::NormWants wanted = wants(grads);
    wanted.addend = adds_ && grads.wants(3);
    raw::BatchNormActivation activation{.negative_slope = params_.negative_slope};
    if (bias_.defined()) activation.bias = bias_.get(*this);
    if (y_.defined()) activation.y = y_.get(*this);
    set(grads, raw::batch_norm_backward(grads.y(), x_.get(*this), weight(), mean_.get(*this),
                                        invstd_.get(*this), params_.training, wanted, activation));
  }

 private:
  void release_saved() override {
    NormNode::release_saved();
    bias_.reset();
    y_.reset();
  }

  BatchNormParams params_;
  bool adds_;
  SavedTensor bias_, y_;
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

class GroupNormNode final : public NormNode {
 public:
  GroupNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const raw::NormResult& result, std::int64_t groups)
      : NormNode("group_norm", x, weight, bias, result), groups_(groups) {}
  void apply(Gradients& grads) override {
    set(grads, raw::group_norm_backward(grads.y(), x_.get(*this), groups_, weight(),
                                        mean_.get(*this), invstd_.get(*this), wants(grads)));
  }

 private:
  std::int64_t groups_;
};

// PyTorch takes bf16 images with f32 weights and statistics, as autocast makes them: computed in
// f32, the result is bf16. The kernels take one dtype, so x is converted.
bool is_mixed(const Tensor& x, std::initializer_list<const Tensor*> others) {
  if (!x.defined() || x.dtype() != DType::bf16) return false;
  return std::any_of(others.begin(), others.end(), [](const Tensor* other) {
    return other->defined() && other->dtype() == DType::f32;
  });
}

// For a mix of bf16 and f32: one operation after the other. One pass would keep the values between
// them in f32, so it would round less often than separate calls (only relu rounds nothing).
Tensor mixed_steps(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const RunningStats& running, const BatchNormParams& params,
                   const BatchNormEpilogue& then) {
  Tensor y = batch_norm(x, weight, bias, running, params);
  if (then.add.defined()) {
    WEFT_CHECK(then.add.shape() == x.shape(), Shape, "batch_norm", "addend: got ", then.add.shape(),
               ", x is ", x.shape());
    WEFT_CHECK(then.add.dtype() == x.dtype(), Dtype, "batch_norm", "addend is ", then.add.dtype(),
               ", x is ", x.dtype());
    y += then.add;
  }
  if (!then.negative_slope) return y;
  return *then.negative_slope == 0 ? relu(std::move(y))
                                   : leaky_relu(std::move(y), *then.negative_slope);
}

// [N,C] or [N,C,..] as images [N,C,H,1].
Tensor as_image(const Tensor& x) {
  return (x.dim() == 2 ? x.unsqueeze(2) : x.flatten(2)).unsqueeze(3);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const RunningStats& running, const BatchNormParams& params,
                  const BatchNormEpilogue& then) {
  if (x.defined() && x.dim() != 4 && x.dim() > 1) {
    BatchNormEpilogue of_image = then;
    if (then.add.defined()) of_image.add = as_image(then.add);
    return batch_norm(as_image(x), weight, bias, running, params, of_image).reshape(x.shape());
  }
  if (is_mixed(x, {&weight, &bias, &running.mean, &running.var})) {
    if (then.add.defined() || then.negative_slope.value_or(0) != 0) {
      return mixed_steps(x, weight, bias, running, params, then);
    }
    return batch_norm(x.to(DType::f32), weight, bias, running, params, then).to(DType::bf16);
  }
  BatchNormParams whole = params;
  if (then.negative_slope) whole.negative_slope = then.negative_slope;
  raw::NormResult result = raw::batch_norm(x, weight, bias, running, whole, then.add);
  if (!recording(x, weight, bias, then.add)) return result.y;
  return record<BatchNormNode>(result.y, x, weight, bias, result, whole, then.add);
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

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  const char* op = "normalize";
  check_defined(op, "x", x);
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(p >= 1, InvalidArgument, op, "p: got ", p, ", expected 1 or more");
  constexpr auto policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x)) return normalize(autocast(policy, x), p, dim, eps);
  // bf16 is rounded once, at the end.
  if (x.dtype() == DType::bf16) return normalize(x.to(DType::f32), p, dim, eps).to(DType::bf16);
  const auto length = [&] {
    if (p == 2) return norm(x, {dim}, true);
    if (p == 1) return sum(abs(x), {dim}, true);
    if (p == kInfinity) return max(abs(x), {dim}, true);
    if (x.numel() == 0) return sum(abs(x), {dim}, true);
    // Divides x by its largest part, since powers of x itself may overflow or underflow. The norm
    // is proportional to x, so this part may count as a constant for the gradient.
    const Tensor size = abs(x);
    Tensor largest = raw::max(size.detach(), {dim}, true);
    const Tensor has_none = raw::logical_or(raw::eq(largest, 0.0), raw::eq(largest, kInfinity));
    largest = masked_fill(largest, has_none, 1);
    const Tensor total = sum(pow(size / largest, p), {dim}, true);
    // The root has no derivative at 0: a constant replaces it there, so its gradient is 0.
    const Tensor is_zero = raw::eq(total.detach(), 0.0);
    return masked_fill(pow(masked_fill(total, is_zero, 1), 1 / p) * largest, is_zero, 0);
  };
  return x / clamp(length(), eps);
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  constexpr auto policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x, weight, bias)) {
    return group_norm(autocast(policy, x), groups, autocast(policy, weight), autocast(policy, bias),
                      eps);
  }
  if (is_mixed(x, {&weight, &bias})) {
    // One of the parameters may be bf16, too.
    const auto widened = [](const Tensor& p) {
      return p.defined() && p.dtype() == DType::bf16 ? p.to(DType::f32) : p;
    };
    return group_norm(x.to(DType::f32), groups, widened(weight), widened(bias), eps)
        .to(DType::bf16);
  }
  raw::NormResult result = raw::group_norm(x, groups, weight, bias, eps);
  if (!recording(x, weight, bias)) return result.y;
  return record<GroupNormNode>(result.y, x, weight, bias, result, groups);
}

}  // namespace weft
