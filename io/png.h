// PNG pictures, 8 bits per channel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::io {

/// Pixels row by row, channels interleaved.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 3;  ///< 1: grey, 3: RGB
  std::vector<std::uint8_t> pixels;
};

/// Writes through a temporary file: the old picture stays until the new one is complete. Throws
/// InvalidArgument when sizes and pixels disagree, Io when the file cannot be written.
void write_png(const std::string& path, const Image& image);

/// x u8 [H,W] (grey) or [C,H,W] with C 1 or 3, on any device.
/// Throws Dtype, Shape; Io when the file cannot be written.
void write_png(const std::string& path, const Tensor& x);

}  // namespace weft::io
