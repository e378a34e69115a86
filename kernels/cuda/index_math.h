// From a linear position to the element offsets in several strided views. Dimensions are sorted by
// the strides of the first view and merged where all views allow it, so one or two remain in most
// calls. For host and device. It includes no CUDA header, so that all of it is tested on the host.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "weft/core/base/dtype.h"
#include "weft/core/base/shape.h"

namespace weft::cuda {

// Up to this number of elements, a linear position fits in 32 bits, and FastDivider is exact.
inline constexpr std::int64_t kMaxSmall = std::numeric_limits<std::int32_t>::max();

// Larger views are cut at multiples of this, so that both halves of a dense view are as aligned as
// the whole one: 16 elements are at least 16 bytes.
inline constexpr std::int64_t kPartMultiple = 16;

/// Division by a divisor that is fixed at run time: a multiplication instead of about 20
/// instructions. Exact for n and divisor in [1, 2^31) (Granlund and Montgomery 1994, with a 33-bit
/// multiplier).
struct FastDivider {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 1;
  std::uint32_t shift = 0;

  FastDivider() = default;
  explicit FastDivider(std::uint32_t d) : divisor(d) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    const std::uint64_t two32 = std::uint64_t{1} << 32;
    multiplier = static_cast<std::uint32_t>(two32 * ((std::uint64_t{1} << shift) - d) / d + 1);
  }

  WEFT_HD std::uint32_t div(std::uint32_t n) const {
    const auto high =
        static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * multiplier) >> 32);
    return (high + n) >> shift;  // high <= n < 2^31: the sum does not overflow
  }
};

/// The offsets of an element in N views, in elements.
template <int N>
struct OffsetArray {
  std::int64_t at[N];
};

/// The common iteration space of N views of one shape. Dimension 0 is the innermost one.
template <int N>
struct IndexSpace {
  using Row = std::array<std::int64_t, N>;  // one number per view

  int ndim = 0;
  std::array<std::int64_t, kMaxDims> size{};
  std::array<Row, kMaxDims> stride{};

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= size[d];
    return n;
  }

  /// Whether the elements of view `operand` are visited one after the other, without gaps.
  bool dense(int operand) const { return ndim == 0 || (ndim == 1 && stride[0][operand] == 1); }

  void add_outer(std::int64_t length, const Row& strides) {
    size[ndim] = length;
    stride[ndim] = strides;
    ++ndim;
  }

  /// Sorts the dimensions by the strides of the first view, the smallest innermost. Where they are
  /// equal (broadcast dimensions of the first view), the next view decides.
  void sort() {
    const auto closer = [this](int a, int b) {
      for (int k = 0; k < N; ++k) {
        const std::int64_t left = std::abs(stride[a][k]), right = std::abs(stride[b][k]);
        if (left != right) return left < right;
      }
      return false;
    };
    for (int i = 1; i < ndim; ++i) {
      for (int j = i; j > 0 && closer(j, j - 1); --j) {
        std::swap(size[j], size[j - 1]);
        std::swap(stride[j], stride[j - 1]);
      }
    }
  }

  /// Joins neighbouring dimensions that are regular in every view, so that one dimension can
  /// replace them.
  void merge() {
    int kept = 0;
    for (int d = 1; d < ndim; ++d) {
      bool joins = true;
      for (int k = 0; k < N; ++k) joins &= stride[d][k] == stride[kept][k] * size[kept];
      if (joins) {
        size[kept] *= size[d];
      } else {
        ++kept;
        size[kept] = size[d];
        stride[kept] = stride[d];
      }
    }
    ndim = std::min(ndim, kept + 1);
  }
};

/// The iteration space of views of `shape` with the given strides, sorted and merged. Dimensions of
/// length 1 are dropped.
template <int N>
IndexSpace<N> index_space(const Shape& shape, const std::array<const Strides*, N>& strides) {
  IndexSpace<N> space;
  for (int d = shape.size() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    typename IndexSpace<N>::Row row;
    for (int k = 0; k < N; ++k) row[k] = (*strides[k])[d];
    space.add_outer(shape[d], row);
  }
  space.sort();
  space.merge();
  return space;
}

/// Calls f(part, base) for parts of the space with at most `limit` elements each. base[k] is the
/// offset in view k at which the part begins. Only giant spaces have more than one part.
template <int N, class F>
void for_each_part(const IndexSpace<N>& space, F&& f, std::int64_t limit = kMaxSmall,
                   const typename IndexSpace<N>::Row& base = {}) {
  if (space.numel() <= limit) {
    f(space, base);
    return;
  }
  int longest = 0;
  for (int d = 1; d < space.ndim; ++d) {
    if (space.size[d] > space.size[longest]) longest = d;
  }
  IndexSpace<N> low = space, high = space;
  std::int64_t half = space.size[longest] / 2;
  if (half > kPartMultiple) half -= half % kPartMultiple;
  low.size[longest] = half;
  high.size[longest] = space.size[longest] - low.size[longest];
  typename IndexSpace<N>::Row high_base = base;
  for (int k = 0; k < N; ++k) high_base[k] += half * space.stride[longest][k];
  for_each_part(low, f, limit, base);
  for_each_part(high, f, limit, high_base);
}

/// An IndexSpace with its divisions prepared, for kernels. Passed by value in the kernel parameters
/// (about 400 bytes for N = 4).
template <int N>
struct Offsets {
  int ndim = 0;
  bool small = true;  // the whole space has at most kMaxSmall elements
  FastDivider divider[kMaxDims];
  std::int64_t size[kMaxDims] = {};
  std::int64_t stride[kMaxDims][N] = {};

  Offsets() = default;
  explicit Offsets(const IndexSpace<N>& space)
      : ndim(space.ndim), small(space.numel() <= kMaxSmall) {
    // In an empty space a length may be 0, or more than 32 bits; offsets of its elements are never
    // used.
    const bool divides = small && space.numel() > 0;
    for (int d = 0; d < ndim; ++d) {
      size[d] = space.size[d];
      if (divides) divider[d] = FastDivider(static_cast<std::uint32_t>(size[d]));
      for (int k = 0; k < N; ++k) stride[d][k] = space.stride[d][k];
    }
  }

  /// For spaces that are small.
  WEFT_HD OffsetArray<N> at(std::uint32_t linear) const {
    OffsetArray<N> out{};
    for (int d = 0; d < ndim; ++d) {
      std::uint32_t coordinate = linear;
      if (d + 1 < ndim) {
        const std::uint32_t rest = divider[d].div(linear);
        coordinate = linear - rest * divider[d].divisor;
        linear = rest;
      }
      for (int k = 0; k < N; ++k) out.at[k] += std::int64_t{coordinate} * stride[d][k];
    }
    return out;
  }

  /// For spaces of any size; the branch is the same for all threads.
  WEFT_HD OffsetArray<N> at_any(std::int64_t linear) const {
    if (small) return at(static_cast<std::uint32_t>(linear));
    OffsetArray<N> out{};
    for (int d = 0; d < ndim; ++d) {
      std::int64_t coordinate = linear;
      if (d + 1 < ndim) {
        const std::int64_t rest = linear / size[d];
        coordinate = linear - rest * size[d];
        linear = rest;
      }
      for (int k = 0; k < N; ++k) out.at[k] += coordinate * stride[d][k];
    }
    return out;
  }
};

}  // namespace weft::cuda
