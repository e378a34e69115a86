// Dims: the inline vector for shapes, strides and lists of dimensions.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

#include "weft/core/base/compiler.h"
#include "weft/core/base/error.h"

namespace weft {

/// The most dimensions of a tensor. They are stored inline, so a shape needs no heap memory.
inline constexpr int kMaxDims = 8;

/// An integer. true and false are none.
template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool>;

/// A flag that no number becomes, as PyTorch's are: x.sum(0, 1) does not mean x.sum(0, true).
class OnlyBool {
 public:
  template <std::same_as<bool> T>
  constexpr OnlyBool(T on) : on_(on) {}
  constexpr operator bool() const { return on_; }

 private:
  bool on_;
};

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  /// One dimension, or one size: x.sum(1), x.reshape(-1).
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Dims(T value) : Dims({static_cast<std::int64_t>(value)}) {}
  /// Throws Shape when there are more than kMaxDims values.
  explicit Dims(std::span<const std::int64_t> values);
  /// Throws Shape for a count that is negative or above kMaxDims.
  static Dims filled(std::int64_t count, std::int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  [[nodiscard]] std::int64_t operator[](std::int64_t i) const { return values_[std::size_t(i)]; }
  [[nodiscard]] std::int64_t& operator[](std::int64_t i) { return values_[std::size_t(i)]; }
  std::int64_t back() const { return values_[std::size_t(size_ - 1)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* data() const { return values_.data(); }
  operator std::span<const std::int64_t>() const { return {values_.data(), std::size_t(size_)}; }

  void push_back(std::int64_t value);
  void insert(std::int64_t at, std::int64_t value);
  void erase(std::int64_t at);

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxDims> values_{};
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

/// Number of elements: the product of the sizes, 1 for the empty shape of a scalar.
std::int64_t numel(const Shape& shape);
/// Row-major strides, in elements. Throws Shape if they do not fit in 64 bits.
Strides contiguous_strides(const Shape& shape);
/// Strides of an [N,C,H,W] shape stored as N,H,W,C.
Strides channels_last_strides(const Shape& shape);
/// numpy's rule: shapes are aligned at the right, and a size of 1 stretches. Throws Shape, naming
/// op and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);

// --- Checks of user input: dimensions, and sizes that are to be added or multiplied --------------
/// Maps a dimension in [-ndim, ndim) to [0, ndim). Throws Shape.
int normalize_dim(std::int64_t dim, int ndim, const char* op);
/// Throws Shape unless no size is negative and the row-major strides fit in 64 bits. Then any
/// product of the sizes fits, too. An empty dimension counts as 1 here, so that this is also true
/// for the other dimensions.
void check_shape(const Shape& shape, const char* op);

namespace detail {
[[noreturn]] void throw_overflow(std::int64_t a, const char* sign, std::int64_t b, const char* op);
}

/// a + b. Throws Shape if it does not fit in 64 bits.
inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* op) {
  std::int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) [[unlikely]]
    detail::throw_overflow(a, " + ", b, op);
  return sum;
}
/// a * b. Throws Shape if it does not fit in 64 bits.
inline std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* op) {
  std::int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]]
    detail::throw_overflow(a, " * ", b, op);
  return product;
}
/// a / b, rounded up, for a >= 0 and b > 0. Unlike (a + b - 1) / b it cannot overflow.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

/// "[8,3,32,32]"
std::string to_string(const Dims& dims);
std::ostream& operator<<(std::ostream& out, const Dims& dims);

}  // namespace weft
