// Dims: the inline vector that shapes, strides and dimension lists are made of.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

namespace weft {

/// Most dimensions a tensor may have. Inline storage: a shape never touches the heap.
inline constexpr int kMaxDims = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  /// Throws Shape when there are more than kMaxDims values.
  explicit Dims(std::span<const std::int64_t> values);
  static Dims filled(int count, std::int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](int i) const { return values_[i]; }
  std::int64_t& operator[](int i) { return values_[i]; }
  std::int64_t back() const { return values_[size_ - 1]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* data() const { return values_.data(); }
  operator std::span<const std::int64_t>() const { return {values_.data(), std::size_t(size_)}; }

  void push_back(std::int64_t value);
  void insert(int at, std::int64_t value);
  void erase(int at);

  friend bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  std::array<std::int64_t, kMaxDims> values_{};
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

/// Number of elements: the product, 1 for a scalar's empty shape.
std::int64_t numel(const Shape& shape);
/// Row-major strides, in elements.
Strides contiguous_strides(const Shape& shape);
/// Strides of an [N,C,H,W] shape stored as N,H,W,C.
Strides channels_last_strides(const Shape& shape);
/// numpy's rule: align right, 1 stretches. Throws Shape, naming op and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);
/// Maps a dimension in [-ndim, ndim) to [0, ndim). Throws Shape.
int normalize_dim(int dim, int ndim, const char* op);

/// "[8,3,32,32]"
std::string to_string(const Dims& dims);
std::ostream& operator<<(std::ostream& out, const Dims& dims);

}  // namespace weft
