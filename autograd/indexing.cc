#include "weft/autograd/indexing.h"

#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::Description;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::record_linear;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// The two pairs of operations that read elements and add to them: by rows, or one by one.
struct Access {
  Tensor (*take)(const Tensor&, std::int64_t, const Tensor&, bool checked);
  const Tensor& (*add)(const Tensor&, std::int64_t, const Tensor&, const Tensor&, bool checked);
};
constexpr Access kRows{raw::index_select, raw::index_add_};
constexpr Access kElements{raw::gather, raw::scatter_add_};

// The adjoints of each other, recorded. The index is not checked: it is a forward's, which did
// that.
Tensor take(const Access& access, const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor add_back(const Access& access, const Tensor& part, std::int64_t dim, const Tensor& index,
                const Shape& shape) {
  Tensor whole = zeros(shape, {part.dtype(), part.device()});
  access.add(whole, dim, index, part, false);
  return record_linear("add_back", std::move(whole), part, [&access, dim, index](const Tensor& g) {
    return take(access, g, dim, index);
  });
}
Tensor take(const Access& access, const Tensor& x, std::int64_t dim, const Tensor& index) {
  return record_linear("take", access.take(x, dim, index, false), x,
                       [&access, dim, index, shape = x.shape()](const Tensor& g) {
                         return add_back(access, g, dim, index, shape);
                       });
}

// index_select and gather: backward adds each gradient to the element that was read.
class PickNode final : public DifferentiableNode {
 public:
  PickNode(const char* name, const Access& access, const Tensor& x, std::int64_t dim,
           const Tensor& index)
      : DifferentiableNode(name), access_(access), shape_(x.shape()), dim_(dim) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, add_back(access_, grads.y(), dim_, index_.get(*this), shape_));
  }
  void describe(Description& d) const override {
    d.op = &access_ == &kRows ? "index_select" : "gather";
    d.set("dim", dim_);
    d.set("index", *this, index_);
  }

 private:
  void release_saved() override { index_.reset(); }
  const Access& access_;
  Shape shape_;
  std::int64_t dim_;
  SavedTensor index_;
};

class EmbeddingNode final : public DifferentiableNode {
 public:
  EmbeddingNode(const Tensor& index, const Tensor& weight, std::int64_t padding)
      : DifferentiableNode("embedding"), rows_(weight.shape()[0]), padding_(padding) {
    add_input(weight);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor &g = grads.y(), index = index_.get(*this);
    const auto looked_up = [index, padding = padding_](const Tensor& h) {
      const Tensor is_padding = raw::unsqueeze(raw::eq(index, double(padding)), -1);
      return masked_fill(embedding(index, h), is_padding, 0);
    };
    grads.set(0, record_linear("embedding_backward",
                               raw::embedding_backward(g, index, rows_, padding_), g, looked_up));
  }
  void describe(Description& d) const override { d.set("index", *this, index_); }

 private:
  void release_saved() override { index_.reset(); }
  std::int64_t rows_, padding_;
  SavedTensor index_;
};

// index_add, scatter_add and scatter into x.
class PutNode final : public DifferentiableNode {
 public:
  PutNode(const char* name, bool replaces, const Access& access, const Tensor& x, std::int64_t dim,
          const Tensor& index, const Tensor& source)
      : DifferentiableNode(name), replaces_(replaces), access_(access), dim_(dim) {
    add_input(x);
    add_input(source);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    const Tensor index = index_.get(*this);
    if (grads.wants(1)) grads.set(1, take(access_, grads.y(), dim_, index));
    if (grads.wants(0)) grads.set(0, replaces_ ? cleared(grads.y(), dim_, index) : grads.y());
  }

 private:
  // g with zeros at the positions: its own adjoint.
  static Tensor cleared(const Tensor& g, std::int64_t dim, const Tensor& index) {
    return record_linear("scatter_backward", raw::scatter_(raw::clone(g), dim, index, 0, false), g,
                         [dim, index](const Tensor& h) { return cleared(h, dim, index); });
  }
  void release_saved() override { index_.reset(); }
  bool replaces_;
  const Access& access_;
  std::int64_t dim_;
  SavedTensor index_;
};

// An empty index takes nothing from the source, which then may have any shape; a gradient has the
// index's.
Tensor used(const Tensor& source, const Tensor& index) {
  const bool is_other = source.defined() && source.shape() != index.shape();
  return index.numel() == 0 && is_other ? Tensor() : source;
}

}  // namespace

Tensor autograd::put_back(const Tensor& g, std::int64_t dim, const Tensor& index,
                          const Shape& shape) {
  return add_back(kElements, g, dim, index, shape);
}

void autograd::record_scatter(const char* name, const Tensor& y, const Tensor& x, std::int64_t dim,
                              const Tensor& index, const Tensor& source) {
  record<PutNode>(y, name, true, kElements, x, dim, index, used(source, index));
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Tensor y = raw::index_add(x, dim, index, source);
  if (!recording(x, source, index)) return y;
  return record<PutNode>(y, "index_add", false, kRows, x, dim, index, source);
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Tensor y = raw::scatter_add(x, dim, index, source);
  if (!recording(x, source, index)) return y;
  return record<PutNode>(y, "scatter_add", false, kElements, x, dim, index, used(source, index));
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Tensor y = raw::scatter(x, dim, index, source);
  if (recording(x, source, index)) autograd::record_scatter("scatter", y, x, dim, index, source);
  return y;
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, double value) {
  const Tensor y = raw::scatter(x, dim, index, value);
  if (recording(x, index)) autograd::record_scatter("scatter", y, x, dim, index, {});
  return y;
}

Tensor autograd::record_gather(const char* name, Tensor y, const Tensor& x, std::int64_t dim,
                               const Tensor& index) {
  return recording(x, index) ? record<PickNode>(std::move(y), name, kElements, x, dim, index) : y;
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Tensor y = raw::index_select(x, dim, index);
  return recording(x, index) ? record<PickNode>(std::move(y), "index_select", kRows, x, dim, index)
                             : y;
}
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  return autograd::record_gather("gather", raw::gather(x, dim, index), x, dim, index);
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
  return recording(weight, index) ? record<EmbeddingNode>(std::move(y), index, weight, padding) : y;
}

namespace {

void check_mask(const char* op, const Tensor& x, const Tensor& mask) {
  check_defined(op, "x", x);
  check_defined(op, "mask", mask);
  WEFT_CHECK(mask.dtype() == DType::boolean, Dtype, op, "mask: got ", mask.dtype(),
             ", expected bool");
  WEFT_CHECK(mask.device() == x.device(), Device, op, "x is on ", x.device(), ", mask on ",
             mask.device());
}

// The positions are in range.
Tensor selected(const Tensor& x, const Tensor& index) {
  Tensor y = raw::index_select(x, 0, index, false);
  return recording(x, index) ? record<PickNode>(std::move(y), "index_select", kRows, x, 0, index)
                             : y;
}

}  // namespace

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_mask("masked_fill", x, mask);
  raw::check_holds("masked_fill", value, x.dtype());
  return where(mask, scalar(value, {x.dtype(), x.device()}), x);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  const char* op = "masked_fill";
  check_mask(op, x, mask);
  check_defined(op, "value", value);
  WEFT_CHECK(value.dim() == 0, Shape, op, "value: got ", value.shape(), ", expected []");
  WEFT_CHECK(is_floating(x.dtype()) || !is_floating(value.dtype()), Dtype, op, "value: got ",
             value.dtype(), ", which a tensor of ", x.dtype(), " cannot hold");
  return where(mask, value.to(x.dtype()), x);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_mask("masked_select", x, mask);
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  return selected(x.expand(shape).flatten(), raw::flat_nonzero(raw::expand(mask, shape)));
}

Tensor Tensor::operator[](const Tensor& mask) const {
  check_mask("masked_select", *this, mask);
  const int n = mask.dim();
  bool covers = n >= 1 && n <= dim();
  for (int i = 0; covers && i < n; ++i) covers = mask.shape()[i] == shape()[i];
  WEFT_CHECK(covers, Shape, "masked_select", "mask: got ", mask.shape(),
             ", which is not the first dimensions of ", shape());
  return selected(flatten(0, n - 1), raw::flat_nonzero(mask));
}

}  // namespace weft
