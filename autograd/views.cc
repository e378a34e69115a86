#include "weft/autograd/views.h"

#include <algorithm>

#include "weft/autograd/copies.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/pool.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::Description;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::Operand;
using autograd::record_linear;
using autograd::record_view;
using autograd::recording;

namespace {

// Same elements in the same order.
class ReshapeNode final : public DifferentiableNode {
 public:
  ReshapeNode(const char* name, const Tensor& x) : DifferentiableNode(name), shape_(x.shape()) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, grads.y().reshape(shape_));
  }

 private:
  Shape shape_;
};

// y has x's elements in another shape, and x is given up. If this was the last handle to x, y is
// not recorded as a view: no tensor is left whose history a write to y would have to change.
Tensor record_renamed(Tensor y, Tensor&& x, const char* name) {
  if (recording(x) && !y.same(x)) {
    const autograd::Meta* meta = autograd::meta_of(x);
    const bool last = x.impl()->use_count() == 1 && !meta->leaf && !meta->base;
    autograd::attach(y, make_intrusive<ReshapeNode>(name, x));
    if (!last) autograd::mark_view(y, x);
  }
  x = Tensor();  // else a temporary would hold the memory until the end of the expression
  return y;
}

class PermuteNode final : public DifferentiableNode {
 public:
  PermuteNode(const char* name, const Dims& inverse, const Tensor& x)
      : DifferentiableNode(name), inverse_(inverse) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, grads.y().permute(inverse_));
  }
  void describe(Description& d) const override { d.set("inverse", inverse_); }

 private:
  Dims inverse_;
};

Dims inverse_of(const Dims& dims, int ndim) {
  Dims inverse = Dims::filled(ndim, 0);
  for (int i = 0; i < ndim; ++i) {
    inverse[normalize_dim(dims[i], ndim, "permute")] = i;
  }
  return inverse;
}

Dims swapped(std::int64_t dim0, std::int64_t dim1, int ndim) {
  Dims order = Dims::filled(ndim, 0);
  for (int i = 0; i < ndim; ++i) order[i] = i;
  if (ndim == 0) return order;
  std::swap(order[normalize_dim(dim0, ndim, "transpose")],
            order[normalize_dim(dim1, ndim, "transpose")]);
  return order;
}

// Elements start, start + step, ... of one dimension.
class SliceNode final : public DifferentiableNode {
 public:
  SliceNode(const char* name, std::int64_t dim, std::int64_t start, std::int64_t end,
            std::int64_t step, bool drops_dim, const Tensor& x)
      : DifferentiableNode(name),
        shape_(x.shape()),
        dim_(dim),
        start_(start),
        end_(end),
        step_(step),
        drops_dim_(drops_dim) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& grad = grads.y();
    Tensor whole = zeros(shape_, {grad.dtype(), grad.device()});
    const Tensor part = raw::slice(whole, dim_, start_, end_, step_);
    raw::copy_(part, drops_dim_ ? raw::unsqueeze(grad, dim_) : grad);
    const auto taken = [dim = dim_, start = start_, end = end_, step = step_,
                        drops_dim = drops_dim_](const Tensor& g) {
      const Tensor part_of = g.slice(dim, start, end, step);
      return drops_dim ? part_of.squeeze(dim) : part_of;
    };
    grads.set(0, record_linear("slice_backward", std::move(whole), grad, taken));
  }
  void describe(Description& d) const override {
    d.ints = {{"slice", {dim_, start_, step_}}, {"end", {end_}}};
  }

 private:
  Shape shape_;
  std::int64_t dim_;
  std::int64_t start_, end_, step_;
  bool drops_dim_;
};

class ExpandNode final : public DifferentiableNode {
 public:
  explicit ExpandNode(const Tensor& x) : DifferentiableNode("expand"), x_(x) { add_input(x); }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, x_.fit(grads.y()));
  }

 private:
  Operand x_;
};

// An element may be in several windows.
class UnfoldNode final : public DifferentiableNode {
 public:
  UnfoldNode(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step)
      : DifferentiableNode("unfold"), shape_(x.shape()), dim_(dim), size_(size), step_(step) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& grad = grads.y();
    Tensor whole = zeros(shape_, {grad.dtype(), grad.device()});
    if (grad.numel() > 0) add_windows(grad, whole);
    const auto unfolded = [dim = dim_, size = size_, step = step_](const Tensor& g) {
      return g.unfold(dim, size, step);
    };
    grads.set(0, record_linear("unfold_backward", std::move(whole), grad, unfolded));
  }

 private:
  // Adds all first elements of the windows, all second ones, and so on; or, where there are fewer
  // windows, one window after the other.
  void add_windows(const Tensor& grad, const Tensor& whole) const {
    const Tensor line = shape_.empty() ? raw::reshape(whole, {1}) : whole;
    const Tensor windows = shape_.empty() ? raw::reshape(grad, {1, size_}) : grad;
    const std::int64_t count = windows.shape(dim_), last = (count - 1) * step_ + 1;
    if (size_ <= count) {
      for (std::int64_t i = 0; i < size_; ++i) {
        raw::add_scaled_(raw::slice(line, dim_, i, i + last, step_), 1,
                         raw::select(windows, -1, i));
      }
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const Tensor window = raw::transpose(raw::narrow(windows, dim_, i, 1), dim_, -1);
      const Tensor part = raw::slice(line, dim_, i * step_, i * step_ + size_);
      raw::add_scaled_(part, 1, raw::select(window, -1, 0));
    }
  }

  Shape shape_;
  std::int64_t dim_, size_, step_;
};

class DiagonalNode final : public DifferentiableNode {
 public:
  DiagonalNode(std::int64_t offset, std::int64_t dim1, std::int64_t dim2, const Tensor& x)
      : DifferentiableNode("diagonal"),
        shape_(x.shape()),
        offset_(offset),
        dim1_(dim1),
        dim2_(dim2) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor whole = zeros(shape_, {grads.y().dtype(), grads.y().device()});
    raw::copy_(raw::diagonal(whole, offset_, dim1_, dim2_), grads.y());
    const auto diagonal = [offset = offset_, dim1 = dim1_, dim2 = dim2_](const Tensor& g) {
      return g.diagonal(offset, dim1, dim2);
    };
    grads.set(0, record_linear("diagonal_backward", whole, grads.y(), diagonal));
  }

 private:
  Shape shape_;
  std::int64_t offset_, dim1_, dim2_;
};

// Pieces along one dimension, each an output.
class SplitNode final : public DifferentiableNode {
 public:
  SplitNode(const char* name, std::span<const Tensor> pieces, std::int64_t dim, const Tensor& x)
      : DifferentiableNode(name, static_cast<int>(pieces.size())), shape_(x.shape()), dim_(dim) {
    add_input(x);
    sizes_.reserve(pieces.size());
    for (const Tensor& piece : pieces) sizes_.push_back(piece.shape()[dim]);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor* some = nullptr;
    for (int i = 0; i < grads.outputs(); ++i) {
      if (grads.y(i).defined()) some = &grads.y(i);
    }
    std::vector<Tensor, PoolAllocator<Tensor>> parts;
    parts.reserve(sizes_.size());
    for (int i = 0; i < grads.outputs(); ++i) {
      Shape shape = shape_;
      shape[dim_] = sizes_[i];
      parts.push_back(grads.y(i).defined() ? grads.y(i)
                                           : zeros(shape, {some->dtype(), some->device()}));
    }
    grads.set(0, cat(parts, dim_));
  }
  void describe(Description& d) const override {
    d.ints = {{"dim", {dim_}}, {"sizes", {sizes_.begin(), sizes_.end()}}};
  }

 private:
  Shape shape_;
  std::int64_t dim_;
  std::vector<std::int64_t, PoolAllocator<std::int64_t>> sizes_;
};

std::vector<Tensor> record_split(const char* name, const Tensor& x, std::vector<Tensor> pieces,
                                 std::int64_t dim) {
  if (!recording(x)) return pieces;
  const auto node = make_intrusive<SplitNode>(name, std::span<const Tensor>(pieces),
                                              normalize_dim(dim, x.dim(), name), x);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].same(x)) pieces[i] = raw::alias(x);
    autograd::attach(pieces[i], node, static_cast<int>(i));
    autograd::mark_view(pieces[i], x);
  }
  return pieces;
}

Tensor record_slice(const char* name, Tensor y, const Tensor& x, std::int64_t dim,
                    std::int64_t start, std::int64_t end, std::int64_t step, bool drops_dim) {
  if (!recording(x)) {
    autograd::link_plain_view(y, x);
    return y;
  }
  return record_view<SliceNode>(std::move(y), x, name, normalize_dim(dim, x.dim(), name), start,
                                end, step, drops_dim);
}

}  // namespace

Tensor Tensor::reshape(const Shape& shape) const& {
  return record_view<ReshapeNode>(raw::reshape(*this, shape), *this, "reshape");
}
Tensor Tensor::reshape(const Shape& shape) && {
  return record_renamed(raw::reshape(*this, shape), std::move(*this), "reshape");
}
Tensor Tensor::flatten(std::int64_t start_dim, std::int64_t end_dim) const& {
  return record_view<ReshapeNode>(raw::flatten(*this, start_dim, end_dim), *this, "flatten");
}
Tensor Tensor::flatten(std::int64_t start_dim, std::int64_t end_dim) && {
  return record_renamed(raw::flatten(*this, start_dim, end_dim), std::move(*this), "flatten");
}
Tensor Tensor::unflatten(std::int64_t dim, const Shape& sizes) const& {
  return record_view<ReshapeNode>(raw::unflatten(*this, dim, sizes), *this, "unflatten");
}
Tensor Tensor::unflatten(std::int64_t dim, const Shape& sizes) && {
  return record_renamed(raw::unflatten(*this, dim, sizes), std::move(*this), "unflatten");
}
Tensor Tensor::squeeze() const {
  return record_view<ReshapeNode>(raw::squeeze(*this), *this, "squeeze");
}
Tensor Tensor::squeeze(std::int64_t dim) const {
  return record_view<ReshapeNode>(raw::squeeze(*this, dim), *this, "squeeze");
}
Tensor Tensor::unsqueeze(std::int64_t dim) const {
  return record_view<ReshapeNode>(raw::unsqueeze(*this, dim), *this, "unsqueeze");
}

Tensor Tensor::permute(const Dims& dims) const {
  Tensor y = raw::permute(*this, dims);
  if (!recording(*this)) return y;
  return record_view<PermuteNode>(std::move(y), *this, "permute", inverse_of(dims, dim()));
}
Tensor Tensor::transpose(std::int64_t dim0, std::int64_t dim1) const {
  Tensor y = raw::transpose(*this, dim0, dim1);
  if (!recording(*this)) return y;
  return record_view<PermuteNode>(std::move(y), *this, "transpose", swapped(dim0, dim1, dim()));
}
Tensor Tensor::t() const {
  WEFT_CHECK(dim() <= 2, Shape, "t", "needs 2 dimensions or fewer, got ", shape());
  return dim() == 2 ? transpose(0, 1) : *this;
}

Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t end,
                     std::int64_t step) const& {
  return record_slice("slice", raw::slice(*this, dim, start, end, step), *this, dim, start, end,
                      step, false);
}
Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const& {
  Tensor y = raw::narrow(*this, dim, start, length);
  // A negative start of narrow counts from the end, and start + length may then be 0.
  if (start < 0) start += shape(dim);
  return record_slice("narrow", std::move(y), *this, dim, start, start + length, 1, false);
}
Tensor Tensor::select(std::int64_t dim, std::int64_t index) const& {
  Tensor y = raw::select(*this, dim, index);
  if (index < 0) index += shape(dim);
  return record_slice("select", std::move(y), *this, dim, index, index + 1, 1, true);
}
// In buffer[0][1] = h the temporary buffer[0] is gone when h is written: buffer's memory has no
// other user, whose history the write would have to change.
Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) && {
  const Tensor x = std::move(*this);
  return x.slice(dim, start, end, step);
}
Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) && {
  const Tensor x = std::move(*this);
  return x.narrow(dim, start, length);
}
Tensor Tensor::select(std::int64_t dim, std::int64_t index) && {
  const Tensor x = std::move(*this);
  return x.select(dim, index);
}

Tensor Tensor::expand(const Shape& shape) const {
  return record_view<ExpandNode>(raw::expand(*this, shape), *this);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim) {
  return record_split("chunk", x, raw::chunk(x, count, dim), dim);
}
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  return record_split("split", x, raw::split(x, size, dim), dim);
}
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, std::int64_t dim) {
  return record_split("split", x, raw::split(x, sizes, dim), dim);
}

Tensor MoreMethods::view(const Shape& shape) const {
  return record_view<ReshapeNode>(raw::view(self(), shape), self(), "view");
}
Tensor MoreMethods::unfold(std::int64_t dim, std::int64_t size, std::int64_t step) const {
  Tensor y = raw::unfold(self(), dim, size, step);
  if (!recording(self())) return y;
  autograd::attach(
      y, make_intrusive<UnfoldNode>(self(), normalize_dim(dim, std::max(self().dim(), 1), "unfold"),
                                    size, step));
  autograd::mark_view(y, self());
  return y;
}
Tensor MoreMethods::diagonal(std::int64_t offset, std::int64_t dim1, std::int64_t dim2) const {
  return record_view<DiagonalNode>(raw::diagonal(self(), offset, dim1, dim2), self(), offset, dim1,
                                   dim2);
}

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim) {
  autograd::check_defined("unbind", "x", x);
  dim = normalize_dim(dim, x.dim(), "unbind");
  if (x.shape()[dim] == 0) return {};
  std::vector<Tensor> pieces = split(x, 1, dim);
  for (Tensor& piece : pieces) piece = piece.squeeze(dim);
  return pieces;
}

std::vector<Tensor> meshgrid(std::span<const Tensor> axes, std::string_view indexing) {
  WEFT_CHECK(indexing == "ij" || indexing == "xy", InvalidArgument, "meshgrid", "indexing: got '",
             indexing, "', expected ij or xy");
  WEFT_CHECK(!axes.empty(), InvalidArgument, "meshgrid", "needs at least one axis");
  Shape lengths;
  for (const Tensor& axis : axes) {
    autograd::check_defined("meshgrid", "an axis", axis);
    WEFT_CHECK(axis.dim() <= 1, Shape, "meshgrid", "an axis: got ", axis.shape(),
               ", expected one dimension");
    lengths.push_back(axis.numel());
  }
  std::vector<Tensor> grids;
  for (int i = 0; i < lengths.size(); ++i) {
    Shape shape = Dims::filled(lengths.size(), 1);
    shape[i] = lengths[i];
    const Tensor grid = axes[static_cast<std::size_t>(i)].reshape(shape).expand(lengths);
    const bool swaps = indexing == "xy" && lengths.size() > 1;
    grids.push_back(swaps ? grid.transpose(0, 1) : grid);
  }
  return grids;
}
std::vector<Tensor> meshgrid(std::initializer_list<Tensor> axes, std::string_view indexing) {
  return meshgrid(std::span<const Tensor>(axes.begin(), axes.size()), indexing);
}

}  // namespace weft
