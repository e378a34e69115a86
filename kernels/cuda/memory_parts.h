// One piece of device memory for several arrays.
#pragma once

#include <cstddef>

namespace weft::cuda {

/// add() says where each array begins, as aligned as memory of cudaMalloc; all together they take
/// `bytes`.
struct MemoryParts {
  std::size_t bytes = 0;
  std::size_t add(std::size_t of_array) {
    const std::size_t begin = rounded(bytes);
    bytes = begin + of_array;
    return begin;
  }
  static std::size_t rounded(std::size_t end) { return (end + 255) / 256 * 256; }
};

}  // namespace weft::cuda
