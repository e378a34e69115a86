// Views: new shapes on the same storage.
#include <algorithm>
#include <optional>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

// `shape` with its -1, if any, replaced by the size that gives `count` elements.
Shape infer_size(const char* op, const Shape& shape, std::int64_t count, const Shape& of) {
  int unknown = -1;
  Shape known = shape;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] != -1) continue;
    WEFT_CHECK(unknown < 0, Shape, op, "more than one -1 in ", shape);
    unknown = i;
    known[i] = 1;
  }
  check_shape(known, op);
  const std::int64_t rest = numel(known);
  if (unknown >= 0) {
    WEFT_CHECK(rest != 0, Shape, op, "-1 is ambiguous in ", shape, ": another size is 0");
    WEFT_CHECK(count % rest == 0, Shape, op, "cannot split ", of, " (", count, " elements) into ",
               shape, ": not a multiple of ", rest);
    known[unknown] = count / rest;
  } else {
    WEFT_CHECK(rest == count, Shape, op, "got ", shape, " (", rest, " elements) for ", of, " (",
               count, " elements)");
  }
  return known;
}

// Strides with which x's elements appear as `shape` without a copy, or nothing if there are none.
// Neighbouring dimensions of x that are regular in memory form a run, which is divided anew; a new
// dimension must not be in two runs.
std::optional<Strides> view_strides(const Tensor& x, const Shape& shape) {
  if (x.numel() == 0) return contiguous_strides(shape);
  Strides strides = Dims::filled(shape.size(), 1);
  int at = shape.size() - 1;
  std::int64_t base = x.dim() > 0 ? x.strides().back() : 1;  // stride of the run's last element
  std::int64_t run = 1;                                      // elements of the run so far
  std::int64_t cut = 1;  // elements of the new dimensions placed in it
  for (int i = x.dim() - 1; i >= 0; --i) {
    run *= x.shape()[i];
    const bool run_ends = i == 0 || (x.shape()[i - 1] != 1 && x.strides()[i - 1] != run * base);
    if (!run_ends) continue;
    while (at >= 0 && (cut < run || shape[at] == 1)) {
      strides[at] = cut * base;
      cut *= shape[at];
      --at;
    }
    if (cut != run) return std::nullopt;
    if (i > 0) {
      base = x.strides()[i - 1];
      run = cut = 1;
    }
  }
  return at < 0 ? std::optional(strides) : std::nullopt;
}

std::int64_t clamp_bound(std::int64_t bound, std::int64_t size) {
  return std::clamp<std::int64_t>(bound < 0 ? bound + size : bound, 0, size);
}

// The offset of a view of x without the first `start` positions of a dimension. Only a view without
// elements can begin outside the storage. It gets x's offset, because the one by its strides may
// not even fit in 64 bits.
std::int64_t offset_after(const Tensor& x, std::int64_t dim, std::int64_t start) {
  std::int64_t offset;
  bool outside = __builtin_mul_overflow(start, x.strides()[dim], &offset);
  outside |= __builtin_add_overflow(offset, x.offset(), &offset);
  outside |= offset > static_cast<std::int64_t>(x.storage()->bytes());
  return outside ? x.offset() : offset;
}

Tensor narrow_unchecked(const Tensor& x, std::int64_t dim, std::int64_t start,
                        std::int64_t length) {
  Shape shape = x.shape();
  shape[dim] = length;
  return make_view(x, offset_after(x, dim, start), shape, x.strides());
}

// Each piece needs a handle and a view: a number that no machine has memory for must give a clear
// error.
void check_pieces(const char* op, std::int64_t count) {
  constexpr std::int64_t kMost = 1 << 24;
  WEFT_CHECK(count <= kMost, InvalidArgument, op, "would give ", count, " pieces, at most ", kMost,
             " are possible");
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", "x", x);
  const Shape target = infer_size("reshape", shape, x.numel(), x.shape());
  if (x.is_contiguous()) return make_view(x, x.offset(), target, contiguous_strides(target));
  if (const auto strides = view_strides(x, target)) {
    return make_view(x, x.offset(), target, *strides);
  }
  const Tensor copy = contiguous(x);
  return make_view(copy, 0, target, contiguous_strides(target));
}

Tensor flatten(const Tensor& x, std::int64_t start_dim, std::int64_t end_dim) {
  check_defined("flatten", "x", x);
  const int start = normalize_dim(start_dim, std::max(x.dim(), 1), "flatten");
  const int end = normalize_dim(end_dim, std::max(x.dim(), 1), "flatten");
  if (x.dim() == 0) return reshape(x, {1});
  WEFT_CHECK(start <= end, Shape, "flatten", "start dimension ", start_dim,
             " comes after end dimension ", end_dim, " of ", x.shape());
  if (start == end) return x;
  Shape shape;
  for (int i = 0; i < x.dim(); ++i) {
    if (i > start && i <= end) {
      shape[start] *= x.shape()[i];
    } else {
      shape.push_back(x.shape()[i]);
    }
  }
  return reshape(x, shape);
}

Tensor unflatten(const Tensor& x, std::int64_t dim, const Shape& sizes) {
  check_defined("unflatten", "x", x);
  dim = normalize_dim(dim, x.dim(), "unflatten");
  WEFT_CHECK(!sizes.empty(), Shape, "unflatten", "needs at least one size");
  check_rank("unflatten", x.shape(), x.dim() + sizes.size() - 1);
  const Shape parts = infer_size("unflatten", sizes, x.shape()[dim], Shape{x.shape()[dim]});
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  std::int64_t step = x.strides()[dim];
  for (int i = parts.size() - 1; i >= 0; --i) {
    shape.insert(dim, parts[i]);
    strides.insert(dim, step);
    step = checked_mul(step, std::max<std::int64_t>(parts[i], 1), "unflatten");
  }
  check_shape(shape, "unflatten");
  return make_view(x, x.offset(), shape, strides);
}

Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  check_defined("transpose", "x", x);
  dim0 = normalize_dim(dim0, std::max(x.dim(), 1), "transpose");
  dim1 = normalize_dim(dim1, std::max(x.dim(), 1), "transpose");
  if (x.dim() == 0) return alias(x);
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[dim0], shape[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  return make_view(x, x.offset(), shape, strides);
}

Tensor permute(const Tensor& x, const Dims& dims) {
  check_defined("permute", "x", x);
  WEFT_CHECK(dims.size() == x.dim(), Shape, "permute", "got ", dims.size(), " dimensions ", dims,
             " for ", x.shape());
  Shape shape = x.shape();
  Strides strides = x.strides();
  unsigned seen = 0;
  for (int i = 0; i < dims.size(); ++i) {
    const int from = normalize_dim(dims[i], x.dim(), "permute");
    WEFT_CHECK(!(seen >> from & 1), Shape, "permute", "dimension ", from, " appears twice in ",
               dims);
    seen |= 1u << from;
    shape[i] = x.shape()[from];
    strides[i] = x.strides()[from];
  }
  return make_view(x, x.offset(), shape, strides);
}

Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end,
             std::int64_t step) {
  check_defined("slice", "x", x);
  dim = normalize_dim(dim, x.dim(), "slice");
  WEFT_CHECK(step > 0, InvalidArgument, "slice", "needs a step above 0, got ", step);
  const std::int64_t size = x.shape()[dim];
  const std::int64_t first = clamp_bound(start, size);
  const std::int64_t last = std::max(clamp_bound(end, size), first);
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[dim] = ceil_div(last - first, step);
  // A step longer than the dimension leaves one element, whose stride is never used. For an empty
  // tensor the strides may already be so large that their product does not fit.
  if (x.numel() > 0) strides[dim] *= std::min(step, size);
  return make_view(x, offset_after(x, dim, first), shape, strides);
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  check_defined("select", "x", x);
  dim = normalize_dim(dim, x.dim(), "select");
  const std::int64_t size = x.shape()[dim];
  WEFT_CHECK(index >= -size && index < size, Shape, "select", "index: got ", index, ", dimension ",
             dim, " of ", x.shape(), " has ", size);
  const std::int64_t offset = offset_after(x, dim, index < 0 ? index + size : index);
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return make_view(x, offset, shape, strides);
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  check_defined("narrow", "x", x);
  dim = normalize_dim(dim, x.dim(), "narrow");
  const std::int64_t size = x.shape()[dim];
  const std::int64_t first = start < 0 ? start + size : start;
  WEFT_CHECK(first >= 0 && length >= 0 && first <= size && length <= size - first, Shape, "narrow",
             "got start ", start, ", length ", length, "; dimension ", dim, " of ", x.shape(),
             " has ", size);
  return narrow_unchecked(x, dim, first, length);
}

Tensor squeeze(const Tensor& x) {
  check_defined("squeeze", "x", x);
  Shape shape;
  Strides strides;
  for (int i = 0; i < x.dim(); ++i) {
    if (x.shape()[i] == 1) continue;
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  return make_view(x, x.offset(), shape, strides);
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  check_defined("squeeze", "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), "squeeze");
  if (x.dim() == 0 || x.shape()[dim] != 1) return alias(x);
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return make_view(x, x.offset(), shape, strides);
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  check_defined("unsqueeze", "x", x);
  check_rank("unsqueeze", x.shape(), x.dim() + 1);
  dim = normalize_dim(dim, x.dim() + 1, "unsqueeze");
  Shape shape = x.shape();
  Strides strides = x.strides();
  // This stride keeps a row-major tensor recognisable as row-major.
  strides.insert(dim, dim < x.dim() ? shape[dim] * strides[dim] : 1);
  shape.insert(dim, 1);
  return make_view(x, x.offset(), shape, strides);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", "x", x);
  const int added = shape.size() - x.dim();
  WEFT_CHECK(added >= 0, Shape, "expand", "got ", shape, ", which has fewer dimensions than ",
             x.shape());
  Shape target = shape;
  Strides strides = shape;
  for (int i = 0; i < shape.size(); ++i) {
    const std::int64_t own = i < added ? 1 : x.shape()[i - added];
    if (shape[i] == -1 && i >= added) target[i] = own;
    WEFT_CHECK(target[i] >= 0 && (own == target[i] || own == 1), Shape, "expand", "cannot expand ",
               x.shape(), " to ", shape, " at dimension ", i);
    strides[i] = i < added || own != target[i] ? 0 : x.strides()[i - added];
  }
  check_shape(target, "expand");
  return make_view(x, x.offset(), target, strides);
}

Tensor view(const Tensor& x, const Shape& shape) {
  check_defined("view", "x", x);
  const Shape target = infer_size("view", shape, x.numel(), x.shape());
  if (x.is_contiguous()) return make_view(x, x.offset(), target, contiguous_strides(target));
  const std::optional<Strides> strides = view_strides(x, target);
  WEFT_CHECK(strides, Shape, "view", "a tensor ", x.shape(), " with strides ", x.strides(),
             " cannot appear as ", target, " without a copy; use reshape");
  return make_view(x, x.offset(), target, *strides);
}

Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step) {
  check_defined("unfold", "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), "unfold");
  check_rank("unfold", x.shape(), x.dim() + 1);
  const std::int64_t length = x.dim() == 0 ? 1 : x.shape()[dim];
  WEFT_CHECK(size >= 0 && size <= length, Shape, "unfold", "size: got ", size, ", expected 0 to ",
             length, ", the length of dimension ", dim, " of ", x.shape());
  WEFT_CHECK(step > 0, InvalidArgument, "unfold", "step: got ", step, ", expected 1 or more");
  if (x.dim() == 0) return make_view(x, x.offset(), {size}, {1});
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[dim] = (length - size) / step + 1;
  shape.push_back(size);
  strides.push_back(strides[dim]);
  // The stride of a single window is never used, and might not fit in 64 bits.
  if (shape[dim] > 1) strides[dim] = checked_mul(strides[dim], step, "unfold");
  check_shape(shape, "unfold");
  return make_view(x, x.offset(), shape, strides);
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  check_defined("diagonal", "x", x);
  const int first = normalize_dim(dim1, x.dim(), "diagonal");
  const int second = normalize_dim(dim2, x.dim(), "diagonal");
  WEFT_CHECK(first != second, Shape, "diagonal", "dim1 and dim2 are both dimension ", first, " of ",
             x.shape());
  const std::int64_t rows = x.shape()[first], columns = x.shape()[second];
  // Beyond these the diagonal is empty, and so it is at them.
  offset = std::clamp(offset, -rows, columns);
  const std::int64_t length = std::min(rows + std::min<std::int64_t>(offset, 0),
                                       columns - std::max<std::int64_t>(offset, 0));
  const std::int64_t start =
      offset >= 0 ? offset * x.strides()[second] : -offset * x.strides()[first];
  const std::int64_t stride = checked_add(x.strides()[first], x.strides()[second], "diagonal");
  Shape shape = x.shape();
  Strides strides = x.strides();
  for (const int dim : {std::max(first, second), std::min(first, second)}) {
    shape.erase(dim);
    strides.erase(dim);
  }
  shape.push_back(length);
  strides.push_back(stride);
  return make_view(x, numel(shape) > 0 ? x.offset() + start : x.offset(), shape, strides);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim) {
  check_defined("chunk", "x", x);
  WEFT_CHECK(count > 0, InvalidArgument, "chunk", "needs a count above 0, got ", count);
  dim = normalize_dim(dim, x.dim(), "chunk");
  const std::int64_t size = x.shape()[dim];
  // An empty dimension gives `count` empty pieces, as in PyTorch.
  if (size == 0) {
    check_pieces("chunk", count);
    return std::vector<Tensor>(static_cast<std::size_t>(count), alias(x));
  }
  return split(x, ceil_div(size, count), dim);
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  check_defined("split", "x", x);
  dim = normalize_dim(dim, x.dim(), "split");
  WEFT_CHECK(size > 0, InvalidArgument, "split", "needs a size above 0, got ", size);
  const std::int64_t total = x.shape()[dim];
  const std::int64_t count = std::max<std::int64_t>(ceil_div(total, size), 1);
  check_pieces("split", count);
  std::vector<Tensor> pieces;
  pieces.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t start = i * size;
    pieces.push_back(narrow_unchecked(x, dim, start, std::min(size, total - start)));
  }
  return pieces;
}

std::vector<Tensor> split(const Tensor& x, const Dims& sizes, std::int64_t dim) {
  check_defined("split", "x", x);
  dim = normalize_dim(dim, x.dim(), "split");
  std::int64_t total = 0;
  for (std::int64_t size : sizes) {
    WEFT_CHECK(size >= 0, Shape, "split", "negative size in ", sizes);
    total = checked_add(total, size, "split");
  }
  WEFT_CHECK(total == x.shape()[dim], Shape, "split", "sizes ", sizes, " add up to ", total,
             ", dimension ", dim, " of ", x.shape(), " has ", x.shape()[dim]);
  std::vector<Tensor> pieces;
  pieces.reserve(sizes.size());
  std::int64_t start = 0;
  for (std::int64_t size : sizes) {
    pieces.push_back(narrow_unchecked(x, dim, start, size));
    start += size;
  }
  return pieces;
}

Tensor alias(const Tensor& x) {
  check_defined("alias", "x", x);
  return make_view(x, x.offset(), x.shape(), x.strides());
}

}  // namespace weft::raw
