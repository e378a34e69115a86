#include "weft/autograd/indexing.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::Gradients;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

// index_select and gather: backward adds each gradient to the element that was read.
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
    // forward has already checked that the index is in range.
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

// index_add, scatter_add and scatter into x. take_back(grad_y, dim, index) is the source's
// gradient.
class PutNode final : public Node {
 public:
  using TakeBack = Tensor (*)(const Tensor&, std::int64_t, const Tensor&, bool checked);
  PutNode(const char* name, bool replaces, TakeBack take_back, const Tensor& x, std::int64_t dim,
          const Tensor& index, const Tensor& source)
      : Node(name), replaces_(replaces), take_back_(take_back), dim_(dim) {
    add_input(x);
    add_input(source);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    // Not checked again; on CUDA nothing was, and what is out of range counts for nothing.
    const Tensor& index = index_.get(*this);
    if (grads.wants(1)) grads.set(1, take_back_(grads.y(), dim_, index, false));
    if (!grads.wants(0)) return;
    if (!replaces_) return grads.set(0, grads.y());
    grads.set(0, raw::scatter_(raw::clone(grads.y()), dim_, index, 0, false));
  }

 private:
  void release_saved() override { index_.reset(); }
  bool replaces_;
  TakeBack take_back_;
  std::int64_t dim_;
  SavedTensor index_;
};

}  // namespace

void autograd::record_scatter(const char* name, const Tensor& y, const Tensor& x, std::int64_t dim,
                              const Tensor& index, const Tensor& source) {
  record<PutNode>(y, name, true, raw::gather, x, dim, index, source);
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Tensor y = raw::index_add(x, dim, index, source);
  if (!recording(x, source)) return y;
  return record<PutNode>(y, "index_add", false, raw::index_select, x, dim, index, source);
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Tensor y = raw::scatter_add(x, dim, index, source);
  if (!recording(x, source)) return y;
  return record<PutNode>(y, "scatter_add", false, raw::gather, x, dim, index, source);
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Tensor y = raw::scatter(x, dim, index, source);
  if (recording(x, source)) autograd::record_scatter("scatter", y, x, dim, index, source);
  return y;
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, double value) {
  const Tensor y = raw::scatter(x, dim, index, value);
  if (recording(x)) autograd::record_scatter("scatter", y, x, dim, index, {});
  return y;
}

Tensor autograd::record_gather(const char* name, Tensor y, const Tensor& x, std::int64_t dim,
                               const Tensor& index) {
  return recording(x) ? record<PickNode>(std::move(y), name, raw::scatter_add_, x, dim, index) : y;
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Tensor y = raw::index_select(x, dim, index);
  return recording(x)
             ? record<PickNode>(std::move(y), "index_select", raw::index_add_, x, dim, index)
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
  return recording(weight) ? record<EmbeddingNode>(std::move(y), index, weight, padding) : y;
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
  return recording(x) ? record<PickNode>(std::move(y), "index_select", raw::index_add_, x, 0, index)
                      : y;
}

}  // namespace

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_mask("masked_fill", x, mask);
  raw::check_holds("masked_fill", value, x.dtype());
  return where(mask, scalar(value, {x.dtype(), x.device()}), x);
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
