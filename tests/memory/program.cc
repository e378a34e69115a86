#include "weft/tests/memory/program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"

namespace weft::testing {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::size_t kTensors = 12;       // in a program
constexpr std::int64_t kElements = 20000;  // usual limit of a tensor's size

/// Reads all elements; throws std::logic_error unless they are in the storage.
void check(const Tensor& x) {
  using Wide = __int128;
  Wide numel = 1, first = x.offset(), last = x.offset();
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t size = x.shape()[d], stride = x.strides()[d];
    if (size < 0) throw std::logic_error("a negative size in " + to_string(x.shape()));
    numel *= size;
    if (numel > kMost) throw std::logic_error("too many elements in " + to_string(x.shape()));
    (stride < 0 ? first : last) += (Wide{size} - 1) * stride;
  }
  if (numel == 0) return;
  if (first < 0 || (last + 1) * Wide(size_of(x.dtype())) > Wide(x.storage()->bytes())) {
    throw std::logic_error(detail::concat("shape ", x.shape(), " with strides ", x.strides(),
                                          " from ", x.offset(), " in ", x.storage()->bytes(),
                                          " bytes"));
  }
  if (numel <= kElements) x.to_vector<double>();
}

}  // namespace

std::int64_t Program::number(std::int64_t right) {
  if (!draw.one_in(40)) return right;
  return draw.of<std::int64_t>({0, 1, -1, 2, 3, right + 1, right - 1, -right, std::int64_t{1} << 31,
                                (std::int64_t{1} << 31) - 1, std::int64_t{1} << 32,
                                std::int64_t{1} << 62, kMost, kMost - 1, kLeast, kLeast + 1});
}

double Program::real(double right) {
  if (!draw.one_in(20)) return right;
  return draw.of<double>({0, -0.0, 1, -1, 0.5, 1e300, -1e300, 1e-300, 1e20, INFINITY, -INFINITY,
                          NAN, 255, 256, 0x1p31, 0x1p63, -0x1p63});
}

std::array<std::int64_t, 2> Program::pair(std::int64_t first, std::int64_t last) {
  const std::int64_t a = draw.between(first, last);
  return {number(a), number(coin() ? a : draw.between(first, last))};
}

std::int64_t Program::size() {
  if (draw.one_in(30)) return 0;
  if (draw.one_in(3)) return draw.of<std::int64_t>({1, 1, 2, 3});
  return draw.of<std::int64_t>(
      {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64, 65, 100});
}

Shape Program::shape(int dims) {
  const std::int64_t most = draw.one_in(25) ? 300000 : draw.one_in(3) ? kElements : 1000;
  Shape shape;
  for (int d = 0; d < dims; ++d) shape.push_back(size());
  if (dims > 0 && most > kElements) shape[draw.between(0, dims - 1)] = draw.between(1000, 40000);
  while (numel(shape) > most) {
    std::int64_t& largest = *std::ranges::max_element(shape);
    largest = (largest + 1) / 2;
  }
  return shape;
}

std::int64_t Program::dim(int dims) {
  if (dims == 0) return number(draw.between(-1, 0));
  return number(draw.between(-dims, dims - 1));
}
std::int64_t Program::dim(const Tensor& x) { return dim(x.dim()); }

Dims Program::dims(const Tensor& x) {
  Dims dims;
  for (int d = 0; d < x.dim(); ++d) {
    if (coin()) dims.push_back(number(coin() ? d : d - x.dim()));
  }
  return dims;
}

DType Program::dtype() {
  return draw.of({DType::f32, DType::f32, DType::f32, DType::f64, DType::bf16, DType::i64,
                  DType::i32, DType::u8, DType::boolean});
}

void Program::fill(const Tensor& x) {
  const NoGrad no_grad;
  if (!is_floating(x.dtype())) {
    raw::copy_(x, raw::to(randint(x.dtype() == DType::u8 ? 0 : -4, 5, x.shape()), x.dtype()));
    if (draw.one_in(12) && x.numel() > 0) {
      raw::copy_(raw::select(raw::flatten(x), 0, draw.between(0, x.numel() - 1)),
                 scalar(double(draw.of<std::int64_t>({kLeast, -1, 1 << 30})), DType::i64));
    }
    return;
  }
  if (coin()) {
    raw::normal_(x, 0, draw.of({0.1, 1.0, 3.0}));
  } else {
    raw::uniform_(x, 0, 1);
  }
  if (draw.one_in(12)) raw::fill_(x, draw.of<double>({0, 1, -0.0, INFINITY, NAN, 3e38, 1e-38}));
}

Tensor Program::make(const Shape& shape, DType dtype) {
  const TensorOptions options(dtype);
  const int dims = shape.size();
  Tensor x;
  switch (draw.between(0, 9)) {
    case 0: {  // other strides
      Dims order;
      for (int d = 0; d < dims; ++d) order.insert(draw.between(0, d), d);
      Shape permuted;
      Dims back = Dims::filled(dims, 0);
      for (int d = 0; d < dims; ++d) {
        permuted.push_back(shape[order[d]]);
        back[order[d]] = d;
      }
      x = raw::permute(empty(permuted, options), back);
      break;
    }
    case 1: {  // gaps
      Shape larger = shape;
      for (std::int64_t& size : larger) size = size * 2 + 1;
      if (numel(larger) > 40 * kElements) larger = shape;
      x = empty(larger, options);
      for (int d = 0; d < dims; ++d) {
        if (larger == shape) break;
        x = raw::slice(x, d, draw.between(0, 1), 2 * shape[d] + 1, 2);
        x = raw::slice(x, d, 0, shape[d]);
      }
      break;
    }
    case 2: {  // a part in the middle
      Shape longer = shape;
      if (dims > 0) longer[0] += 3;
      x = empty(longer, options);
      if (dims > 0) x = raw::narrow(x, 0, draw.between(0, 3), shape[0]);
      break;
    }
    case 3: {  // expanded
      if (dims == 0 || draw.one_in(2)) {
        x = empty(shape, options);
        fill(x);
        break;
      }
      Shape small = shape;
      small[draw.between(0, dims - 1)] = 1;
      x = empty(small, options);
      fill(x);
      x = raw::expand(x, shape);
      break;
    }
    case 4:
      if (dims == 4) {
        TensorOptions last = options;
        last.channels_last = true;
        x = empty(shape, last);
        break;
      }
      [[fallthrough]];
    case 5:
    case 6: {  // so that its last element is the storage's last one
      const std::int64_t bytes = numel(shape) * std::int64_t(size_of(dtype));
      const std::int64_t rounded = (bytes + 63) / 64 * 64;
      if (rounded == 0) {
        x = empty(shape, options);
      } else {
        x = as_strided(Storage::allocate(Device(), std::size_t(rounded)), dtype, shape,
                       contiguous_strides(shape), (rounded - bytes) / std::int64_t(size_of(dtype)));
      }
      break;
    }
    default: x = empty(shape, options);
  }
  bool overlaps = false;
  for (int d = 0; d < dims; ++d) overlaps |= x.strides()[d] == 0 && shape[d] > 1;
  if (!overlaps) fill(x);
  if (is_floating(dtype) && draw.one_in(3)) x.set_requires_grad();
  return x;
}

Tensor Program::operand(const Shape& shape, DType dtype) {
  if (draw.one_in(60)) return any();
  if (draw.one_in(60)) return make(shape, this->dtype());
  if (draw.one_in(60)) {
    Shape other = shape;
    if (other.size() > 0) {
      std::int64_t& size = other[draw.between(0, other.size() - 1)];
      size = std::max<std::int64_t>(0, size + draw.of<std::int64_t>({-1, 1}));
    }
    return make(other, dtype);
  }
  for (const Tensor& x : tensors_) {
    if (x.shape() == shape && x.dtype() == dtype && coin()) return x;
  }
  return make(shape, dtype);
}

Tensor Program::broadcastable(const Tensor& x, DType dtype) {
  Shape shape = x.shape();
  while (shape.size() > 0 && draw.one_in(4)) shape.erase(0);
  for (std::int64_t& size : shape) {
    if (draw.one_in(4)) size = 1;
  }
  return operand(shape, dtype);
}

Tensor Program::index(const Shape& shape, std::int64_t n) {
  const Tensor x = make(shape, DType::i64);
  bool overlaps = false;
  for (int d = 0; d < x.dim(); ++d) overlaps |= x.strides()[d] == 0 && x.shape()[d] > 1;
  const Tensor right = n > 0 ? randint(0, n, shape) : zeros(shape, DType::i64);
  if (overlaps) return right;
  raw::copy_(x, right);
  if (x.numel() > 0 && draw.one_in(12)) {
    Tensor at = x;
    while (at.dim() > 0) at = raw::select(at, 0, draw.between(0, at.shape()[0] - 1));
    *at.data<std::int64_t>() =
        draw.of<std::int64_t>({n, -1, -n, n + 1, kMost, kLeast, std::int64_t{1} << 32, -100});
  }
  return draw.one_in(60) ? raw::to(x, this->dtype()) : x;
}

Tensor Program::any() {
  if (tensors_.empty() || draw.one_in(3)) {
    const DType type = dtype();
    return make(shape(), type);
  }
  return tensors_[std::size_t(draw.between(0, std::ssize(tensors_) - 1))];
}

Tensor Program::any_floating() {
  for (int tries = 0; tries < 3; ++tries) {
    const Tensor x = any();
    if (is_floating(x.dtype()) || draw.one_in(60)) return x;
  }
  const DType type = floating_dtype();
  return make(shape(), type);
}

Tensor Program::floating(int dims) {
  for (int tries = 0; tries < 2; ++tries) {
    const Tensor x = any_floating();
    if (x.dim() == dims || draw.one_in(60)) return x;
  }
  const DType type = floating_dtype();
  return make(shape(dims), type);
}

Tensor Program::leaf() {
  if (draw.one_in(12)) return any();
  const DType type = floating_dtype();
  return make(shape(), type).set_requires_grad();
}

Tensor Program::optional(const Shape& shape, DType dtype) {
  return draw.one_in(3) ? Tensor() : operand(shape, dtype);
}

void Program::keep(const Tensor& x) {
  if (x.numel() > 15 * kElements) return;  // expanded tensors may have any number of elements
  if (tensors_.size() < kTensors) {
    tensors_.push_back(x);
  } else {
    tensors_[std::size_t(draw.between(0, std::ssize(tensors_) - 1))] = x;
  }
}

void Program::perhaps_backward(const Tensor& x) {
  if (!x.requires_grad() || x.numel() > 15 * kElements || !draw.one_in(3)) return;
  const bool retain = draw.one_in(3);
  for (int times = retain ? 2 : 1; times > 0; --times) {
    x.backward(operand(x.shape(), x.dtype()).detach(), retain && times > 1);
  }
}

bool Program::step(const Operation& operation) {
  bool gave_result = false;
  try {
    std::vector<Tensor> results = operation.call(*this);
    gave_result = true;
    if (results.size() > 4) results.resize(4);
    for (const Tensor& x : results) {
      if (!x.defined()) continue;
      check(x);
      keep(x);
      perhaps_backward(x);
      if (x.requires_grad() && x.is_leaf() && x.grad().defined()) check(x.grad());
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Internal || error.code() == ErrorCode::Library) throw;
  } catch (const std::bad_alloc&) {
  }
  return gave_result;
}

void Program::finish() {
  for (const Tensor& x : tensors_) {
    try {
      if (x.requires_grad() && !x.is_leaf()) x.backward(make(x.shape(), x.dtype()).detach());
      if (x.requires_grad() && x.is_leaf() && x.grad().defined()) check(x.grad());
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Internal || error.code() == ErrorCode::Library) throw;
    } catch (const std::bad_alloc&) {
    }
  }
}

}  // namespace weft::testing
