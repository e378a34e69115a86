// How many bytes the values of a file's tensor take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "weft/core/base/shape.h"

namespace weft::io::detail {

/// The bytes of a tensor of this shape whose elements have `element` bytes each; no value if they
/// are 2^63 or more. There a size of 0 counts as 1, because strides are products of the other
/// sizes, which must not overflow either.
inline std::optional<std::uint64_t> data_bytes(const Shape& shape, std::uint64_t element) {
  std::uint64_t bytes = element;
  bool overflow = false, empty = false;
  for (const std::int64_t size : shape) {
    const std::uint64_t factor = std::max<std::int64_t>(size, 1);
    overflow |= __builtin_mul_overflow(bytes, factor, &bytes);
    empty |= size == 0;
  }
  if (overflow || bytes >> 63 != 0) return std::nullopt;
  return empty ? 0 : bytes;
}

}  // namespace weft::io::detail
