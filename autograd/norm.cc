#include "weft/autograd/norm.h"

#include <algorithm>
#include <initializer_list>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/by_parts.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/reduce.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::creates_graph;
using autograd::Description;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// x less its mean, over its standard deviation.
Tensor normalized_over(const Dims& dims, double eps, const Tensor& x) {
  const Tensor deviation = x - mean(x, dims, true);
  return deviation * rsqrt(mean(square(deviation), dims, true) + eps);
}

// What all of these nodes save: x and the statistics from forward.
class NormNode : public DifferentiableNode {
 protected:
  NormNode(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
           const raw::NormResult& result)
      : DifferentiableNode(op) {
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

  // The rule by single operations. `shape` and `type` are those of weight and bias, `along` the
  // shape that broadcasts to x's. A weight or bias that was not saved may have any value.
  template <class Normalized, class Then>
  void set_by_parts(Gradients& grads, const Shape& shape, DType type, const Shape& along,
                    const Tensor& bias, const Normalized& normalized, const Then& then) const {
    const Tensor x = x_.get(*this);
    const auto or_some = [&](const Tensor& p, int input) {
      const TensorOptions like(type, x.device());
      return p.defined() || !grads.wants(input) ? p : ones(shape, like);
    };
    std::vector<Tensor> inputs{x, or_some(weight(), 1), or_some(bias, 2)};
    if (grads.inputs() > 3) inputs.push_back(zeros_like(x));  // the addend
    const DType wide = x.dtype() == DType::bf16 ? DType::f32 : x.dtype();
    const auto forward = [&](std::span<const Tensor> in) {
      Tensor y = normalized(in[0].to(wide));
      if (in[1].defined()) y = y * in[1].reshape(along).to(wide);
      if (in[2].defined()) y = y + in[2].reshape(along).to(wide);
      if (in.size() > 3) y = y + in[3];
      return then(y).to(x.dtype());
    };
    const std::vector<Tensor> values = autograd::gradients_by_parts(grads, inputs, forward);
    for (std::size_t i = 0; i < values.size(); ++i) grads.set(static_cast<int>(i), values[i]);
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
                const raw::NormResult& result, const RunningStats& running,
                const BatchNormParams& params, const Tensor& addend)
      : NormNode("batch_norm", x, weight, bias, result), params_(params), adds_(addend.defined()) {
    if (!params.training) running_ = running;
    if (adds_) add_input(addend);
    if (!params.negative_slope) return;
    if (adds_) {
      y_ = save_output(result.y);
      return;
    }
    // Saves copies: the separate operations would allow changes of weight and bias before backward.
    if (weight.defined() && !needs(0)) weight_ = save_copy(raw::clone(weight), 1);
    if (bias.defined()) bias_ = save_copy(raw::clone(bias), 2);
  }
  void apply(Gradients& grads) override {
    raw::NormWants wanted = wants(grads);
    wanted.addend = adds_ && grads.wants(3);
    raw::BatchNormActivation activation{.negative_slope = params_.negative_slope};
    if (bias_.defined()) activation.bias = bias_.get(*this);
    if (y_.defined()) activation.y = y_.get(*this);
    if (creates_graph()) return by_parts(grads, activation);
    set(grads, raw::batch_norm_backward(grads.y(), x_.get(*this), weight(), mean_.get(*this),
                                        invstd_.get(*this), params_.training, wanted, activation));
  }
  void describe(Description& d) const override {
    d.ints["training"] = {params_.training};
    // The slope 1 is no activation.
    d.numbers = {{"eps", params_.eps}, {"negative_slope", params_.negative_slope.value_or(1)}};
    if (!params_.training) d.tensors = {{"mean", running_.mean}, {"var", running_.var}};
  }

 private:
  void by_parts(Gradients& grads, const raw::BatchNormActivation& activation) const {
    const Tensor statistics[] = {mean_.get(*this), invstd_.get(*this)};
    const Shape shape = statistics[0].shape();
    Shape along = Shape::filled(grads.y().dim(), 1);
    along[1] = shape[0];
    const auto normalized = [&](const Tensor& x) {
      if (params_.training) return normalized_over({0, 2, 3}, params_.eps, x);
      const auto constant = [&](const Tensor& t) {
        return raw::reshape(raw::to(t, x.dtype()), along);
      };
      return (x - constant(statistics[0])) * constant(statistics[1]);
    };
    const auto then = [&](const Tensor& v) {
      if (!activation.negative_slope) return v;
      const Tensor positive = raw::gt(activation.y.defined() ? activation.y : v, 0.0);
      const auto number = [&](double value) { return scalar(value, {v.dtype(), v.device()}); };
      return v * raw::where(positive, number(1), number(*activation.negative_slope));
    };
    set_by_parts(grads, shape, statistics[0].dtype(), along, activation.bias, normalized, then);
  }
  void release_saved() override {
    NormNode::release_saved();
    bias_.reset();
    y_.reset();
  }

  BatchNormParams params_;
  RunningStats running_;  // in evaluation
  bool adds_;
  SavedTensor bias_, y_;
};

class LayerNormNode final : public NormNode {
 public:
  LayerNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const raw::NormResult& result, const Shape& normalized_shape, double eps)
      : NormNode("layer_norm", x, weight, bias, result),
        normalized_shape_(normalized_shape),
        eps_(eps) {}
  void apply(Gradients& grads) override {
    if (creates_graph()) {
      Dims dims;
      for (int i = normalized_shape_.size(); i > 0; --i) dims.push_back(-i);
      return set_by_parts(
          grads, normalized_shape_, grads.y().dtype(), normalized_shape_, {},
          [&](const Tensor& x) { return normalized_over(dims, eps_, x); },
          [](const Tensor& y) { return y; });
    }
    set(grads, raw::layer_norm_backward(grads.y(), x_.get(*this), normalized_shape_, weight(),
                                        mean_.get(*this), invstd_.get(*this), wants(grads)));
  }
  void describe(Description& d) const override {
    d.set("normalized_shape", normalized_shape_);
    d.numbers["eps"] = eps_;
  }

 private:
  Shape normalized_shape_;
  double eps_;
};

class GroupNormNode final : public NormNode {
 public:
  GroupNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const raw::NormResult& result, std::int64_t groups, double eps)
      : NormNode("group_norm", x, weight, bias, result), groups_(groups), eps_(eps) {}
  void apply(Gradients& grads) override {
    if (creates_graph()) {
      const Shape& shape = grads.y().shape();
      Shape along = Shape::filled(shape.size(), 1);
      along[1] = shape[1];
      std::int64_t size = shape[1] / groups_;  // of a group
      for (int i = 2; i < shape.size(); ++i) size *= shape[i];
      const auto normalized = [&](const Tensor& x) {
        return normalized_over({2}, eps_, x.reshape({shape[0], groups_, size})).reshape(shape);
      };
      return set_by_parts(grads, {shape[1]}, grads.y().dtype(), along, {}, normalized,
                          [](const Tensor& y) { return y; });
    }
    set(grads, raw::group_norm_backward(grads.y(), x_.get(*this), groups_, weight(),
                                        mean_.get(*this), invstd_.get(*this), wants(grads)));
  }
  void describe(Description& d) const override {
    d.set("groups", groups_);
    d.numbers["eps"] = eps_;
  }

 private:
  std::int64_t groups_;
  double eps_;
};

bool is_bf16(const Tensor& x) { return x.defined() && x.dtype() == DType::bf16; }

Tensor widened(const Tensor& x) { return is_bf16(x) ? x.to(DType::f32) : x; }

// Layer norm and group norm of bf16 with f32 weights, as autocast makes them: the kernels take one
// dtype, so x is converted.
bool is_mixed(const Tensor& x, std::initializer_list<const Tensor*> others) {
  if (!is_bf16(x)) return false;
  return std::any_of(others.begin(), others.end(), [](const Tensor* other) {
    return other->defined() && other->dtype() == DType::f32;
  });
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
  if (is_bf16(x) &&
      (is_bf16(weight) || is_bf16(bias))) {  // the kernels' gradients of these are f32
    return batch_norm(x, widened(weight), widened(bias), running, params, then);
  }
  BatchNormParams whole = params;
  if (then.negative_slope) whole.negative_slope = then.negative_slope;
  raw::NormResult result = raw::batch_norm(x, weight, bias, running, whole, then.add);
  if (!recording(x, weight, bias, then.add)) return result.y;
  return record<BatchNormNode>(result.y, x, weight, bias, result, running, whole, then.add);
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
  return record<LayerNormNode>(result.y, x, weight, bias, result, normalized_shape, eps);
}

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  const char* op = "normalize";
  check_defined(op, "x", x);
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  constexpr auto policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x)) return normalize(autocast(policy, x), p, dim, eps);
  // bf16 is rounded once, at the end.
  if (x.dtype() == DType::bf16) return normalize(x.to(DType::f32), p, dim, eps).to(DType::bf16);
  return x / clamp(p_norm(x, p, {dim}, true), eps);
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
    return group_norm(x.to(DType::f32), groups, widened(weight), widened(bias), eps)
        .to(DType::bf16);
  }
  raw::NormResult result = raw::group_norm(x, groups, weight, bias, eps);
  if (!recording(x, weight, bias)) return result.y;
  return record<GroupNormNode>(result.y, x, weight, bias, result, groups, eps);
}

}  // namespace weft
