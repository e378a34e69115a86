#include "weft/core/base/shape.h"

#include <algorithm>
#include <ostream>

#include "weft/core/base/error.h"

namespace weft {

Dims::Dims(std::span<const std::int64_t> values) {
  WEFT_CHECK(values.size() <= std::size_t(kMaxDims), Shape, "shape", "got ", values.size(),
             " dimensions, at most ", kMaxDims, " are possible");
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

Dims Dims::filled(std::int64_t count, std::int64_t value) {
  WEFT_CHECK(count >= 0 && count <= kMaxDims, Shape, "shape", "got ", count,
             " dimensions, expected 0 to ", kMaxDims);
  Dims dims;
  dims.size_ = static_cast<int>(count);
  std::fill_n(dims.values_.begin(), count, value);
  return dims;
}

void Dims::push_back(std::int64_t value) { insert(size_, value); }

void Dims::insert(std::int64_t at, std::int64_t value) {
  WEFT_CHECK(size_ < kMaxDims, Shape, "shape", "cannot add a dimension to ", *this, ", at most ",
             kMaxDims, " are possible");
  WEFT_CHECK(at >= 0 && at <= size_, Shape, "shape", "cannot insert at position ", at, " of ",
             *this);
  std::copy_backward(begin() + at, end(), end() + 1);
  values_[at] = value;
  ++size_;
}

void Dims::erase(std::int64_t at) {
  WEFT_CHECK(at >= 0 && at < size_, Shape, "shape", "no position ", at, " in ", *this);
  std::copy(begin() + at + 1, end(), begin() + at);
  --size_;
}

namespace {

[[noreturn]] void throw_too_large(const Shape& shape, const char* op) {
  WEFT_THROW(Shape, op, "the number of elements of ", shape, " does not fit in 64 bits");
}

}  // namespace

std::int64_t numel(const Shape& shape) {
  std::int64_t n = 1;
  bool overflow = false;
  for (std::int64_t d : shape) overflow |= __builtin_mul_overflow(n, d, &n);
  if (overflow) [[unlikely]] {
    // If any size is zero the tensor is empty, even if the product of the others overflows.
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    throw_too_large(shape, "shape");
  }
  return n;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.size(), 1);
  std::int64_t step = 1;  // an empty dimension counts as one, so that strides stay positive
  bool overflow = false;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    overflow |= __builtin_mul_overflow(step, std::max<std::int64_t>(shape[i], 1), &step);
  }
  if (overflow) [[unlikely]]
    throw_too_large(shape, "shape");
  return strides;
}

Strides channels_last_strides(const Shape& shape) {
  WEFT_CHECK(shape.size() == 4, Shape, "channels_last", "got shape ", shape,
             ", expected four dimensions [N,C,H,W]");
  const Strides nhwc = contiguous_strides({shape[0], shape[2], shape[3], shape[1]});
  return {nhwc[0], nhwc[3], nhwc[1], nhwc[2]};
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const int offset = longer.size() - shorter.size();
  for (int i = 0; i < shorter.size(); ++i) {
    const std::int64_t x = longer[offset + i];
    const std::int64_t y = shorter[i];
    WEFT_CHECK(x == y || x == 1 || y == 1, Shape, op, "shapes ", a, " and ", b,
               " do not broadcast: dimension ", offset + i - longer.size(),
               " must be equal or 1 in one of them");
    out[offset + i] = x == 1 ? y : x;
  }
  return out;
}

int normalize_dim(std::int64_t dim, int ndim, const char* op) {
  WEFT_CHECK(ndim > 0, Shape, op, "dimension: got ", dim, ", a scalar has no dimensions");
  WEFT_CHECK(dim >= -ndim && dim < ndim, Shape, op, "dimension: got ", dim, ", expected ", -ndim,
             " to ", ndim - 1, " for ", ndim, " dimensions");
  return static_cast<int>(dim < 0 ? dim + ndim : dim);
}

void check_shape(const Shape& shape, const char* op) {
  std::int64_t step = 1;
  for (std::int64_t n : shape) {
    WEFT_CHECK(n >= 0, Shape, op, "negative size in shape ", shape);
    if (__builtin_mul_overflow(step, std::max<std::int64_t>(n, 1), &step)) [[unlikely]]
      throw_too_large(shape, op);
  }
}

void detail::throw_overflow(std::int64_t a, const char* sign, std::int64_t b, const char* op) {
  WEFT_THROW(Shape, op, a, sign, b, " does not fit in 64 bits");
}

std::string to_string(const Dims& dims) { return detail::concat(dims); }

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '[';
  for (int i = 0; i < dims.size(); ++i) {
    if (i) out << ',';
    out << dims[i];
  }
  return out << ']';
}

}  // namespace weft
