// Making tensors.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// Where and of what type; the device defaults to the thread's current one.
struct TensorOptions {
  std::optional<DType> dtype;  ///< f32 by default, where a function does not say otherwise
  std::optional<Device> device;
  bool channels_last = false;  ///< 4-D only

  TensorOptions() = default;
  TensorOptions(DType d) : dtype(d) {}
  TensorOptions(Device d) : device(d) {}
  TensorOptions(DType d, Device where) : dtype(d), device(where) {}

  /// The same with this dtype, unless they name one.
  TensorOptions or_dtype(DType d) const {
    TensorOptions options = *this;
    options.dtype = dtype.value_or(d);
    return options;
  }
};

// A number is given as a double; where a tensor of the dtype cannot hold it, InvalidArgument
// (raw::check_holds in tensor/ops.h).

Tensor empty(const Shape& shape, const TensorOptions& options = {});  ///< not initialised
Tensor empty_like(const Tensor& x);                                   ///< also x's layout, if dense
Tensor zeros(const Shape& shape, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& x);
Tensor ones(const Shape& shape, const TensorOptions& options = {});
Tensor ones_like(const Tensor& x);
Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
Tensor full_like(const Tensor& x, double value);
/// 0-dimensional.
Tensor scalar(double value, const TensorOptions& options = {});
/// start, start + step, ... below end. i64 by default; for integers, the whole parts of all three.
/// Throws InvalidArgument for bounds that are not finite, a step that is 0 or leads away from end,
/// and where the dtype does not hold a number.
Tensor arange(double start, double end, double step = 1, const TensorOptions& options = {});
/// `steps` values from start to end, both included, at even distances; for integers, the whole
/// parts of both, and of what lies between. Throws InvalidArgument for a negative count.
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});
Tensor eye(std::int64_t n, const TensorOptions& options = {});

/// Copies. The dtype is that of T by default; another one converts as raw::to. Throws Shape when
/// values do not fill the shape.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, const TensorOptions& options = {});
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape,
                   const TensorOptions& options = {}) {
  return from_span(std::span<const T>(values), shape, options);
}
/// 1-D f32 (or the dtype of options): tensor({1, 2, 3}).
Tensor tensor(std::initializer_list<double> values, const TensorOptions& options = {});
/// Uses the caller's memory without copying; it must stay valid as long as any view lives.
template <class T>
Tensor borrow(std::span<T> memory, const Shape& shape, Device device = {});
/// A view of given storage; strides in elements. Throws Shape when it would reach outside,
/// InvalidArgument where there is no storage.
Tensor as_strided(const intrusive_ptr<Storage>& storage, DType dtype, const Shape& shape,
                  const Strides& strides, std::int64_t offset = 0);

// Random; the thread's generator unless one is given (rng.h says which are PyTorch's bit for bit).
Tensor rand(const Shape& shape, const TensorOptions& options = {}, Generator* generator = nullptr);
Tensor randn(const Shape& shape, const TensorOptions& options = {}, Generator* generator = nullptr);
Tensor uniform(const Shape& shape, double from, double to, const TensorOptions& options = {},
               Generator* generator = nullptr);
Tensor bernoulli(const Shape& shape, double p, const TensorOptions& options = {},
                 Generator* generator = nullptr);
/// Of x's shape, dtype and device. Throw Dtype for integers.
Tensor rand_like(const Tensor& x, Generator* generator = nullptr);
Tensor randn_like(const Tensor& x, Generator* generator = nullptr);
/// Whole numbers in [low, high), i64 by default; drawn on the host. Throws InvalidArgument unless
/// low < high, and where the dtype does not hold one of them.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape,
               const TensorOptions& options = {}, Generator* generator = nullptr);
/// 0 to n - 1 in random order, i64 by default. Throws InvalidArgument for a negative n, and where
/// the dtype does not hold n - 1.
Tensor randperm(std::int64_t n, const TensorOptions& options = {}, Generator* generator = nullptr);

}  // namespace weft
