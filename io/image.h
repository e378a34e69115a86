// Pictures in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::io {

/// Pixels row by row, channels interleaved.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 3;  ///< 1: grey, 3: RGB
  std::vector<std::uint8_t> pixels;
};

struct ImageOptions {
  /// A picture is refused if decoding needs more memory than this, pixels included; so is a file
  /// with more bytes than this.
  std::uint64_t max_bytes = std::uint64_t{224} << 20;
};

}  // namespace weft::io
