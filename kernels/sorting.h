// Sorting.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// x as an unsigned integer of its size: sorted values are those with ascending keys. A NaN, of
/// either sign, comes after all numbers, and -0 equals 0. With `descending` the order is reversed.
template <class T>
WEFT_HD auto sort_key(T x, bool descending) {
  using Key = std::conditional_t<
      sizeof(T) == 1, std::uint8_t,
      std::conditional_t<sizeof(T) == 2, std::uint16_t,
                         std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;
  constexpr Key kSign = Key(Key{1} << (8 * sizeof(T) - 1));
  Key key;
  if constexpr (is_floating(dtype_of<T>)) {
    const auto bits = std::bit_cast<Key>(x);
    const auto infinity = std::bit_cast<Key>(T(std::numeric_limits<float>::infinity()));
    const Key magnitude = bits & Key(~kSign);
    if (magnitude > infinity)
      key = Key(~Key{0});
    else  // below 0 the numbers with larger magnitudes come first
      key = bits > kSign ? Key(~bits) : magnitude | kSign;
  } else if constexpr (std::is_same_v<T, bool>) {
    key = x;
  } else {
    key = std::is_signed_v<T> ? Key(x) ^ kSign : Key(x);
  }
  return descending ? Key(~key) : key;
}

/// How many of the n ascending elements come before value, or with `right` before it or equal to
/// it. All elements come before a NaN.
template <class T>
WEFT_HD std::int64_t searched(const T* sequence, std::int64_t n, T value_, bool right) {
  using A = accumulate_t<T>;
  const A value = element_cast<A>(value_);
  std::int64_t low = 0, high = n;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const A x = element_cast<A>(sequence[middle]);
    if (x < value || (right && x == value) || value != value)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// All views are [rows, n], dense and row-major; n is positive.
/// workspace: as many bytes as the function beside it says for this call, null for none.
struct SortingKernels {
  std::size_t (*workspace_bytes)(const Stream&, const View& x);
  /// Sorts each row by sort_key; equal elements keep their order. values[r, i] = x[r, indices[r,
  /// i]], with the bits that it has in x; indices is i64. values may be empty: not wanted.
  void (*sort)(const Stream&, bool descending, const View& x, const View& values,
               const View& indices, void* workspace);
  /// y[r, i] = searched(sequence[r, ..], n, values[r, i], right), i64. sequence is [rows, n], or
  /// [1, n] for all rows; n may be 0.
  void (*search)(const Stream&, bool right, const View& sequence, const View& values,
                 const View& y);
};

}  // namespace weft
