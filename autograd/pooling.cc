#include "weft/autograd/pooling.h"

#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::Description;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

template <class Params>
void describe_windows(Description& d, const Params& p) {
  d.ints = {{"kernel", {p.kernel.begin(), p.kernel.end()}},
            {"stride", {p.stride.begin(), p.stride.end()}},
            {"padding", {p.padding.begin(), p.padding.end()}}};
}

// The pixels of x [N,C,H,W] at the indices of a max pooling; 0 where a window had none.
Tensor picked(const Tensor& x, const Tensor& index) {
  const Tensor at = raw::to(raw::flatten(index, 2), DType::i64);
  const Tensor y = gather(x.flatten(2), 2, raw::clamp(at, 0)).reshape(index.shape());
  return masked_fill(y, raw::lt(index, 0.0), 0);
}

class MaxPoolNode final : public DifferentiableNode {
 public:
  MaxPoolNode(const Tensor& x, const Tensor& index, const Pool2dParams& params)
      : DifferentiableNode(params.adaptive ? "adaptive_max_pool2d" : "max_pool2d"),
        params_(params),
        x_shape_(x.shape()) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor &g = grads.y(), index = index_.get(*this);
    grads.set(0, autograd::record_linear("max_pool2d_backward",
                                         raw::max_pool2d_backward(g, index, x_shape_, params_), g,
                                         [index](const Tensor& h) { return picked(h, index); }));
  }
  void describe(Description& d) const override {
    describe_windows(d, params_);
    d.ints["dilation"] = {params_.dilation.begin(), params_.dilation.end()};
  }

 private:
  void release_saved() override { index_.reset(); }
  Pool2dParams params_;
  Shape x_shape_;
  SavedTensor index_;
};

class AvgPoolNode final : public DifferentiableNode {
 public:
  AvgPoolNode(const Tensor& x, const AvgPool2dParams& params)
      : DifferentiableNode(params.adaptive ? "adaptive_avg_pool2d" : "avg_pool2d"),
        params_(params),
        x_shape_(x.shape()) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& g = grads.y();
    const auto pooled = [params = params_, shape = g.shape()](const Tensor& h) {
      return params.adaptive ? adaptive_avg_pool2d(h, {shape[2], shape[3]}) : avg_pool2d(h, params);
    };
    grads.set(0,
              autograd::record_linear("avg_pool2d_backward",
                                      raw::avg_pool2d_backward(g, x_shape_, params_), g, pooled));
  }
  void describe(Description& d) const override {
    describe_windows(d, params_);
    d.ints["divisor"] = {params_.divisor};
    d.ints["count_include_pad"] = {params_.count_include_pad};
  }

 private:
  AvgPool2dParams params_;
  Shape x_shape_;
};

// Whether x is an image [C,H,W] without a batch.
bool is_single(const Tensor& x) { return x.defined() && x.dim() == 3; }

template <class Pool>
ValuesAndIndices maxima(const Tensor& x, const Pool2dParams& params, Pool pool) {
  if (is_single(x)) {
    const auto [y, index] = maxima(x.unsqueeze(0), params, pool);
    return {y.squeeze(0), raw::squeeze(index, 0)};
  }
  auto [y, index] = pool(x);
  const Tensor positions = raw::to(index, DType::i64);
  if (!recording(x)) return {y, positions};
  return {record<MaxPoolNode>(std::move(y), x, index, params), positions};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2dParams& params) {
  if (is_single(x)) return max_pool2d(x.unsqueeze(0), params).squeeze(0);
  auto [y, index] = raw::max_pool2d(x, params);
  return recording(x) ? record<MaxPoolNode>(std::move(y), x, index, params) : y;
}

ValuesAndIndices max_pool2d_with_indices(const Tensor& x, const Pool2dParams& params) {
  return maxima(x, params, [&](const Tensor& images) { return raw::max_pool2d(images, params); });
}

Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  if (is_single(x)) return adaptive_max_pool2d(x.unsqueeze(0), size).squeeze(0);
  auto [y, index] = raw::adaptive_max_pool2d(x, size);
  return recording(x) ? record<MaxPoolNode>(std::move(y), x, index, Pool2dParams{.adaptive = true})
                      : y;
}

ValuesAndIndices adaptive_max_pool2d_with_indices(const Tensor& x,
                                                  const std::array<std::int64_t, 2>& size) {
  const auto pool = [&](const Tensor& images) { return raw::adaptive_max_pool2d(images, size); };
  return maxima(x, {.adaptive = true}, pool);
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
