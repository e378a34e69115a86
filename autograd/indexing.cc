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

}  // namespace

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

// Positions of the true elements, in row-major order.
Tensor positions(const Tensor& mask) {
  const Tensor host = raw::contiguous(raw::to(mask, Device()));
  const bool* holds = host.data<bool>();
  const auto count = raw::sum(host).item<std::int64_t>();
  const Tensor found = empty({count}, {DType::i64, Device()});
  auto* at = found.data<std::int64_t>();
  // Writes each position, and the next one over it if this one is false: a branch would be
  // mispredicted.
  for (std::int64_t i = 0, n = 0; n < count; ++i) {
    at[n] = i;
    n += holds[i];
  }
  return raw::to(found, mask.device());
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
  return selected(x.expand(shape).flatten(), positions(raw::expand(mask, shape)));
}

Tensor Tensor::operator[](const Tensor& mask) const {
  check_mask("masked_select", *this, mask);
  const int n = mask.dim();
  bool covers = n >= 1 && n <= dim();
  for (int i = 0; covers && i < n; ++i) covers = mask.shape()[i] == shape()[i];
  WEFT_CHECK(covers, Shape, "masked_select", "mask: got ", mask.shape(),
             ", which is not the first dimensions of ", shape());
  return selected(flatten(0, n - 1), positions(mask));
}

}  // namespace weft
