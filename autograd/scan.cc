#include "weft/autograd/scan.h"

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/copies.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// The adjoint of cumsum, recorded.
Tensor summed_from_end(const Tensor& g, std::int64_t dim) {
  return autograd::record_linear("cumsum_backward", raw::cumsum(g, dim, true), g,
                                 [dim](const Tensor& h) { return cumsum(h, dim); });
}

class CumsumNode final : public DifferentiableNode {
 public:
  CumsumNode(const Tensor& x, std::int64_t dim) : DifferentiableNode("cumsum"), dim_(dim) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, summed_from_end(grads.y(), dim_));
  }
  void describe(autograd::Description& d) const override { d.set("dim", dim_); }

 private:
  std::int64_t dim_;
};

class CumprodNode final : public DifferentiableNode {
 public:
  CumprodNode(const Tensor& x, std::int64_t dim, const Tensor& y)
      : DifferentiableNode("cumprod"), dim_(dim) {
    add_input(x);
    x_ = save(x);
    y_ = save_output(y);
  }
  // dL/dx_i = sum of g_k y_k / x_i over k >= i, as long as no x up to i is 0. Of the first zero it
  // is the sum of g_k times the product of the others up to k, for k before the second zero. All
  // y_k that depend on a later x have a factor 0.
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor x = x_.get(*this), &g = grads.y();
    if (x.dim() == 0) return grads.set(0, g);
    if (autograd::creates_graph()) return grads.set(0, by_parts(x, g));
    const auto number = [&](double value) { return scalar(value, {x.dtype(), x.device()}); };
    const auto where_or_0 = [&](const Tensor& condition, const Tensor& value) {
      return raw::where(condition, value, number(0));
    };
    const Tensor is_zero = raw::eq(x, 0.0);
    // On the CPU it is cheap to look. On a GPU this would have to wait, and a captured step has no
    // values yet.
    const bool may_look = x.device().is_cpu() && !thread_state().capture;
    if (may_look && !raw::any(is_zero).item<bool>()) {
      return grads.set(0, raw::div(raw::cumsum(raw::mul(g, y_.get(*this)), dim_, true), x));
    }
    const Tensor zeros = raw::cumsum(is_zero, dim_);
    const Tensor before_first = raw::eq(zeros, 0.0), before_second = raw::eq(zeros, 1.0);
    const Tensor parts = where_or_0(before_first, raw::mul(g, y_.get(*this)));
    const Tensor others = raw::cumprod(raw::where(is_zero, number(1), x), dim_);
    const Tensor of_first = raw::sum(where_or_0(before_second, raw::mul(g, others)), {dim_}, true);
    const Tensor is_first = raw::logical_and(is_zero, before_second);
    grads.set(0, raw::where(before_first, raw::div(raw::cumsum(parts, dim_, true), x),
                            where_or_0(is_first, of_first)));
  }

 private:
  // The same without a division, so that the tape differentiates it at zeros, too: the product of
  // the elements before i, times s_i = g_i + x_(i+1) s_(i+1).
  Tensor by_parts(const Tensor& x, const Tensor& g) const {
    const std::int64_t n = x.shape(static_cast<int>(dim_));
    if (n == 0) return g;
    std::vector<Tensor> sums(static_cast<std::size_t>(n));
    for (std::int64_t i = n - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      sums[at] = g.narrow(dim_, i, 1);
      if (i + 1 < n) sums[at] = sums[at] + x.narrow(dim_, i + 1, 1) * sums[at + 1];
    }
    const Tensor first = ones_like(raw::narrow(x, dim_, 0, 1));
    const Tensor before = cumprod(cat({first, x.narrow(dim_, 0, n - 1)}, dim_), dim_);
    return before * cat(sums, dim_);
  }
  void release_saved() override {
    x_.reset();
    y_.reset();
  }
  std::int64_t dim_;
  SavedTensor x_, y_;
};

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return cumsum(autocast(CastPolicy::f32_on_cuda, x), dim);
  Tensor y = raw::cumsum(x, dim);
  return recording(x) ? record<CumsumNode>(std::move(y), x, dim) : y;
}

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return cumprod(autocast(CastPolicy::f32_on_cuda, x), dim);
  Tensor y = raw::cumprod(x, dim);
  return recording(x) ? record<CumprodNode>(y, x, dim, y) : y;
}

}  // namespace weft
