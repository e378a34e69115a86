// What composed.h declares about values: tests, reductions, products.
#include "weft/autograd/composed.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

Tensor all_alike(const Tensor& x, bool value) {
  return full(x.shape(), value, {DType::boolean, x.device()});
}

}  // namespace

Tensor isnan(const Tensor& x) {
  check_defined("isnan", "x", x);
  return is_floating(x.dtype()) ? raw::ne(x, x) : all_alike(x, false);
}
Tensor isinf(const Tensor& x) {
  check_defined("isinf", "x", x);
  return is_floating(x.dtype()) ? raw::eq(raw::abs(x), kInfinity) : all_alike(x, false);
}
Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", "x", x);
  return is_floating(x.dtype()) ? raw::lt(raw::abs(x), kInfinity) : all_alike(x, true);
}

bool equal(const Tensor& a, const Tensor& b) {
  check_defined("equal", "a", a);
  check_defined("equal", "b", b);
  return a.shape() == b.shape() && raw::all(raw::eq(a, b)).item<bool>();
}

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  WEFT_CHECK(rtol >= 0 && atol >= 0, InvalidArgument, "isclose",
             "tolerances must not be negative: rtol ", rtol, ", atol ", atol);
  const Tensor same = raw::eq(a, b);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, "isclose", "dtype: a is ", a.dtype(), ", b is ",
             b.dtype());
  // The differences of integers are taken where they fit.
  const auto number = [](const Tensor& x) {
    return is_floating(x.dtype()) ? x : raw::to(x, DType::f64);
  };
  const Tensor x = number(a), y = number(b);
  const Tensor difference = raw::abs(raw::sub(x, y));
  const Tensor allowed = raw::add(raw::abs(raw::mul(y, rtol)), atol);
  const Tensor near =
      raw::logical_and(raw::le(difference, allowed), raw::lt(difference, kInfinity));
  const Tensor close = raw::logical_or(same, near);
  return equal_nan ? raw::logical_or(close, raw::logical_and(isnan(a), isnan(b))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  return raw::all(isclose(a, b, rtol, atol, equal_nan)).item<bool>();
}

namespace {

// The values at the indices, which lie in range.
class PositionNode final : public Node {
 public:
  PositionNode(const char* name, const Tensor& x, std::int64_t dim, const Tensor& index)
      : Node(name), shape_(x.shape()), dim_(dim) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor& index = index_.get(*this);
    Tensor whole = zeros(shape_, {grads.y().dtype(), grads.y().device()});
    raw::scatter_add_(whole, dim_, index, raw::reshape(grads.y(), index.shape()), false);
    grads.set(0, std::move(whole));
  }

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
  // Checks of its own would call it argmax.
  WEFT_CHECK(x.dim() == 0 || x.shape()[dim] > 0, Shape, name,
             "no elements to choose from: dimension ", dim, " of ", x.shape(), " is empty");
  const Tensor index = largest ? raw::argmax(x, dim, true) : raw::argmin(x, dim, true);
  const Tensor kept = raw::gather(x, dim, index, false);
  const auto shaped = [&](const Tensor& t) {
    return keepdim || x.dim() == 0 ? t : raw::squeeze(t, dim);
  };
  Tensor values = shaped(kept);
  // A handle of its own: the caller's copy may be written to, the saved one may not.
  if (recording(x)) values = record<PositionNode>(values, name, x, dim, raw::clone(index));
  return {values, shaped(index)};
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
  // An infinite maximum would leave infinity - infinity.
  const Tensor largest = raw::max(x.detach(), dims, true);
  const Tensor shift = masked_fill(largest, raw::eq(raw::abs(largest), kInfinity), 0);
  const Tensor y = log(sum(exp(x - shift), dims, keepdim));
  return y + raw::reshape(shift, y.shape());
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_defined("dot", "a", a);
  check_defined("dot", "b", b);
  WEFT_CHECK(a.dim() == 1 && b.dim() == 1, Shape, "dot", "needs two vectors, got a ", a.shape(),
             ", b ", b.shape());
  WEFT_CHECK(a.shape() == b.shape(), Shape, "dot", "lengths: a has ", a.shape()[0], ", b has ",
             b.shape()[0]);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, "dot", "dtype: a is ", a.dtype(), ", b is ", b.dtype());
  // Unlike the matmul of two vectors, PyTorch's autocast leaves dot as it is.
  const autograd::Autocast off(a.device().type, {.enabled = false, .cache_enabled = false});
  if (is_floating(a.dtype())) return matmul(a, b);
  return raw::to(raw::sum(raw::mul(a, b)), a.dtype());
}

}  // namespace weft
