#include "weft/autograd/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/copies.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/scan.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
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
using autograd::observed;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Stores the shape with reduced dimensions of length 1, and the number of elements per result.
class ReducedNode : public DifferentiableNode {
 protected:
  ReducedNode(const char* name, const Tensor& x, const Dims& dims)
      : DifferentiableNode(name), shape_(x.shape()), kept_(x.shape()) {
    add_input(x);
    if (dims.empty()) kept_ = Dims::filled(shape_.size(), 1);
    for (const std::int64_t d : dims) {
      if (!shape_.empty()) kept_[normalize_dim(d, shape_.size(), name)] = 1;
    }
    for (int i = 0; i < shape_.size(); ++i) {
      if (kept_[i] == shape_[i]) continue;
      reduced_.push_back(i);
      count_ *= shape_[i];
    }
  }

  void describe(Description& d) const override { d.set("dims", reduced_); }

  /// A result of the reduction, reshaped so that it broadcasts to x's shape.
  Tensor kept(const Tensor& y) const { return y.reshape(kept_); }
  /// Reduces x with keepdim, over those dimensions whose length is not 1 already.
  template <class Reduction>
  Tensor reduce_kept(const Tensor& x, Reduction reduction) const {
    return reduced_.empty() ? x : reduction(x, reduced_, true);
  }

  Shape shape_, kept_;
  Dims reduced_;
  std::int64_t count_ = 1;
};

class SumNode final : public ReducedNode {
 public:
  SumNode(const char* name, const Tensor& x, const Dims& dims, bool mean)
      : ReducedNode(name, x, dims), mean_(mean) {}
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    // Divides before it expands, which is less work; the expanded gradient has strides 0.
    const Tensor grad =
        mean_ && count_ != 1 ? div(grads.y(), static_cast<double>(count_)) : grads.y();
    grads.set(0, kept(grad).expand(shape_));
  }

 private:
  bool mean_;
};

class ProdNode final : public ReducedNode {
 public:
  ProdNode(const Tensor& x, const Dims& dims) : ReducedNode("prod", x, dims) { x_ = save(x); }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    // The product of the other elements, in f64 against overflow: p / x, where p has 1 for each
    // zero and the sign for each infinity. Zeros and infinities among the others are counted: with
    // zeros the result is 0, with infinities infinite, with both NaN.
    const Tensor x = x_.get(*this);
    if (creates_graph()) return grads.set(0, by_parts(x, kept(grads.y())));
    const Tensor is_zero = raw::eq(x, 0.0), is_infinite = raw::eq(raw::abs(x), kInfinity);
    const Tensor wide = raw::to(x, DType::f64);
    const auto number = [&](double value) { return scalar(value, {DType::f64, x.device()}); };
    const Tensor rest =
        raw::where(is_zero, number(1), raw::where(is_infinite, raw::sign(wide), wide));
    const Tensor zeros = reduce_kept(raw::to(is_zero, DType::f64), raw::sum);
    const Tensor infinities = reduce_kept(raw::to(is_infinite, DType::f64), raw::sum);
    const Tensor product =
        raw::mul(raw::to(kept(grads.y()), DType::f64), reduce_kept(rest, raw::prod));
    // The product for an element that itself counts as `zero` zeros and `infinity` infinities.
    const auto of = [&](double zero, double infinity) {
      const Tensor by_zeros = raw::where(raw::gt(zeros, zero), number(0), number(1));
      const Tensor by_infinities =
          raw::where(raw::gt(infinities, infinity), number(kInfinity), number(1));
      return raw::mul(raw::mul(product, by_zeros), by_infinities);
    };
    const Tensor grad = raw::where(is_zero, of(1, 0), raw::where(is_infinite, of(0, 1), of(0, 0)));
    raw::binary_(BinaryOp::div, grad, rest);
    grads.set(0, raw::to(grad, x.dtype()));
  }

 private:
  // The product of the elements before each one times that of those after it: without a division,
  // so that the tape differentiates it at zeros, too.
  Tensor by_parts(const Tensor& x, const Tensor& grad) const {
    if (x.numel() == 0 || reduced_.empty()) return grad.expand(shape_);
    Dims order;
    for (int i = 0; i < shape_.size(); ++i) {
      if (kept_[i] == shape_[i]) order.push_back(i);
    }
    for (const std::int64_t d : reduced_) order.push_back(d);
    const Tensor last = x.to(DType::f64).permute(order);
    const Tensor rows = last.reshape({-1, count_});
    const Tensor one = ones_like(raw::narrow(rows, 1, 0, 1));
    const auto before = [&](const Tensor& r) {
      return cumprod(cat({one, r.narrow(1, 0, count_ - 1)}, 1), 1);
    };
    const Tensor others = before(rows) * flip(before(flip(rows, {1})), {1});
    Dims inverse = order;
    for (int i = 0; i < order.size(); ++i) inverse[order[i]] = i;
    return (grad.to(DType::f64) * others.reshape(last.shape()).permute(inverse)).to(x.dtype());
  }
  void release_saved() override { x_.reset(); }
  SavedTensor x_;
};

// max, min: all positions with the extreme value get equal parts. A NaN counts as the extreme:
// without dims the NaNs share the gradient, as in torch.max; with dims it is NaN, as in torch.amax.
class ExtremeNode final : public ReducedNode {
 public:
  ExtremeNode(const char* name, const Tensor& x, const Dims& dims, const Tensor& y)
      : ReducedNode(name, x, dims), of_all_(dims.empty()) {
    x_ = save(x);
    y_ = save_output(y);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& x = x_.get(*this);
    Tensor is_extreme = raw::eq(x, kept(y_.get(*this)));
    // On the CPU it is cheap to look for a NaN. On a GPU this would have to wait, and a captured
    // step has no values yet.
    const bool may_look = x.device().is_cpu() && !thread_state().capture;
    if (of_all_ && (!may_look || std::isnan(y_.get(*this).item<double>()))) {
      is_extreme = raw::logical_or(is_extreme, raw::ne(x, x));
    }
    const Tensor holds = raw::to(is_extreme, x.dtype());
    const Tensor count = reduce_kept(holds, raw::sum);
    grads.set(0, mul(holds, div(kept(grads.y()), count)));
  }

 private:
  void release_saved() override {
    x_.reset();
    y_.reset();
  }
  bool of_all_;
  SavedTensor x_, y_;
};

// grad / y; where the root y is 0, it has no derivative, and the result is 0. All in f64.
Tensor over_root(const Tensor& grad, const Tensor& y) {
  const Tensor none = scalar(0, {DType::f64, y.device()});
  return raw::where(raw::eq(y, 0.0), none, raw::div(grad, y));
}

// var; with `root`, the value of std in f64, also std. divisor: n - correction.
class VarNode final : public ReducedNode {
 public:
  VarNode(const char* name, const Tensor& x, const Dims& dims, double divisor, const Tensor& mean,
          const Tensor& root)
      : ReducedNode(name, x, dims), divisor_(divisor), of_all_(dims.empty()) {
    x_ = save(x);
    mean_ = save(mean);
    if (root.defined()) root_ = save(root);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor x = x_.get(*this), mean = mean_.get(*this);
    if (creates_graph()) return grads.set(0, by_parts(x, kept(grads.y())));
    Tensor grad = raw::to(kept(grads.y()), DType::f64);
    if (root_.defined()) grad = over_root(raw::div(grad, 2), root_.get(*this));
    if (divisor_ > 0 || !of_all_) {
      return grads.set(0, raw::scaled_deviation(x, mean, raw::mul(grad, 2 / divisor_)));
    }
    // Without degrees of freedom the gradient is infinite, and NaN at the mean, as in PyTorch. With
    // dims, PyTorch uses the plain formula, also with a negative divisor.
    const TensorOptions f64(DType::f64, x.device());
    const Tensor deviation = raw::scaled_deviation(x, mean, scalar(1, f64));
    const Tensor slope =
        raw::where(raw::eq(deviation, 0.0), scalar(kNaN, f64), scalar(kInfinity, f64));
    grads.set(0, raw::to(raw::mul(grad, slope), x.dtype()));
  }
  void describe(Description& d) const override {
    ReducedNode::describe(d);
    d.numbers["divisor"] = divisor_;
  }

 private:
  // In f64, as above.
  Tensor by_parts(const Tensor& x, const Tensor& grad) const {
    const Tensor wide = x.to(DType::f64), share = grad.to(DType::f64) / divisor_;
    const Tensor deviation = wide - reduce_kept(wide, weft::mean);
    if (!root_.defined()) return (share * deviation * 2).to(x.dtype());
    const double freedom = static_cast<double>(count_) / divisor_;
    const Tensor variance = reduce_kept(square(deviation), weft::mean) * freedom;
    const Tensor is_zero = raw::eq(variance, 0.0);
    const Tensor over_root =
        masked_fill(share / sqrt(masked_fill(variance, is_zero, 1)), is_zero, 0);
    return (over_root * deviation).to(x.dtype());
  }
  void release_saved() override {
    x_.reset();
    mean_.reset();
    root_.reset();
  }
  double divisor_;
  bool of_all_;
  SavedTensor x_, mean_, root_;
};

class NormNode final : public ReducedNode {
 public:
  NormNode(const Tensor& x, const Dims& dims, const Tensor& root) : ReducedNode("norm", x, dims) {
    x_ = save(x);
    root_ = save(root);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor x = x_.get(*this);
    if (creates_graph()) return grads.set(0, by_parts(x, kept(grads.y())));
    const Tensor scale = over_root(raw::to(kept(grads.y()), DType::f64), root_.get(*this));
    grads.set(0, raw::scaled_deviation(x, {}, scale));
  }

 private:
  Tensor by_parts(const Tensor& x, const Tensor& grad) const {
    const Tensor wide = x.to(DType::f64);
    const Tensor root = reduce_kept(
        wide, [](const Tensor& t, const Dims& dims, bool keep) { return norm(t, dims, keep); });
    const Tensor is_zero = raw::eq(root, 0.0);
    const Tensor scale =
        masked_fill(grad.to(DType::f64) / masked_fill(root, is_zero, 1), is_zero, 0);
    return (scale * wide).to(x.dtype());
  }
  void release_saved() override {
    x_.reset();
    root_.reset();
  }
  SavedTensor x_, root_;
};

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim, std::optional<DType> dtype) {
  check_defined("sum", "x", x);
  if (dtype) return sum(x.to(*dtype), dims, keepdim).to(*dtype);
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return sum(autocast(CastPolicy::f32_on_cuda, x), dims, keepdim);
  Tensor y = raw::sum(x, dims, keepdim);
  return recording(x) ? record<SumNode>(std::move(y), "sum", x, dims, false) : y;
}
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  Tensor y = raw::mean(x, dims, keepdim);
  return recording(x) ? record<SumNode>(std::move(y), "mean", x, dims, true) : y;
}
Tensor prod(const Tensor& x, const Dims& dims, bool keepdim, std::optional<DType> dtype) {
  check_defined("prod", "x", x);
  if (dtype) return prod(x.to(*dtype), dims, keepdim).to(*dtype);
  if (autocasts(CastPolicy::f32, x)) [[unlikely]]
    return prod(autocast(CastPolicy::f32, x), dims, keepdim);
  Tensor y = raw::prod(x, dims, keepdim);
  return recording(x) ? record<ProdNode>(std::move(y), x, dims) : y;
}
Tensor max(const Tensor& x, const Dims& dims, bool keepdim) {
  Tensor y = raw::max(x, dims, keepdim);
  return recording(x) ? record<ExtremeNode>(y, "max", x, dims, y) : y;
}
Tensor min(const Tensor& x, const Dims& dims, bool keepdim) {
  Tensor y = raw::min(x, dims, keepdim);
  return recording(x) ? record<ExtremeNode>(y, "min", x, dims, y) : y;
}

Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return observed("all", {.dims = &dims}, raw::all(x, dims, keepdim), x);
}
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return observed("any", {.dims = &dims}, raw::any(x, dims, keepdim), x);
}
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return observed("argmax", {}, raw::argmax(x, dim, keepdim), x);
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return observed("argmin", {}, raw::argmin(x, dim, keepdim), x);
}

Tensor autograd::record_choice(const char* name, const Tensor& y, const Tensor& x) {
  return recording(x) ? record<ExtremeNode>(y, name, x, Dims{}, y) : y;
}

namespace {

// Gives a result of raw::moments the shape and dtype of the operation's result.
Tensor finish(const raw::Moments& m, const Tensor& values, const Tensor& x) {
  return raw::to(raw::reshape(values, m.shape), x.dtype());
}

Tensor spread(const char* name, bool is_std, const Tensor& x, const Dims& dims, double correction,
              bool keepdim) {
  const Span span("op", name);
  const raw::Moments m = raw::moments(name, x, dims, keepdim);
  const Tensor variance = raw::div(m.squares, raw::degrees_of_freedom(name, m.n, correction));
  const double divisor = static_cast<double>(m.n) - correction;
  const Tensor root = is_std ? raw::sqrt(variance) : Tensor();
  Tensor y = finish(m, is_std ? root : variance, x);
  return recording(x) ? record<VarNode>(std::move(y), name, x, dims, divisor, m.mean, root) : y;
}

}  // namespace

Tensor var(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  return spread("var", false, x, dims, correction, keepdim);
}
Tensor std(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  return spread("std", true, x, dims, correction, keepdim);
}
Tensor norm(const Tensor& x, const Dims& dims, bool keepdim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return norm(autocast(CastPolicy::f32_on_cuda, x), dims, keepdim);
  if (!recording(x)) return raw::norm(x, dims, keepdim);
  const Span span("op", "norm");
  const raw::Moments m = raw::moments("norm", x, dims, keepdim, false);
  const Tensor root = raw::length_of(x, m);
  return record<NormNode>(finish(m, root, x), x, dims, root);
}

namespace {

// max and min along one dimension: the values at the indices, which are in range.
class PositionNode final : public DifferentiableNode {
 public:
  PositionNode(const char* name, const Tensor& x, std::int64_t dim, const Tensor& index)
      : DifferentiableNode(name), shape_(x.shape()), dim_(dim) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor index = index_.get(*this);
    grads.set(0, autograd::put_back(grads.y().reshape(index.shape()), dim_, index, shape_));
  }
  void describe(Description& d) const override { d.set("dims", shape_.empty() ? Dims{} : dim_); }

 private:
  void release_saved() override { index_.reset(); }
  Shape shape_;
  std::int64_t dim_;
  SavedTensor index_;
};

ValuesAndIndices extreme_of_dim(const char* name, bool largest, const Tensor& x, std::int64_t dim,
                                bool keepdim) {
  check_defined(name, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), name);
  // Checked here, since the error of argmax would name argmax.
  WEFT_CHECK(x.dim() == 0 || x.shape()[dim] > 0, Shape, name,
             "no elements to choose from: dimension ", dim, " of ", x.shape(), " is empty");
  const Tensor index = largest ? raw::argmax(x, dim, true) : raw::argmin(x, dim, true);
  const Tensor kept = raw::gather(x, dim, index, false);
  const auto shaped = [&](const Tensor& t) {
    return keepdim || x.dim() == 0 ? t : raw::squeeze(t, dim);
  };
  Tensor values = shaped(kept);
  // Saves a copy of the index, since the caller may write to its own.
  if (recording(x)) values = record<PositionNode>(values, name, x, dim, raw::clone(index));
  return {values, observed(name, {}, shaped(index), x)};
}

}  // namespace

ValuesAndIndices max_of_dim(const Tensor& x, std::int64_t dim, bool keepdim) {
  return extreme_of_dim("max", true, x, dim, keepdim);
}
ValuesAndIndices min_of_dim(const Tensor& x, std::int64_t dim, bool keepdim) {
  return extreme_of_dim("min", false, x, dim, keepdim);
}

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  check_defined("logsumexp", "x", x);
  if (!is_floating(x.dtype())) return logsumexp(raw::to(x, DType::f32), dims, keepdim);
  // bf16 is rounded once, at the end.
  if (x.dtype() == DType::bf16) {
    return logsumexp(x.to(DType::f32), dims, keepdim).to(DType::bf16);
  }
  if (x.numel() == 0) return log(sum(exp(x), dims, keepdim));
  // An infinite maximum is not subtracted: infinity - infinity would be NaN.
  const Tensor largest = raw::max(x.detach(), dims, true);
  const Tensor shift = masked_fill(largest, raw::eq(raw::abs(largest), kInfinity), 0);
  const Tensor y = log(sum(exp(x - shift), dims, keepdim));
  return y + raw::reshape(shift, y.shape());
}

}  // namespace weft
