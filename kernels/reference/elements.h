// The tools of the definitions: the elements of views by their coordinates.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "weft/kernels/backend.h"
#include "weft/kernels/view.h"

namespace weft::reference {

/// Floating values are computed in f64, integers in i64.
template <class T>
using value_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

/// The elements of a view with dtype T: x(n, c, h, w) reads one, x.set(value, n, c, h, w) rounds to
/// T and writes. Coordinates may also be given as a Dims. An empty view converts to false.
template <class T>
class Elements {
 public:
  explicit Elements(const View& view) : data_(view.as<T>()), strides_(view.strides) {}
  explicit operator bool() const { return data_ != nullptr; }

  template <class... At>
  value_t<T> operator()(const At&... at) const {
    return element_cast<value_t<T>>(data_[offset(at...)]);
  }
  template <class... At>
  void set(value_t<T> value, const At&... at) const {
    data_[offset(at...)] = element_cast<T>(value);
  }
  template <class... At>
  void add(value_t<T> value, const At&... at) const {
    set((*this)(at...) + value, at...);
  }
  /// The element itself.
  T& operator[](const Dims& at) const { return data_[offset(at)]; }

 private:
  std::int64_t offset(const Dims& at) const {
    std::int64_t sum = 0;
    for (int d = 0; d < at.size(); ++d) sum += at[d] * strides_[d];
    return sum;
  }
  template <std::integral... At>
  std::int64_t offset(At... at) const {
    std::int64_t sum = 0;
    int d = 0;
    ((sum += at * strides_[d++]), ...);
    return sum;
  }

  T* data_;
  Strides strides_;
};

/// f64 sums for the elements of a tensor of this shape, 0 at first.
class Sums {
 public:
  explicit Sums(const Shape& shape)
      : memory_(static_cast<std::size_t>(numel(shape))),
        elements_({memory_.data(), DType::f64, shape, contiguous_strides(shape)}) {}

  template <class... At>
  double operator()(const At&... at) const {
    return elements_(at...);
  }
  template <class... At>
  void add(double value, const At&... at) {
    elements_.add(value, at...);
  }

 private:
  std::vector<double> memory_;
  Elements<double> elements_;
};

/// Calls f(coordinates) for each position of a shape, in row-major order.
template <class F>
void for_each_position(const Shape& shape, F&& f) {
  Dims at = Dims::filled(shape.size(), 0);
  for (std::int64_t left = numel(shape); left > 0; --left) {
    f(at);
    for (int d = shape.size() - 1; d >= 0; --d) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

/// Mean and sum of squared deviations of the values that for_each_value(f) calls f with.
struct Moments {
  double n = 0, mean = 0, squares = 0;

  template <class Values>
  explicit Moments(Values&& for_each_value) {
    double sum = 0, rest = 0;
    for_each_value([&](double x) {
      sum += x;
      ++n;
    });
    // Subtracting a first guess keeps the digits that a large mean would cost.
    const double guess = std::isfinite(sum / n) ? sum / n : 0;
    for_each_value([&](double x) { rest += x - guess; });
    mean = guess + rest / n;
    for_each_value([&](double x) { squares += (x - mean) * (x - mean); });
  }
};

inline void require_floating(const char* op, const Stream& stream, DType dtype) {
  if (!is_floating(dtype)) throw_unsupported(op, stream.device, dtype);
}

/// Calls f.operator()<T>() for the floating dtypes; throws Unsupported for the others.
template <class F>
void for_floating(const char* op, const Stream& stream, DType dtype, F&& f) {
  require_floating(op, stream, dtype);
  dispatch_floating(dtype, op, f);
}

}  // namespace weft::reference
