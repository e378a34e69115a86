// Reductions, softmax and indexing.
#include <algorithm>

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

// Shape with reduced dimensions of length 1, and how many elements went into each result.
class ReducedNode : public Node {
 protected:
  ReducedNode(const char* name, const Tensor& x, const Dims& dims)
      : Node(name), shape_(x.shape()), kept_(x.shape()) {
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

  /// A result's tensor in a shape that broadcasts to x's.
  Tensor kept(const Tensor& y) const { return raw::reshape(y, kept_); }
  /// The same with keepdim, of dimensions that are not of length 1 already.
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
    // Divided while it is small; the expanded gradient has strides 0.
    const Tensor grad =
        mean_ && count_ != 1 ? raw::div(grads.y(), static_cast<double>(count_)) : grads.y();
    grads.set(0, raw::expand(kept(grad), shape_));
  }

 private:
  bool mean_;
};

class ProdNode final : public ReducedNode {
 public:
  ProdNode(const Tensor& x, const Dims& dims) : ReducedNode("prod", x, dims) { x_ = save(x); }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    // The product of the others is p / x; with one zero among them it is p (of the rest) at the
    // zero and 0 elsewhere, with two it is 0 everywhere.
    const Tensor& x = x_.get(*this);
    const Tensor is_zero = raw::eq(x, 0.0);
    const Tensor rest = raw::where(is_zero, ones_like(x), x);
    const Tensor p = reduce_kept(rest, raw::prod);
    const Tensor zeros = reduce_kept(raw::to(is_zero, x.dtype()), raw::sum);
    const Tensor none = scalar(0, {x.dtype(), x.device()});
    const Tensor at_zero = raw::where(raw::eq(zeros, 1.0), p, none);
    const Tensor elsewhere = raw::where(raw::eq(zeros, 0.0), raw::div(p, rest), none);
    grads.set(0, raw::mul(kept(grads.y()), raw::where(is_zero, at_zero, elsewhere)));
  }

 private:
  void release_saved() override { x_.reset(); }
  SavedTensor x_;
};

// max, min: equal parts to all positions that hold the extreme.
class ExtremeNode final : public ReducedNode {
 public:
  ExtremeNode(const char* name, const Tensor& x, const Dims& dims, const Tensor& y)
      : ReducedNode(name, x, dims) {
    x_ = save(x);
    y_ = save(y);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& x = x_.get(*this);
    const Tensor holds = raw::to(raw::eq(x, kept(y_.get(*this))), x.dtype());
    const Tensor count = reduce_kept(holds, raw::sum);
    grads.set(0, raw::mul(holds, raw::div(kept(grads.y()), count)));
  }

 private:
  void release_saved() override {
    x_.reset();
    y_.reset();
  }
  SavedTensor x_, y_;
};

class VarNode final : public ReducedNode {
 public:
  VarNode(const Tensor& x, const Dims& dims, double correction)
      : ReducedNode("var", x, dims), correction_(correction) {
    x_ = save(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& x = x_.get(*this);
    const Tensor centred = raw::sub(x, reduce_kept(x, raw::mean));
    const double divisor = std::max(static_cast<double>(count_) - correction_, 0.0);
    const Tensor scale = raw::mul(kept(grads.y()), 2 / divisor);
    grads.set(0, raw::mul(centred, scale));
  }

 private:
  void release_saved() override { x_.reset(); }
  double correction_;
  SavedTensor x_;
};

class NormNode final : public ReducedNode {
 public:
  NormNode(const Tensor& x, const Dims& dims, const Tensor& y) : ReducedNode("norm", x, dims) {
    x_ = save(x);
    y_ = save(y);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    // 0 at norm 0, where any vector of length <= 1 would do.
    const Tensor& y = y_.get(*this);
    const Tensor none = scalar(0, {y.dtype(), y.device()});
    const Tensor scale = raw::where(raw::eq(y, 0.0), none, raw::div(grads.y(), y));
    grads.set(0, raw::mul(x_.get(*this), kept(scale)));
  }

 private:
  void release_saved() override {
    x_.reset();
    y_.reset();
  }
  SavedTensor x_, y_;
};

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

// index_select and gather: what was read is added back where it came from.
class PickNode final : public Node {
 public:
  using AddBack = const Tensor& (*)(const Tensor&, std::int64_t, const Tensor&, const Tensor&,
                                    bool checked);
  PickNode(const char* name, AddBack add_back, const Tensor& x, std::int64_t dim,
           const Tensor& index)
      : Node(name), add_back_(add_back), shape_(x.shape()), dim_(dim) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    Tensor whole = zeros(shape_, {grads.y().dtype(), grads.y().device()});
    // That the index is in range was seen in forward.
    add_back_(whole, dim_, index_.get(*this), grads.y(), false);
    grads.set(0, std::move(whole));
  }

 private:
  void release_saved() override { index_.reset(); }
  AddBack add_back_;
  Shape shape_;
  std::int64_t dim_;
  SavedTensor index_;
};

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(const Tensor& index, const Tensor& weight, std::int64_t padding)
      : Node("embedding"), rows_(weight.shape()[0]), padding_(padding) {
    add_input(weight);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::embedding_backward(grads.y(), index_.get(*this), rows_, padding_));
  }

 private:
  void release_saved() override { index_.reset(); }
  std::int64_t rows_, padding_;
  SavedTensor index_;
};

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return sum(autocast(CastPolicy::f32_on_cuda, x), dims, keepdim);
  Tensor y = raw::sum(x, dims, keepdim);
  return recording(x) ? record<SumNode>(std::move(y), "sum", x, dims, false) : y;
}
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  Tensor y = raw::mean(x, dims, keepdim);
  return recording(x) ? record<SumNode>(std::move(y), "mean", x, dims, true) : y;
}
Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
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
Tensor var(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  Tensor y = raw::var(x, dims, correction, keepdim);
  return recording(x) ? record<VarNode>(std::move(y), x, dims, correction) : y;
}
Tensor norm(const Tensor& x, const Dims& dims, bool keepdim) {
  if (autocasts(CastPolicy::f32_on_cuda, x)) [[unlikely]]
    return norm(autocast(CastPolicy::f32_on_cuda, x), dims, keepdim);
  Tensor y = raw::norm(x, dims, keepdim);
  return recording(x) ? record<NormNode>(y, x, dims, y) : y;
}

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

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Tensor y = raw::index_select(x, dim, index);
  return recording(x)
             ? record<PickNode>(std::move(y), "index_select", raw::index_add_, x, dim, index)
             : y;
}
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Tensor y = raw::gather(x, dim, index);
  return recording(x) ? record<PickNode>(std::move(y), "gather", raw::scatter_add_, x, dim, index)
                      : y;
}

Tensor embedding(const Tensor& index, const Tensor& weight,
                 std::optional<std::int64_t> padding_idx) {
  Tensor y = raw::embedding(index, weight);
  std::int64_t padding = -1;
  if (padding_idx) {
    const std::int64_t rows = weight.shape()[0];
    padding = *padding_idx + (*padding_idx < 0 ? rows : 0);
    WEFT_CHECK(padding >= 0 && padding < rows, InvalidArgument, "embedding", "padding_idx ",
               *padding_idx, " is no row of weight ", weight.shape());
  }
  return recording(weight) ? record<EmbeddingNode>(std::move(y), index, weight, padding) : y;
}

}  // namespace weft
