#include "weft/tensor/creation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft {

using namespace raw::internal;

namespace {

Device device_of(const TensorOptions& options) {
  return options.device ? *options.device : thread_state().device;
}

Tensor allocate_for(const char* op, const Shape& shape, const TensorOptions& options) {
  check_shape(shape, op);
  const MemoryFormat format = options.channels_last ? MemoryFormat::nhwc : MemoryFormat::nchw;
  return allocate(shape, format, options.dtype.value_or(DType::f32), device_of(options));
}

Tensor filled(const char* op, const Shape& shape, double value, const TensorOptions& options) {
  raw::check_holds(op, value, options.dtype.value_or(DType::f32));
  return fill(allocate_for(op, shape, options), value);
}

}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options) {
  return allocate_for("empty", shape, options);
}

Tensor empty_like(const Tensor& x) {
  check_defined("empty_like", "x", x);
  return allocate_like(x, x.dtype(), x.device());
}

Tensor zeros(const Shape& shape, const TensorOptions& options) {
  Tensor y = allocate_for("zeros", shape, options);
  raw::zero_(y);
  return y;
}

Tensor zeros_like(const Tensor& x) {
  check_defined("zeros_like", "x", x);
  Tensor y = empty_like(x);
  raw::zero_(y);
  return y;
}

Tensor ones(const Shape& shape, const TensorOptions& options) {
  return filled("ones", shape, 1, options);
}

Tensor ones_like(const Tensor& x) {
  check_defined("ones_like", "x", x);
  return fill(empty_like(x), 1);
}

Tensor full(const Shape& shape, double value, const TensorOptions& options) {
  return filled("full", shape, value, options);
}

Tensor full_like(const Tensor& x, double value) {
  check_defined("full_like", "x", x);
  raw::check_holds("full_like", value, x.dtype());
  return fill(empty_like(x), value);
}

Tensor scalar(double value, const TensorOptions& options) {
  return filled("scalar", {}, value, options);
}

Tensor detail::arange(double start, double end, double step, const TensorOptions& options) {
  const DType dtype = *options.dtype;
  WEFT_CHECK(std::isfinite(start) && std::isfinite(end) && std::isfinite(step) && step != 0,
             InvalidArgument, "arange", "needs finite bounds and a step other than 0, got start ",
             start, ", end ", end, ", step ", step);
  if (!is_floating(dtype)) {
    // The bounds and the step without their fractions, as in PyTorch; so the count fits the values
    // written.
    WEFT_CHECK(std::abs(step) >= 1, InvalidArgument, "arange", "step ", step,
               " is 0 as a whole number; ask for a floating dtype");
    start = std::trunc(start);
    end = std::trunc(end);
    step = std::trunc(step);
  }
  const double count = std::ceil((end - start) / step);
  WEFT_CHECK(count >= 0, InvalidArgument, "arange", "step ", step, " leads away from end: start ",
             start, ", end ", end);
  WEFT_CHECK(count < 0x1p62, InvalidArgument, "arange", "too many elements: ", count);
  if (count > 0) {
    raw::check_holds("arange", start, dtype);
    raw::check_holds("arange", start + (count - 1) * step, dtype);
  }
  Tensor y = allocate_for("arange", {static_cast<std::int64_t>(count)}, options);
  if (y.numel() > 0) {
    const Device device = y.device();
    kernel(device, &KernelTable::elementwise, &ElementwiseKernels::arange, "arange", y.dtype())(
        current_stream(device), start, step, y.view_of());
  }
  return y;
}

Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options) {
  WEFT_CHECK(steps >= 0, InvalidArgument, "linspace", "negative number of steps ", steps);
  Tensor y = allocate_for("linspace", {steps}, options);
  raw::check_holds("linspace", start, y.dtype());
  raw::check_holds("linspace", end, y.dtype());
  if (!is_floating(y.dtype())) {
    start = std::trunc(start);
    end = std::trunc(end);
  }
  if (steps == 0) return y;
  // Computed from both ends, so that both are exact and the values are symmetric.
  const double step = steps == 1 ? 0 : (end - start) / static_cast<double>(steps - 1);
  const Tensor i = arange(0, static_cast<double>(steps), 1, {DType::f64, y.device()});
  const Tensor up = raw::add(raw::mul(i, step), start);
  const Tensor down = raw::sub(end, raw::mul(raw::sub(static_cast<double>(steps - 1), i), step));
  const Tensor first_half = raw::lt(i, std::max(static_cast<double>(steps / 2), 1.0));
  raw::copy_(y, raw::where(first_half, up, down));
  return y;
}

Tensor eye(std::int64_t n, const TensorOptions& options) { return eye(n, n, options); }

Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options) {
  WEFT_CHECK(n >= 0 && m >= 0, Shape, "eye", "negative size ", std::min(n, m));
  Tensor y = zeros({n, m}, options);
  if (y.numel() > 0) raw::fill_(make_view(y, 0, {std::min(n, m)}, {m + 1}), 1);
  return y;
}

template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, const TensorOptions& options) {
  graph::check_not_capturing("from_span",
                             "host values are read once and not by the replays; make the tensor "
                             "before the step and copy_() into it");
  check_shape(shape, "from_span");
  WEFT_CHECK(static_cast<std::int64_t>(values.size()) == numel(shape), Shape, "from_span", "got ",
             values.size(), " values for shape ", shape, ", which holds ", numel(shape));
  const Tensor host = allocate(shape, dtype_of<T>, Device());
  std::copy(values.begin(), values.end(), static_cast<T*>(host.raw_data()));
  const TensorOptions typed = options.or_dtype(dtype_of<T>);
  if (device_of(typed) == host.device() && *typed.dtype == dtype_of<T> && !typed.channels_last) {
    return host;
  }
  Tensor y = allocate_for("from_span", shape, typed);
  raw::copy_(y, host);
  return y;
}

template <class T>
Tensor borrow(std::span<T> memory, const Shape& shape, Device device) {
  check_shape(shape, "borrow");
  WEFT_CHECK(static_cast<std::int64_t>(memory.size()) == numel(shape), Shape, "borrow", "got ",
             memory.size(), " values for shape ", shape, ", which holds ", numel(shape));
  return make(Storage::borrow(device, memory.data(), memory.size_bytes()), 0, shape,
              contiguous_strides(shape), dtype_of<T>);
}

template <class T>
Tensor borrow(std::span<T> memory, const Shape& shape, const Strides& strides,
              std::function<void()> release, Device device) {
  using Release = std::function<void()>;
  auto kept = release ? std::make_unique<Release>(std::move(release)) : nullptr;
  const Tensor y = as_strided(Storage::borrow(device, memory.data(), memory.size_bytes()),
                              dtype_of<T>, shape, strides);
  if (kept) {
    const auto run = [](void* context) {
      const std::unique_ptr<Release> once(static_cast<Release*>(context));
      (*once)();
    };
    y.storage()->set_release(run, kept.release());
  }
  return y;
}

#define WEFT_INSTANTIATE(T)                                                                    \
  template Tensor from_span<T>(std::span<const T>, const Shape&, const TensorOptions&);        \
  template Tensor borrow<T>(std::span<T>, const Shape&, Device);                               \
  template Tensor borrow<T>(std::span<T>, const Shape&, const Strides&, std::function<void()>, \
                            Device);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
WEFT_INSTANTIATE(bf16)
WEFT_INSTANTIATE(std::int64_t)
WEFT_INSTANTIATE(std::int32_t)
WEFT_INSTANTIATE(std::uint8_t)
WEFT_INSTANTIATE(bool)
#undef WEFT_INSTANTIATE

NestedNumbers::NestedNumbers(std::initializer_list<NestedNumbers> rows) {
  for (const NestedNumbers& row : rows) {
    const Shape& first = rows.begin()->shape_;
    WEFT_CHECK(row.shape_ == first, InvalidArgument, "tensor", "row ", &row - rows.begin(),
               ": got ", row.shape_, ", row 0 is ", first);
    values_.insert(values_.end(), row.values_.begin(), row.values_.end());
  }
  if (rows.size() > 0) shape_ = rows.begin()->shape_;
  shape_.insert(0, static_cast<std::int64_t>(rows.size()));
}

Tensor tensor(const NestedNumbers& numbers, const TensorOptions& options) {
  for (const double value : numbers.values()) {
    raw::check_holds("tensor", value, options.dtype.value_or(DType::f32));
  }
  const Tensor host = from_vector(numbers.values(), numbers.shape(), Device());
  Tensor y = allocate_for("tensor", numbers.shape(), options);
  raw::copy_(y, host);
  return y;
}

Tensor as_strided(const intrusive_ptr<Storage>& storage, DType dtype, const Shape& shape,
                  const Strides& strides, std::int64_t offset) {
  WEFT_CHECK(storage, InvalidArgument, "as_strided", "there is no storage");
  check_shape(shape, "as_strided");
  WEFT_CHECK(shape.size() == strides.size(), Shape, "as_strided", "shape ", shape, " and strides ",
             strides, " differ in length");
  // In 128 bits, so that a huge size times a stride cannot wrap around to an address in the
  // storage.
  __int128 last = offset;
  for (int i = 0; i < shape.size(); ++i) {
    WEFT_CHECK(strides[i] >= 0, InvalidArgument, "as_strided", "negative stride in ", strides);
    last += static_cast<__int128>(shape[i] - 1) * strides[i];
  }
  const auto held = static_cast<std::int64_t>(storage->bytes() / size_of(dtype));
  WEFT_CHECK(offset >= 0 && (numel(shape) == 0 ? offset <= held : last < held), Shape, "as_strided",
             "shape ", shape, " with strides ", strides, " at offset ", offset,
             " reaches outside a storage of ", held, " elements");
  // A tensor without elements accesses nothing, but its views compute these products.
  for (int i = 0; i < shape.size(); ++i) checked_mul(shape[i], strides[i], "as_strided");
  return make(storage, offset, shape, strides, dtype);
}

}  // namespace weft
