// Pictures in memory, and reading them from the formats that weft supports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
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
  /// A picture is refused if decoding needs more memory than this, its pixels included; so is a
  /// file of more bytes than this.
  std::uint64_t max_bytes = std::uint64_t{224} << 20;
};

/// Reads a JPEG or PNG file, as its first bytes say; always RGB (io/jpeg.h, io/png.h).
/// Throws Io naming the file and what is wrong, also for any other format.
Image read_image(const std::string& path, const ImageOptions& options = {});

/// The same for bytes in memory; `name` stands in for the file in messages.
Image parse_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                  const std::string& name = "image data");

}  // namespace weft::io
