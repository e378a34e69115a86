// Reading and adding at positions given by indices.
#include <algorithm>

#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

template <class Entry>
Entry indexing(const char* op, const Tensor& x, Entry IndexingKernels::* entry) {
  return kernel(x.device(), &KernelTable::indexing, entry, op, x.dtype());
}

// The index as the kernels take it: i64.
Tensor checked_index(const char* op, const Tensor& x, const Tensor& index) {
  check_same_device(op, "x", x, "index", index);
  WEFT_CHECK(index.dtype() == DType::i64 || index.dtype() == DType::i32, Dtype, op, "index: got ",
             index.dtype(), ", expected i64 or i32; convert it with to(dtype)");
  return cast(index, DType::i64);
}

// The same for gather and scatter: an empty index may have any dtype, as in PyTorch, and any shape.
Tensor checked_if_any(const char* op, const Tensor& x, const Tensor& index) {
  check_same_device(op, "x", x, "index", index);
  return index.numel() == 0 ? cast(index, DType::i64) : checked_index(op, x, index);
}

void check_operands(const char* op, const Tensor& y, const Tensor& index, const Tensor& x) {
  check_defined(op, "the written tensor", y);
  check_defined(op, "index", index);
  check_defined(op, "x", x);
}

void check_bounds(const char* op, const Tensor& index, std::int64_t bound) {
  if (index.numel() == 0) return;
  indexing(op, index, &IndexingKernels::check_bounds)(current_stream(index.device()),
                                                      {.op = op, .bound = bound}, index.view_of());
}

// x with at least one dimension: a scalar counts as a list of one element.
Tensor at_least_1d(const Tensor& x) { return x.dim() == 0 ? reshape(x, {1}) : x; }

// The 1-D index of index_select.
Tensor list_of(const char* op, const Tensor& index) {
  WEFT_CHECK(index.dim() <= 1, Shape, op, "index: got ", index.shape(), ", expected one dimension");
  return at_least_1d(index);
}

// gather and scatter_add go through all of index; in all dimensions except `dim` it must stay
// inside y.
void check_walk(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index) {
  bool fits = index.dim() == x.dim();
  for (int i = 0; fits && i < x.dim(); ++i) {
    fits = i == dim || index.shape()[i] <= x.shape()[i];
  }
  WEFT_CHECK(fits, Shape, op, "index: got ", index.shape(), ", which must not exceed ", x.shape(),
             " except in dimension ", dim);
}

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index, bool checked) {
  const char* op = "index_select";
  check_defined(op, "x", x);
  check_defined(op, "index", index);
  if (x.dim() == 0) {
    WEFT_CHECK(index.numel() == 1, Shape, op, "index: got ", index.shape(),
               ", expected one entry for a tensor without dimensions");
    return reshape(index_select(at_least_1d(x), dim, index, checked), {});
  }
  const Span span("op", op);
  dim = normalize_dim(dim, x.dim(), op);
  const Tensor list = list_of(op, checked_index(op, x, index));
  if (checked) check_bounds(op, list, x.shape()[dim]);
  Shape shape = x.shape();
  shape[dim] = list.numel();
  const auto run = indexing(op, x, &IndexingKernels::index_select);
  Tensor y = allocate(shape, x.dtype(), x.device());
  if (y.numel() == 0) return y;
  run(current_stream(x.device()), x.view_of(), dim, list.view_of(), y.view_of());
  return y;
}

namespace {

// y += x, at the positions that `list` has for dim.
void add_at(const char* op, const Tensor& y, int dim, const Tensor& list, const Tensor& x) {
  const auto workspace_bytes = indexing(op, y, &IndexingKernels::index_add_workspace_bytes);
  const auto run = indexing(op, y, &IndexingKernels::index_add);
  if (x.numel() == 0) return;
  const Stream& stream = current_stream(y.device());
  const View from = x.view_of(), to = y.view_of();
  const Workspace workspace(y.device(), workspace_bytes(stream, from, dim, to));
  y.storage()->bump_version();
  run(stream, from, dim, list.view_of(), to, workspace.data());
}

const Tensor& index_added(const char* op, const Tensor& y, std::int64_t dim, const Tensor& index,
                          const Tensor& x, bool checked) {
  check_operands(op, y, index, x);
  if (y.dim() == 0 && x.dim() == 0) {
    index_added(op, at_least_1d(y), dim, index, at_least_1d(x), checked);
    return y;
  }
  const Span span("op", op);
  dim = normalize_dim(dim, std::max(y.dim(), 1), op);
  const Tensor whole = checked_index(op, y, index);
  check_same_kind(op, "the written tensor", y, "x", x);
  check_writable(op, y);
  const Tensor list = disjoint(list_of(op, whole), y);
  Shape expected = y.shape();
  expected[dim] = list.numel();
  WEFT_CHECK(x.shape() == expected, Shape, op, "x: got ", x.shape(), ", expected ", expected,
             " for ", list.numel(), " indices into dimension ", dim, " of ", y.shape());
  if (checked) check_bounds(op, list, y.shape()[dim]);
  add_at(op, y, dim, list, overlap(x, y) ? clone(x) : x);
  return y;
}

}  // namespace

const Tensor& index_add_(const Tensor& y, std::int64_t dim, const Tensor& index, const Tensor& x,
                         bool checked) {
  return index_added("index_add_", y, dim, index, x, checked);
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const char* op = "index_add";
  check_defined(op, "x", x);
  return index_added(op, clone(x), dim, index, source, true);
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index, bool checked) {
  const char* op = "gather";
  check_defined(op, "x", x);
  check_defined(op, "index", index);
  if (x.dim() == 0 || index.dim() == 0) {
    return reshape(gather(at_least_1d(x), dim, at_least_1d(index), checked), index.shape());
  }
  const Span span("op", op);
  dim = normalize_dim(dim, x.dim(), op);
  const Tensor at = checked_if_any(op, x, index);
  const auto run = indexing(op, x, &IndexingKernels::gather);
  Tensor y = allocate(index.shape(), x.dtype(), x.device());
  if (y.numel() == 0) return y;
  check_walk(op, x, dim, index);
  if (checked) check_bounds(op, at, x.shape()[dim]);
  run(current_stream(x.device()), x.view_of(), dim, at.view_of(), y.view_of());
  return y;
}

namespace {

// scatter_add_ and scatter_.
using Scatter = decltype(IndexingKernels::scatter);
const Tensor& scattered(const char* op, Scatter IndexingKernels::* entry, const Tensor& y,
                        std::int64_t dim, const Tensor& index, const Tensor& x, bool checked) {
  check_operands(op, y, index, x);
  if (y.dim() == 0 || index.dim() == 0) {
    scattered(op, entry, at_least_1d(y), dim, at_least_1d(index), at_least_1d(x), checked);
    return y;
  }
  const Span span("op", op);
  dim = normalize_dim(dim, y.dim(), op);
  const Tensor whole = checked_if_any(op, y, index);
  check_same_kind(op, "the written tensor", y, "x", x);
  check_writable(op, y);
  if (index.numel() == 0) return y;
  check_walk(op, y, dim, index);
  WEFT_CHECK(x.shape() == index.shape(), Shape, op, "x: got ", x.shape(), ", index has ",
             index.shape());
  if (checked) check_bounds(op, whole, y.shape()[dim]);
  const Tensor from = overlap(x, y) ? clone(x) : x;
  const Tensor at = disjoint(whole, y);
  const auto workspace_bytes = indexing(op, y, &IndexingKernels::scatter_workspace_bytes);
  const auto run = indexing(op, y, entry);
  if (x.numel() == 0) return y;
  const Stream& stream = current_stream(y.device());
  const View source = from.view_of(), to = y.view_of();
  const Workspace workspace(y.device(), workspace_bytes(stream, source, dim, to));
  y.storage()->bump_version();
  run(stream, source, dim, at.view_of(), to, workspace.data());
  return y;
}

}  // namespace

const Tensor& scatter_add_(const Tensor& y, std::int64_t dim, const Tensor& index, const Tensor& x,
                           bool checked) {
  return scattered("scatter_add_", &IndexingKernels::scatter_add, y, dim, index, x, checked);
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const char* op = "scatter_add";
  check_defined(op, "x", x);
  return scattered(op, &IndexingKernels::scatter_add, clone(x), dim, index, source, true);
}

const Tensor& scatter_(const Tensor& y, std::int64_t dim, const Tensor& index, const Tensor& x,
                       bool checked) {
  return scattered("scatter_", &IndexingKernels::scatter, y, dim, index, x, checked);
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const char* op = "scatter";
  check_defined(op, "x", x);
  return scattered(op, &IndexingKernels::scatter, clone(x), dim, index, source, true);
}

namespace {

// The number for each entry of index.
Tensor repeated(const char* op, const Tensor& y, const Tensor& index, double value) {
  check_defined(op, "index", index);
  check_holds(op, value, y.dtype());
  return expand(scalar(value, {y.dtype(), y.device()}), index.shape());
}

}  // namespace

const Tensor& scatter_(const Tensor& y, std::int64_t dim, const Tensor& index, double value,
                       bool checked) {
  check_defined("scatter_", "the written tensor", y);
  return scatter_(y, dim, index, repeated("scatter_", y, index, value), checked);
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, double value) {
  check_defined("scatter", "x", x);
  return scatter(x, dim, index, repeated("scatter", x, index, value));
}

Tensor flat_nonzero(const Tensor& x) {
  const char* op = "nonzero";
  check_defined(op, "x", x);
  const Span span("op", op);
  const std::int64_t n = x.numel();
  const auto count = indexing(op, x, &IndexingKernels::count_true);
  const auto find = indexing(op, x, &IndexingKernels::find_true);
  if (n == 0) return allocate({0}, DType::i64, x.device());
  graph::check_not_capturing(op, "the host waits for the number of elements that are not 0");
  const Tensor mask = contiguous(x.dtype() == DType::boolean ? x : ne(x, 0.0));
  const View flat = flat_view(mask, n);
  const Tensor counts = allocate({true_pieces(n)}, DType::i64, x.device());
  count(current_stream(x.device()), flat, counts.view_of());
  const Tensor ends = cumsum(counts, 0);
  const Tensor y = allocate({select(ends, 0, -1).item<std::int64_t>()}, DType::i64, x.device());
  if (y.numel() > 0) find(current_stream(x.device()), flat, ends.view_of(), y.view_of());
  return y;
}

Tensor nonzero(const Tensor& x) {
  const Tensor positions = flat_nonzero(x);
  if (positions.numel() == 0 || x.dim() == 0) {
    return allocate({positions.numel(), x.dim()}, DType::i64, x.device());
  }
  const Strides steps = contiguous_strides(x.shape());
  std::vector<Tensor> columns;
  for (int d = 0; d < x.dim(); ++d) {
    const Tensor outer = floor_divide(positions, static_cast<double>(steps[d]));
    columns.push_back(remainder(outer, static_cast<double>(x.shape()[d])));
  }
  return stack(columns, 1);
}

namespace {

// The index of embedding as a list.
Tensor rows_of(const Tensor& index, std::int64_t rows, bool checked) {
  WEFT_CHECK(rows > 0 || index.numel() == 0, InvalidArgument, "embedding",
             "weight has no rows to take");
  if (checked) check_bounds("embedding", index, rows);
  return reshape(index, {index.numel()});
}

}  // namespace

Tensor embedding(const Tensor& index, const Tensor& weight) {
  const char* op = "embedding";
  const Span span("op", op);
  check_defined(op, "index", index);
  check_floating(op, "weight", weight);
  const Tensor at = checked_index(op, weight, index);
  WEFT_CHECK(weight.dim() == 2, Shape, op, "weight: got ", weight.shape(), ", expected [n,dim]");
  check_rank(op, index.shape(), index.dim() + 1);
  const Tensor rows = rows_of(at, weight.shape()[0], true);
  Shape shape = index.shape();
  shape.push_back(weight.shape()[1]);
  const Tensor y = allocate({rows.numel(), weight.shape()[1]}, weight.dtype(), weight.device());
  if (y.numel() > 0) {
    indexing(op, weight, &IndexingKernels::index_select)(
        current_stream(weight.device()), weight.view_of(), 0, rows.view_of(), y.view_of());
  }
  return reshape(y, shape);
}

Tensor embedding_backward(const Tensor& grad_y, const Tensor& index, std::int64_t rows,
                          std::int64_t padding) {
  const char* op = "embedding";
  const Span span("op", op);
  check_defined(op, "index", index);
  check_floating(op, "the gradient", grad_y);
  const Tensor at = checked_index(op, grad_y, index);
  Shape expected = index.shape();
  expected.push_back(grad_y.dim() > 0 ? grad_y.shape().back() : 0);
  WEFT_CHECK(grad_y.shape() == expected, Shape, op, "gradient: got ", grad_y.shape(),
             ", expected [..,dim] for index ", index.shape());
  const std::int64_t dim = expected.back();
  const Tensor grad = zeros({rows, dim}, {grad_y.dtype(), grad_y.device()});
  if (grad_y.numel() == 0) return grad;
  // The forward's check says it on CUDA, and the kernel leaves out what is out of range.
  const Tensor list = rows_of(at, rows, grad.device().is_cpu());
  add_at(op, grad, 0, list, reshape(grad_y, {index.numel(), dim}));
  if (padding >= 0) zero_(select(grad, 0, padding));
  return grad;
}

Tensor one_hot(const Tensor& index, std::int64_t classes) {
  const char* op = "one_hot";
  check_defined(op, "index", index);
  WEFT_CHECK(index.dtype() == DType::i64, Dtype, op, "index: got ", index.dtype(),
             ", expected i64; convert it with to(dtype)");
  WEFT_CHECK(classes >= -1, InvalidArgument, op, "classes: got ", classes,
             ", expected a count, or -1 to take it from the largest index");
  if (classes == -1) {
    WEFT_CHECK(index.numel() > 0, InvalidArgument, op,
               "cannot count the classes of an empty index ", index.shape());
    classes = std::max<std::int64_t>(checked_add(max(index).item<std::int64_t>(), 1, op), 0);
  }
  check_rank(op, index.shape(), index.dim() + 1);
  const Span span("op", op);
  check_bounds(op, index, classes);
  const auto run = indexing(op, index, &IndexingKernels::one_hot);
  Shape shape = index.shape();
  shape.push_back(classes);
  Tensor y = allocate(shape, DType::i64, index.device());
  if (y.numel() > 0) run(current_stream(index.device()), index.view_of(), y.view_of());
  return y;
}

}  // namespace weft::raw
