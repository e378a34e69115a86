// Norms of any order, and pairs of statistics.
#include <algorithm>
#include <cmath>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/reduce.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::record;
using autograd::record_linear;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// dims, or all dimensions of x if there are none.
Dims all_or(const Dims& dims, const Tensor& x) {
  if (!dims.empty()) return dims;
  Dims all;
  for (int i = 0; i < x.dim(); ++i) all.push_back(i);
  return all;
}

Shape shape_without(const Dims& dims, const Shape& shape) {
  Shape left;
  for (int i = 0; i < shape.size(); ++i) {
    const auto is_i = [&](std::int64_t d) { return d == i || d + shape.size() == i; };
    if (std::none_of(dims.begin(), dims.end(), is_i)) left.push_back(shape[i]);
  }
  return left;
}

// y = (sum |x|^p)^(1/p), so dy/dx = sign(x) (|x| / y)^(p - 1). y has x's reduced dimensions, with
// length 1.
class PNormNode final : public DifferentiableNode {
 public:
  PNormNode(const Tensor& x, double p, const Tensor& y) : DifferentiableNode("norm"), p_(p) {
    add_input(x);
    x_ = save(x);
    y_ = save_output(y);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor x = x_.get(*this), y = y_.get(*this), is_zero = raw::eq(y, 0.0);
    const Tensor none = raw::logical_or(is_zero, p_ < 2 ? raw::eq(x, 0.0) : is_zero);
    // 1 where there is no slope, so that no derivative of the power is infinite there.
    const Tensor share = masked_fill(abs(x) / masked_fill(y, is_zero, 1), none, 1);
    const Tensor slope = raw::sign(x) * pow(share, p_ - 1);
    grads.set(0, masked_fill(slope * grads.y(), none, 0));
  }

 private:
  void release_saved() override {
    x_.reset();
    y_.reset();
  }
  double p_;
  SavedTensor x_, y_;
};

// With x divided first by the element whose power is the largest, since powers of x itself may
// overflow or underflow.
Tensor general_norm(const Tensor& x, double p, const Dims& dims) {
  const Tensor size = raw::abs(x);
  Tensor unit = p > 0 ? raw::max(size, dims, true) : raw::min(size, dims, true);
  const Tensor has_none = raw::logical_or(raw::eq(unit, 0.0), raw::eq(unit, kInfinity));
  unit = masked_fill(unit, has_none, 1);
  const Tensor total = raw::sum(raw::pow(raw::div(size, unit), p), dims, true);
  return raw::mul(raw::pow(total, 1 / p), unit);
}

// How many elements are not 0: a step, whose gradient is 0.
Tensor count_of(const Tensor& x, const Dims& dims, bool keepdim) {
  Tensor y = raw::sum(raw::to(raw::ne(x, 0.0), x.dtype()), dims, keepdim);
  const Shape shape = x.shape();
  return record_linear("norm", std::move(y), x, [shape](const Tensor& grad) {
    return zeros(shape, {grad.dtype(), grad.device()});
  });
}

}  // namespace

Tensor p_norm(const Tensor& x, double p, const Dims& dims, bool keepdim) {
  check_defined("norm", "x", x);
  WEFT_CHECK(is_floating(x.dtype()), Dtype, "norm", "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(!std::isnan(p), InvalidArgument, "norm", "p: got ", p);
  if (p == 2) return norm(x, dims, keepdim);
  // bf16 is rounded once, at the end.
  if (x.dtype() == DType::bf16) {
    return p_norm(x.to(DType::f32), p, dims, keepdim).to(DType::bf16);
  }
  if (p == 0) return count_of(x, dims, keepdim);
  if (p == kInfinity) return amax(abs(x), dims, keepdim);
  if (p == -kInfinity) return amin(abs(x), dims, keepdim);
  // Of nothing the sum is 0, and its power infinite if p is negative: that is refused below.
  if (p == 1 || (p > 0 && x.numel() == 0)) return sum(abs(x), dims, keepdim);
  const Dims reduced = all_or(dims, x);
  Tensor y = general_norm(x.detach(), p, reduced);
  if (recording(x)) y = record<PNormNode>(y, x, p, y);
  return keepdim ? y : y.reshape(shape_without(reduced, x.shape()));
}

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  check_defined("amax", "x", x);
  return max(x, all_or(dims, x), keepdim);
}
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) {
  check_defined("amin", "x", x);
  return min(x, all_or(dims, x), keepdim);
}

std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Dims& dims, double correction,
                                   bool keepdim) {
  return {weft::std(x, dims, correction, keepdim), mean(x, dims, keepdim)};
}
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Dims& dims, double correction,
                                   bool keepdim) {
  return {var(x, dims, correction, keepdim), mean(x, dims, keepdim)};
}

}  // namespace weft
