#include "weft/tensor/internal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "weft/tensor/ops.h"

namespace weft::raw::internal {

Tensor make(intrusive_ptr<Storage> storage, std::int64_t offset, const Shape& shape,
            const Strides& strides, DType dtype) {
  return Tensor(make_intrusive<TensorImpl>(std::move(storage), offset, shape, strides, dtype));
}

namespace {

intrusive_ptr<Storage> storage_for(const Shape& shape, DType dtype, Device device) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(weft::numel(shape), size_of(dtype), &bytes)) [[unlikely]] {
    bytes = std::numeric_limits<std::size_t>::max();  // the allocator then refuses it
  }
  return Storage::allocate(device, bytes);
}

}  // namespace

Tensor allocate(const Shape& shape, const Strides& strides, DType dtype, Device device) {
  return make(storage_for(shape, dtype, device), 0, shape, strides, dtype);
}

Tensor allocate(const Shape& shape, DType dtype, Device device) {
  return allocate(shape, contiguous_strides(shape), dtype, device);
}

Tensor allocate(const Shape& shape, MemoryFormat format, DType dtype, Device device) {
  return allocate(shape, format_strides(shape, format), dtype, device);
}

Tensor allocate_like(const Tensor& x, DType dtype, Device device) {
  return allocate(x.shape(), x.is_dense() ? x.strides() : contiguous_strides(x.shape()), dtype,
                  device);
}

bool same_layout(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return false;
  if (a.strides() == b.strides()) return true;
  for (int i = 0; i < a.dim(); ++i) {
    if (a.shape()[i] > 1 && a.strides()[i] != b.strides()[i]) return false;
  }
  return true;
}

Strides broadcast_strides(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x.strides();
  Strides strides = shape;
  const int added = shape.size() - x.dim();
  for (int i = 0; i < shape.size(); ++i) {
    const bool stretched = i < added || (x.shape()[i - added] == 1 && shape[i] != 1);
    strides[i] = stretched ? 0 : x.strides()[i - added];
  }
  return strides;
}

View broadcast_view(const Tensor& x, const Shape& shape) {
  return {x.raw_data(), x.dtype(), shape, broadcast_strides(x, shape)};
}

Tensor with_dim_last(const Tensor& x, std::int64_t dim) {
  return contiguous(x.dim() == 0 ? reshape(x, {1}) : transpose(x, dim, -1));
}

Tensor with_dim_back(const Tensor& y, const Shape& shape, std::int64_t dim) {
  return shape.size() == 0 ? reshape(y, shape) : transpose(y, dim, -1);
}

View rows_view(const Tensor& x) {
  const std::int64_t n = x.shape(-1);
  const Shape shape{x.numel() / n, n};
  return {x.raw_data(), x.dtype(), shape, contiguous_strides(shape)};
}

View flat_view(const Tensor& x, std::int64_t n) {
  static const Dims one = {1};
  View view{x.raw_data(), x.dtype(), one, one};
  view.shape[0] = n;
  return view;
}

Strides result_strides(const Shape& shape, std::initializer_list<const Tensor*> operands) {
  for (const Tensor* x : operands) {
    if (x->shape() == shape && x->is_dense()) return x->strides();
  }
  return contiguous_strides(shape);
}

View formatted_view(const Tensor& x, MemoryFormat format) {
  return {x.raw_data(), x.dtype(), x.shape(), format_strides(x.shape(), format)};
}

Tensor in_image_format(const Tensor& x) { return is_nchw(x) || is_nhwc(x) ? x : contiguous(x); }

namespace {

struct Range {
  std::uintptr_t begin, end;
};

Range range_of(const Tensor& x) {
  std::int64_t last = 0;
  for (int i = 0; i < x.dim(); ++i) last += (x.shape()[i] - 1) * x.strides()[i];
  const auto begin = reinterpret_cast<std::uintptr_t>(x.raw_data());
  return {begin, begin + static_cast<std::uint64_t>(last + 1) * size_of(x.dtype())};
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Range ra = range_of(a);
  const Range rb = range_of(b);
  return ra.begin < rb.end && rb.begin < ra.end;
}

Tensor disjoint(const Tensor& x, const Tensor& y) {
  const bool same_elements =
      x.raw_data() == y.raw_data() && x.dtype() == y.dtype() && same_layout(x, y);
  return same_elements || !overlap(x, y) ? x : clone(x);
}

void throw_undefined(const char* op, const char* name) {
  WEFT_THROW(InvalidArgument, op, name,
             " is an undefined tensor: default-constructed, moved from, or a gradient that is not "
             "there");
}

void throw_device_mismatch(const char* op, const char* name_a, Device a, const char* name_b,
                           Device b) {
  WEFT_THROW(Device, op, "operands on different devices: ", name_a, " on ", a, ", ", name_b, " on ",
             b, "; move one with to(device)");
}

void check_same_kind(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                     const Tensor& b) {
  check_same_device(op, name_a, a, name_b, b);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, op, "dtype: ", name_a, " is ", a.dtype(), ", ", name_b,
             " is ", b.dtype(), "; convert one with to(dtype)");
}

void check_floating(const char* op, const char* name, const Tensor& x) {
  check_defined(op, name, x);
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "needs a floating dtype: ", name, " is ", x.dtype(),
             "; convert it with to(dtype)");
}

namespace {

// The largest table of positions that a write checks.
constexpr std::int64_t kMostPlaces = std::int64_t{1} << 20;

// Whether two elements have the same position. No value if the table for this would be too large.
std::optional<bool> elements_overlap(const Shape& shape, const Strides& strides) {
  struct Dimension {
    std::int64_t size, stride;
  };
  std::array<Dimension, kMaxDims> by_stride;
  int count = 0;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return false;
    if (shape[i] == 1) continue;
    int at = count++;
    for (; at > 0 && by_stride[at - 1].stride > strides[i]; --at) by_stride[at] = by_stride[at - 1];
    by_stride[at] = {shape[i], strides[i]};
  }
  // A stride larger than everything that the shorter ones reach keeps its steps apart. So only the
  // dimensions up to the last one without such a stride are checked in detail.
  std::int64_t reach = 0, tangled_reach = 0;
  int tangled = 0;
  for (int k = 0; k < count; ++k) {
    const auto [size, stride] = by_stride[k];
    const bool apart = stride > reach;
    reach += (size - 1) * stride;
    if (!apart) tangled = k + 1, tangled_reach = reach;
  }
  if (tangled == 0) return false;
  if (by_stride[0].stride == 0) return true;

  std::int64_t elements = 1, step = 0;
  for (int k = 0; k < tangled; ++k) {
    elements *= by_stride[k].size;
    step = std::gcd(step, by_stride[k].stride);
  }
  const std::int64_t places = tangled_reach / step + 1;
  if (elements > places) return true;
  if (places > kMostPlaces) return {};
  std::vector<bool> taken(static_cast<std::size_t>(places));
  taken[0] = true;
  std::vector<std::int64_t> found = {0};
  for (int k = 0; k < tangled; ++k) {
    const std::size_t before = found.size();
    for (std::int64_t i = 1; i < by_stride[k].size; ++i) {
      for (std::size_t j = 0; j < before; ++j) {
        const std::int64_t place = found[j] + i * (by_stride[k].stride / step);
        if (taken[static_cast<std::size_t>(place)]) return true;
        taken[static_cast<std::size_t>(place)] = true;
        found.push_back(place);
      }
    }
  }
  return false;
}

}  // namespace

void check_no_overlap(const char* op, const Tensor& y) {
  const std::optional<bool> overlaps = elements_overlap(y.shape(), y.strides());
  WEFT_CHECK(overlaps.has_value(), InvalidArgument, op, "cannot tell from ", kMostPlaces,
             " places whether several elements share memory (", y.shape(), ", strides ",
             y.strides(), "); clone() it before writing");
  WEFT_CHECK(!*overlaps, InvalidArgument, op, "several elements share memory (", y.shape(),
             ", strides ", y.strides(), "); clone() it before writing");
}

void check_pair(const char* op, const char* name, const std::array<std::int64_t, 2>& pair,
                std::int64_t least) {
  WEFT_CHECK(pair[0] >= least && pair[1] >= least, InvalidArgument, op, name, ": got (", pair[0],
             ", ", pair[1], "), at least ", least, " is needed");
  WEFT_CHECK(pair[0] <= kMaxPixels && pair[1] <= kMaxPixels, InvalidArgument, op, name, ": got (",
             pair[0], ", ", pair[1], "), at most ", kMaxPixels, " is possible");
}

void check_images(const char* op, const Shape& shape, const std::array<std::int64_t, 2>& padding) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 47;
  check_shape(shape, op);
  bool fits = shape[2] <= kMaxPixels && shape[3] <= kMaxPixels;
  if (fits) {
    const std::int64_t height = shape[2] + 2 * padding[0], width = shape[3] + 2 * padding[1];
    fits = height <= kMaxPixels && width <= kMaxPixels && height * width <= kMaxPixels &&
           shape[0] * shape[1] <= kMostElements / std::max<std::int64_t>(height * width, 1);
  }
  WEFT_CHECK(fits, Shape, op, "too large: images ", shape, " padded by (", padding[0], ", ",
             padding[1], "); one may have ", kMaxPixels, " pixels, and all together ",
             kMostElements, " elements");
}

void check_rank(const char* op, const Shape& shape, int rank) {
  WEFT_CHECK(rank <= kMaxDims, Shape, op, "cannot add a dimension to ", shape, ", at most ",
             kMaxDims, " are possible");
}

bool holds(DType dtype, double value) {
  return dispatch_all(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      return true;
    } else if constexpr (std::is_integral_v<T>) {
      // The largest i64 is not a double; the nearest one is 2^63.
      constexpr auto low = static_cast<double>(std::numeric_limits<T>::min());
      constexpr auto high = static_cast<double>(std::numeric_limits<T>::max());
      return value >= low && value <= high && value < 0x1p63;
    } else {
      return !std::isfinite(value) || std::isfinite(element_cast<double>(element_cast<T>(value)));
    }
  });
}

double negated(double value, DType dtype) {
  return value == -0x1p63 && !is_floating(dtype) ? value : -value;
}

Tensor constant(double value, DType dtype, Device device) {
  return fill(allocate({}, dtype, device), value);
}

Tensor cast(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : to(x, dtype); }

}  // namespace weft::raw::internal

namespace weft::raw {

DType result_type(const Tensor& a, const Tensor& b, const Tensor& c) {
  std::optional<DType> own, scalar;  // of those with dimensions, and of those without
  for (const Tensor* x : {&a, &b, &c}) {
    if (!x->defined()) continue;
    std::optional<DType>& of = x->dim() == 0 ? scalar : own;
    of = of ? promote(*of, x->dtype()) : x->dtype();
  }
  if (!own || !scalar) return own ? *own : *scalar;
  const auto kind = [](DType dtype) { return is_floating(dtype) ? 2 : dtype != DType::boolean; };
  return kind(*scalar) > kind(*own) ? promote(*own, *scalar) : *own;
}

void check_holds(const char* op, double value, DType dtype) {
  WEFT_CHECK(internal::holds(dtype, value), InvalidArgument, op, "a tensor of ", dtype,
             " cannot hold ", value);
}

}  // namespace weft::raw
