#include <algorithm>
#include <compare>
#include <limits>
#include <numeric>
#include <span>

#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

ValuesAndIndices sorted(const char* op, const Tensor& x, std::int64_t dim, bool descending,
                        bool wants_values) {
  check_defined(op, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), op);
  const Span span("op", op);
  const Device device = x.device();
  const auto workspace_bytes =
      kernel(device, &KernelTable::sorting, &SortingKernels::workspace_bytes, op, x.dtype());
  const auto run = kernel(device, &KernelTable::sorting, &SortingKernels::sort, op, x.dtype());
  const Tensor rows = with_dim_last(x, dim);
  const Tensor values = wants_values ? allocate(rows.shape(), x.dtype(), device) : Tensor();
  const Tensor indices = allocate(rows.shape(), DType::i64, device);
  if (rows.numel() > 0) {
    const View from = rows_view(rows);
    const Stream& stream = current_stream(device);
    const Workspace workspace(device, workspace_bytes(stream, from));
    run(stream, descending, from, wants_values ? rows_view(values) : View{}, rows_view(indices),
        workspace.data());
  }
  return {wants_values ? with_dim_back(values, x.shape(), dim) : Tensor(),
          with_dim_back(indices, x.shape(), dim)};
}

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  return sorted("sort", x, dim, descending, true);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  return sorted("argsort", x, dim, descending, false).indices;
}

ValuesAndIndices median(const Tensor& x, std::int64_t dim, bool keepdim) {
  const char* op = "median";
  check_defined(op, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), op);
  const std::int64_t n = x.dim() == 0 ? 1 : x.shape()[dim];
  WEFT_CHECK(n > 0, Shape, op, "no elements to choose from: dimension ", dim, " of ", x.shape(),
             " is empty");
  const auto [values, indices] = sorted(op, x, dim, false, true);
  if (x.dim() == 0) return {values, indices};
  // The NaNs come last. So without one the number of numbers is n, else it is the first one's
  // place.
  const Tensor numbers = sum(eq(values, values), {dim}, true);
  const Tensor middle = scalar(static_cast<double>((n - 1) / 2), {DType::i64, x.device()});
  const Tensor place = where(eq(numbers, static_cast<double>(n)), middle, numbers);
  const auto taken = [&](const Tensor& from) {
    const Tensor kept = gather(from, dim, place, false);
    return keepdim ? kept : squeeze(kept, dim);
  };
  return {taken(values), taken(indices)};
}

Tensor median(const Tensor& x) {
  const char* op = "median";
  check_defined(op, "x", x);
  if (x.numel() > 0) return median(reshape(x, {x.numel()}), 0).values;
  WEFT_CHECK(is_floating(x.dtype()), Shape, op, "no elements to choose from: ", x.shape());
  return scalar(std::numeric_limits<double>::quiet_NaN(), {x.dtype(), x.device()});
}

Tensor searchsorted(const Tensor& sequence, const Tensor& values, bool right) {
  const char* op = "searchsorted";
  check_same_kind(op, "sequence", sequence, "values", values);
  const int leading = sequence.dim() - 1;
  bool fits = leading == 0 || (leading > 0 && values.dim() == sequence.dim());
  for (int d = 0; fits && d < leading; ++d) fits = values.shape()[d] == sequence.shape()[d];
  WEFT_CHECK(fits, Shape, op, "sequence: got ", sequence.shape(),
             ", expected one dimension, or those of values but for the length of the last, ",
             values.shape());
  const Span span("op", op);
  const Device device = values.device();
  const auto run =
      kernel(device, &KernelTable::sorting, &SortingKernels::search, op, values.dtype());
  const Tensor from = contiguous(sequence), dense = contiguous(values);
  const Tensor y = allocate(values.shape(), DType::i64, device);
  if (y.numel() == 0) return y;
  const std::int64_t n = sequence.shape()[leading];
  const std::int64_t rows = leading == 0 ? 1 : y.numel() / values.shape(-1);
  const auto view = [&](const Tensor& t, std::int64_t length) {
    const Shape shape{rows, length};
    return View{t.raw_data(), t.dtype(), shape, contiguous_strides(shape)};
  };
  run(current_stream(device), right, view(from, n), view(dense, y.numel() / rows),
      view(y, y.numel() / rows));
  return y;
}

namespace {

// How often each number from 0 to length - 1 occurs. In order, so that no GPU's thread has to count
// alone, as in index_add_.
Tensor counted_in_order(const Tensor& numbers, std::int64_t length) {
  const TensorOptions i64(DType::i64, numbers.device());
  const Tensor each = arange(0, static_cast<double>(length), 1, i64);
  const Tensor up_to = searchsorted(sort(numbers).values, each, true);
  const Tensor below[] = {zeros({1}, i64), narrow(up_to, 0, 0, length - 1)};
  return sub(up_to, cat(below));
}

}  // namespace

Tensor bincount(const Tensor& x, const Tensor& weights, std::int64_t minlength) {
  const char* op = "bincount";
  check_defined(op, "x", x);
  WEFT_CHECK(!is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(), ", expected integers");
  WEFT_CHECK(x.dim() == 1, Shape, op, "x: got ", x.shape(), ", expected one dimension");
  WEFT_CHECK(minlength >= 0, InvalidArgument, op, "minlength: got ", minlength,
             ", expected 0 or more");
  DType dtype = DType::i64;
  if (weights.defined()) {
    check_same_device(op, "x", x, "weights", weights);
    WEFT_CHECK(weights.shape() == x.shape(), Shape, op, "weights: got ", weights.shape(),
               ", expected ", x.shape(), " as x has");
    dtype = weights.dtype() == DType::f32 ? DType::f32 : DType::f64;
  }
  const Span span("op", op);
  std::int64_t length = minlength;
  const Tensor numbers = cast(x, DType::i64);
  if (x.numel() > 0) {
    graph::check_not_capturing(op, "the host waits for the largest number");
    const Tensor ends[] = {min(numbers), max(numbers)};
    const std::vector<std::int64_t> values = stack(ends).to_vector<std::int64_t>();
    WEFT_CHECK(values[0] >= 0, InvalidArgument, op, "x has the negative number ", values[0]);
    length = std::max(length, checked_add(values[1], 1, op));
    if (!x.device().is_cpu() && !weights.defined()) return counted_in_order(numbers, length);
  }
  const Tensor y = zeros({length}, {dtype, x.device()});
  const Tensor one = scalar(1, {dtype, x.device()});
  return index_add_(y, 0, numbers,
                    weights.defined() ? cast(weights, dtype) : expand(one, x.shape()), false);
}

namespace {

// Rows of n elements on the host, in the order of sort().
template <class T>
class Rows {
 public:
  Rows(const Tensor& x, std::int64_t n) : first_(x.data<T>()), n_(n) {}

  /// Equal rows keep their order.
  bool before(std::int64_t a, std::int64_t b) const {
    const auto x = row(a), y = row(b);
    const std::strong_ordering order = std::lexicographical_compare_three_way(
        x.begin(), x.end(), y.begin(), y.end(),
        [](T p, T q) { return sort_key(p, false) <=> sort_key(q, false); });
    return order != 0 ? order < 0 : a < b;
  }
  /// False if one of them has a NaN.
  bool equal(std::int64_t a, std::int64_t b) const {
    return std::ranges::equal(row(a), row(b), [](T x, T y) {
      return element_cast<accumulate_t<T>>(x) == element_cast<accumulate_t<T>>(y);
    });
  }

 private:
  std::span<const T> row(std::int64_t i) const {
    return {first_ + i * n_, static_cast<std::size_t>(n_)};
  }

  const T* first_;
  std::int64_t n_;
};

// The different rows of x: the first place of each, where each row of x is among them, and how
// often each occurs.
struct DifferentRows {
  std::vector<std::int64_t> first, inverse, counts;
};

template <class T>
DifferentRows different_rows(const Tensor& x) {
  const std::int64_t count = x.shape()[0];
  const Rows<T> rows(x, x.numel() / count);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) { return rows.before(a, b); });
  DifferentRows found;
  found.inverse.resize(order.size());
  for (const std::int64_t i : order) {
    if (found.first.empty() || !rows.equal(found.first.back(), i)) {
      found.first.push_back(i);
      found.counts.push_back(0);
    }
    ++found.counts.back();
    found.inverse[static_cast<std::size_t>(i)] = std::ssize(found.first) - 1;
  }
  return found;
}

UniqueElements unique_slices(const char* op, const Tensor& x, std::int64_t dim, bool return_inverse,
                             bool return_counts) {
  WEFT_CHECK(x.dim() > 0, Shape, op, "x: got [], expected a dimension ", dim);
  dim = normalize_dim(dim, x.dim(), op);
  const std::int64_t count = x.shape()[dim];
  const auto empty = std::ranges::count(x.shape(), 0);
  WEFT_CHECK(empty == (count == 0), Shape, op, "the slices of dimension ", dim, " of ", x.shape(),
             " are empty");
  DifferentRows found;
  if (count > 0) {
    graph::check_not_capturing(op, "the host compares the slices");
    const Tensor on_host = to(contiguous(transpose(x, 0, dim)), Device());
    found = dispatch_all(x.dtype(), [&]<class T>() { return different_rows<T>(on_host); });
  }
  const auto on_device = [&](const std::vector<std::int64_t>& numbers) {
    return from_vector(numbers, {std::ssize(numbers)}, x.device());
  };
  return {index_select(x, dim, on_device(found.first), false),
          return_inverse ? on_device(found.inverse) : Tensor(),
          return_counts ? on_device(found.counts) : Tensor()};
}

}  // namespace

UniqueElements unique(const Tensor& x, bool return_inverse, bool return_counts,
                      std::optional<std::int64_t> dim) {
  const char* op = "unique";
  check_defined(op, "x", x);
  const Span span("op", op);
  if (dim) return unique_slices(op, x, *dim, return_inverse, return_counts);
  const std::int64_t n = x.numel();
  if (n == 0) {
    const auto none = [&](bool wanted, const Shape& shape) {
      return wanted ? allocate(shape, DType::i64, x.device()) : Tensor();
    };
    return {allocate({0}, x.dtype(), x.device()), none(return_inverse, x.shape()),
            none(return_counts, {0})};
  }
  const auto [values, indices] = sorted(op, reshape(x, {n}), 0, false, true);
  // Whether an element differs from the one before.
  const Tensor begins = ones({n}, {DType::boolean, x.device()});
  copy_(narrow(begins, 0, 1, n - 1), ne(narrow(values, 0, 1, n - 1), narrow(values, 0, 0, n - 1)));
  const Tensor starts = flat_nonzero(begins);
  UniqueElements found{index_select(values, 0, starts, false), {}, {}};
  if (return_inverse) {
    const Tensor inverse = allocate({n}, DType::i64, x.device());
    scatter_(inverse, 0, indices, sub(cumsum(begins, 0), 1), false);
    found.inverse = reshape(inverse, x.shape());
  }
  if (return_counts) {
    // Equal elements end where the next ones begin.
    const Tensor ends[] = {narrow(starts, 0, 1, starts.numel() - 1),
                           full({1}, static_cast<double>(n), {DType::i64, x.device()})};
    found.counts = sub(cat(ends), starts);
  }
  return found;
}

}  // namespace weft::raw
