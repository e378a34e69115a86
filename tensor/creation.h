// Making tensors.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/tensor/tensor.h"

namespace weft {

namespace detail {
template <class T>
concept Number = std::integral<T> || std::floating_point<T>;
}  // namespace detail

/// Device and dtype of a new tensor; the default device is the thread's current one.
struct TensorOptions {
  std::optional<DType> dtype;  ///< f32 by default, if a function does not say otherwise
  std::optional<Device> device;
  bool channels_last = false;  ///< 4-D only

  TensorOptions() = default;
  TensorOptions(DType d) : dtype(d) {}
  TensorOptions(Device d) : device(d) {}
  TensorOptions(DType d, Device where) : dtype(d), device(where) {}

  /// The same options with this dtype, unless they already have one.
  TensorOptions or_dtype(DType d) const {
    TensorOptions options = *this;
    options.dtype = dtype.value_or(d);
    return options;
  }
};

namespace detail {
Tensor arange(double start, double end, double step, const TensorOptions& options);
}  // namespace detail

/// Numbers in braces, to any depth, as tensor() takes them: {{1, 2}, {3, 4}}, or one number.
class NestedNumbers {
 public:
  template <detail::Number T>
  NestedNumbers(T number) : values_{static_cast<double>(number)} {}
  /// Throws InvalidArgument if the rows differ in shape.
  NestedNumbers(std::initializer_list<NestedNumbers> rows);

  const Shape& shape() const { return shape_; }
  const std::vector<double>& values() const { return values_; }

 private:
  Shape shape_;
  std::vector<double> values_;
};

// Numbers are given as double. Throws InvalidArgument if the dtype cannot represent one
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
/// start, start + step, ... below end. As in PyTorch, i64 by default if all three are integers in
/// C++, and f32 if one is not: arange(0, 1, 0.25). With an integer dtype, all three without their
/// fractions. Throws InvalidArgument for bounds that are not finite, for a step that is 0 or leads
/// away from end, and for a number that the dtype cannot represent.
template <detail::Number Start, detail::Number End, detail::Number Step = int>
Tensor arange(Start start, End end, Step step = 1, const TensorOptions& options = {}) {
  constexpr bool whole = std::integral<Start> && std::integral<End> && std::integral<Step>;
  return detail::arange(static_cast<double>(start), static_cast<double>(end),
                        static_cast<double>(step),
                        options.or_dtype(whole ? DType::i64 : DType::f32));
}
template <detail::Number Start, detail::Number End>
Tensor arange(Start start, End end, const TensorOptions& options) {
  return arange(start, end, 1, options);
}
/// 0, 1, ... below end.
template <detail::Number End>
Tensor arange(End end, const TensorOptions& options = {}) {
  return arange(End(0), end, 1, options);
}
/// `steps` values from start to end, both included, at equal distances; for integers, both ends and
/// all values without their fractions. Throws InvalidArgument for a negative count.
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});
/// [n,n] or [n,m]: 1 on the diagonal, 0 elsewhere.
Tensor eye(std::int64_t n, const TensorOptions& options = {});
Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options = {});

/// Copies the values. The dtype is that of T by default; another one converts like raw::to. Throws
/// Shape if the number of values does not fit the shape.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, const TensorOptions& options = {});
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape,
                   const TensorOptions& options = {}) {
  return from_span(std::span<const T>(values), shape, options);
}
/// f32 (or the dtype of options), in the shape of the braces: tensor({1, 2, 3}) is [3] and
/// tensor({{1, 2}, {3, 4}}) [2,2].
Tensor tensor(const NestedNumbers& numbers, const TensorOptions& options = {});
/// Uses the caller's memory without copying; it must stay valid as long as any view lives.
template <class T>
Tensor borrow(std::span<T> memory, const Shape& shape, Device device = {});
/// The same with strides, in elements. `release()`, if given, runs when the last tensor that uses
/// the memory is gone, on the thread where that happens; it must not throw. If borrow() throws, it
/// does not run. Throws Shape if the tensor would access memory outside.
template <class T>
Tensor borrow(std::span<T> memory, const Shape& shape, const Strides& strides,
              std::function<void()> release = {}, Device device = {});
/// A view of the given storage; strides in elements. Throws Shape if it would access memory
/// outside, InvalidArgument if there is no storage.
Tensor as_strided(const intrusive_ptr<Storage>& storage, DType dtype, const Shape& shape,
                  const Strides& strides, std::int64_t offset = 0);

// Random values from the thread's generator unless one is given (rng.h says which are PyTorch's bit
// for bit).
Tensor rand(const Shape& shape, const TensorOptions& options = {}, Generator* generator = nullptr);
Tensor randn(const Shape& shape, const TensorOptions& options = {}, Generator* generator = nullptr);
Tensor uniform(const Shape& shape, double from, double to, const TensorOptions& options = {},
               Generator* generator = nullptr);
Tensor bernoulli(const Shape& shape, double p, const TensorOptions& options = {},
                 Generator* generator = nullptr);
/// Normal numbers, as torch.normal; autograd/random.h has the forms with tensors of mean and std.
/// Throws InvalidArgument for a negative std, Dtype for integers.
Tensor normal(double mean, double std, const Shape& shape, const TensorOptions& options = {},
              Generator* generator = nullptr);
/// With x's shape, dtype and device. Throw Dtype for integers.
Tensor rand_like(const Tensor& x, Generator* generator = nullptr);
Tensor randn_like(const Tensor& x, Generator* generator = nullptr);
/// Integers in [low, high), i64 by default; drawn on the host. Throws InvalidArgument unless low <
/// high, and if the dtype cannot represent one of them.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape,
               const TensorOptions& options = {}, Generator* generator = nullptr);
/// 0 to n - 1 in random order, i64 by default: PyTorch's on the CPU, drawn on the host, for any
/// device. On a GPU with its own generator, as in randperm(n, gpu, &default_generator(gpu)), it is
/// another order: the GPU sorts random keys. Throws InvalidArgument for a negative n, and if the
/// dtype cannot represent n - 1.
Tensor randperm(std::int64_t n, const TensorOptions& options = {}, Generator* generator = nullptr);

namespace raw {
/// As those of autograd/random.h, without a tape.
Tensor normal(const Tensor& mean, const Tensor& std, Generator* generator);
Tensor normal(const Tensor& mean, double std, Generator* generator);
Tensor normal(double mean, const Tensor& std, Generator* generator);
}  // namespace raw

}  // namespace weft
