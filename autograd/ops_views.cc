// Views, copies, joining and splitting.
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/pool.h"

namespace weft {

using autograd::Gradients;
using autograd::Node;
using autograd::Operand;
using autograd::record;
using autograd::recording;

namespace {

// y is x itself when there was nothing to do.
template <class Rule, class... Args>
Tensor record_view(Tensor y, const Tensor& x, Args&&... args) {
  if (!recording(x) || y.same(x)) return y;
  autograd::attach(y, make_intrusive<Rule>(std::forward<Args>(args)..., x));
  autograd::mark_view(y, x);
  return y;
}

// Same elements in the same order.
class ReshapeNode final : public Node {
 public:
  ReshapeNode(const char* name, const Tensor& x) : Node(name), shape_(x.shape()) { add_input(x); }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, raw::reshape(grads.y(), shape_));
  }

 private:
  Shape shape_;
};

// y has x's elements in another shape, and x is given up. Where that was the last handle to it, y
// is not recorded as a view: no tensor is left whose history a write to y would have to change.
Tensor record_renamed(Tensor y, Tensor&& x, const char* name) {
  if (recording(x) && !y.same(x)) {
    const autograd::Meta* meta = autograd::meta_of(x);
    const bool last = x.impl()->use_count() == 1 && !meta->leaf && !meta->base;
    autograd::attach(y, make_intrusive<ReshapeNode>(name, x));
    if (!last) autograd::mark_view(y, x);
  }
  x = Tensor();  // a temporary would hold the memory to the end of the expression
  return y;
}

class PermuteNode final : public Node {
 public:
  PermuteNode(const char* name, const Dims& inverse, const Tensor& x)
      : Node(name), inverse_(inverse) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, raw::permute(grads.y(), inverse_));
  }

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
class SliceNode final : public Node {
 public:
  SliceNode(const char* name, std::int64_t dim, std::int64_t start, std::int64_t end,
            std::int64_t step, bool drops_dim, const Tensor& x)
      : Node(name),
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
    grads.set(0, std::move(whole));
  }

 private:
  Shape shape_;
  std::int64_t dim_;
  std::int64_t start_, end_, step_;
  bool drops_dim_;
};

class ExpandNode final : public Node {
 public:
  explicit ExpandNode(const Tensor& x) : Node("expand"), x_(x) { add_input(x); }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, x_.fit(grads.y()));
  }

 private:
  Operand x_;
};

// contiguous, clone, to: the same values elsewhere.
class CopyNode final : public Node {
 public:
  CopyNode(const char* name, const Tensor& x) : Node(name), device_(x.device()), dtype_(x.dtype()) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    Tensor grad = raw::to(grads.take(), dtype_);
    // What goes to a leaf of another CPU device is added up from where it lies.
    const bool read_from_afar = device_.is_cpu() && grad.device().is_cpu() && edges()[0].is_leaf();
    grads.set(0, read_from_afar ? std::move(grad) : raw::to(grad, device_));
  }

 private:
  Device device_;
  DType dtype_;
};

// Pieces along one dimension, each an output.
class SplitNode final : public Node {
 public:
  SplitNode(const char* name, std::span<const Tensor> pieces, std::int64_t dim, const Tensor& x)
      : Node(name, static_cast<int>(pieces.size())), shape_(x.shape()), dim_(dim) {
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
    grads.set(0, raw::cat(parts, dim_));
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

class CatNode final : public Node {
 public:
  CatNode(std::span<const Tensor> parts, std::int64_t dim) : Node("cat"), dim_(dim) {
    parts_.reserve(parts.size());
    for (const Tensor& part : parts) {
      add_input(part);
      parts_.push_back({part.shape()[dim], part.dtype()});
    }
  }
  void apply(Gradients& grads) override {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& [size, dtype] = parts_[i];
      if (grads.wants(static_cast<int>(i))) {
        grads.set(static_cast<int>(i), raw::to(raw::narrow(grads.y(), dim_, start, size), dtype));
      }
      start += size;
    }
  }

 private:
  struct Part {
    std::int64_t size;
    DType dtype;
  };
  std::int64_t dim_;
  std::vector<Part, PoolAllocator<Part>> parts_;
};

class StackNode final : public Node {
 public:
  StackNode(std::span<const Tensor> parts, std::int64_t dim) : Node("stack"), dim_(dim) {
    dtypes_.reserve(parts.size());
    for (const Tensor& part : parts) {
      add_input(part);
      dtypes_.push_back(part.dtype());
    }
  }
  void apply(Gradients& grads) override {
    for (int i = 0; i < grads.inputs(); ++i) {
      if (grads.wants(i)) grads.set(i, raw::to(raw::select(grads.y(), dim_, i), dtypes_[i]));
    }
  }

 private:
  std::int64_t dim_;
  std::vector<DType, PoolAllocator<DType>> dtypes_;
};

Tensor record_slice(const char* name, Tensor y, const Tensor& x, std::int64_t dim,
                    std::int64_t start, std::int64_t end, std::int64_t step, bool drops_dim) {
  if (!recording(x)) return y;
  return record_view<SliceNode>(std::move(y), x, name, normalize_dim(dim, x.dim(), name), start,
                                end, step, drops_dim);
}

}  // namespace

void autograd::record_copy(const char* op, const Tensor& copy, const Tensor& x) {
  WEFT_CHECK(copy.shape() == x.shape(), Shape, op, "the copy is ", copy.shape(), ", the tensor ",
             x.shape());
  WEFT_CHECK(!copy.requires_grad() || !copy.is_leaf(), InvalidArgument, op, "the copy (",
             copy.shape(), ") is a leaf that requires a gradient of its own");
  if (recording(x)) return attach(copy, make_intrusive<CopyNode>(op, x));
  if (Meta* meta = meta_of(copy)) {
    meta->requires_grad.store(false, std::memory_order_release);
    meta->producer.reset();
  }
}

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
  WEFT_CHECK(dim() == 2, Shape, "t", "needs 2 dimensions, got ", shape());
  return transpose(0, 1);
}

Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t end,
                     std::int64_t step) const {
  return record_slice("slice", raw::slice(*this, dim, start, end, step), *this, dim, start, end,
                      step, false);
}
Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
  Tensor y = raw::narrow(*this, dim, start, length);
  // narrow counts a negative start from the end, where start + length may be 0.
  if (start < 0) start += shape(dim);
  return record_slice("narrow", std::move(y), *this, dim, start, start + length, 1, false);
}
Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  Tensor y = raw::select(*this, dim, index);
  if (index < 0) index += shape(dim);
  return record_slice("select", std::move(y), *this, dim, index, index + 1, 1, true);
}

Tensor Tensor::expand(const Shape& shape) const {
  return record_view<ExpandNode>(raw::expand(*this, shape), *this);
}

Tensor Tensor::contiguous() const {
  return record_view<CopyNode>(raw::contiguous(*this), *this, "contiguous");
}
Tensor Tensor::clone() const { return record_view<CopyNode>(raw::clone(*this), *this, "clone"); }
Tensor Tensor::to(Device device) const {
  return record_view<CopyNode>(raw::to(*this, device), *this, "to");
}
Tensor Tensor::to(DType dtype) const {
  Tensor y = raw::to(*this, dtype);
  return is_floating(dtype) ? record_view<CopyNode>(std::move(y), *this, "to") : y;
}
Tensor Tensor::to(Device device, DType dtype) const {
  // What crosses is what is smaller.
  return size_of(dtype) < size_of(this->dtype()) ? to(dtype).to(device) : to(device).to(dtype);
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

Tensor cat(std::span<const Tensor> parts, std::int64_t dim) {
  Tensor y = raw::cat(parts, dim);
  if (!autograd::recording_any(parts)) return y;
  return record<CatNode>(std::move(y), parts, normalize_dim(dim, parts[0].dim(), "cat"));
}
Tensor cat(std::initializer_list<Tensor> parts, std::int64_t dim) {
  return cat(std::span<const Tensor>(parts.begin(), parts.size()), dim);
}
Tensor stack(std::span<const Tensor> parts, std::int64_t dim) {
  Tensor y = raw::stack(parts, dim);
  if (!autograd::recording_any(parts)) return y;
  return record<StackNode>(std::move(y), parts, normalize_dim(dim, parts[0].dim() + 1, "stack"));
}
Tensor stack(std::initializer_list<Tensor> parts, std::int64_t dim) {
  return stack(std::span<const Tensor>(parts.begin(), parts.size()), dim);
}

}  // namespace weft
