// PNG pictures: writes 8 bits per channel, reads all kinds.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weft/io/image.h"
#include "weft/tensor/tensor.h"

namespace weft::io {

/// Decodes a PNG of any kind -> RGB, with the pixels of Pillow's Image.open(f).convert("RGB"):
/// palettes are looked up, grey is repeated and widened to 8 bits, 16-bit values lose their lower
/// half (where Pillow clips 16-bit grey), alpha is dropped, gamma and colour profiles are ignored.
///
/// Before anything is allocated, the header's size is compared with the limit and with the largest
/// size to which this number of bytes can inflate. Checksums are verified.
/// Throws Io naming the file and what is wrong.
Image parse_png(std::span<const std::byte> bytes, const ImageOptions& options = {},
                const std::string& name = "png data");

/// Writes through a temporary file: the old picture stays until the new one is complete. Throws
/// InvalidArgument if sizes and pixels do not fit, Io if the file cannot be written.
void write_png(const std::string& path, const Image& image);

/// x u8 [H,W] (grey) or [C,H,W] with C 1 or 3, on any device. Throws Dtype, Shape; Io if the file
/// cannot be written.
void write_png(const std::string& path, const Tensor& x);

}  // namespace weft::io
