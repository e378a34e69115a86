// Reads pictures of the formats that weft supports.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weft/io/image.h"

namespace weft::io {

/// Reads a JPEG or PNG file, according to its first bytes; always RGB (io/jpeg.h, io/png.h). Throws
/// Io naming the file and what is wrong, also for any other format.
Image read_image(const std::string& path, const ImageOptions& options = {});

/// The same for bytes in memory; `name` replaces the file's name in messages.
Image parse_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                  const std::string& name = "image data");

}  // namespace weft::io
