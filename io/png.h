// PNG pictures: writing them with 8 bits per channel, reading all kinds.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weft/io/image.h"
#include "weft/tensor/tensor.h"

namespace weft::io {

/// Decodes a PNG of any kind -> RGB, the pixels of Pillow's Image.open(f).convert("RGB"): palettes
/// are looked up, grey is repeated and widened to 8 bits, 16 bits lose their lower half (where
/// Pillow clips 16-bit grey), alpha is dropped, gamma and colour profiles are ignored.
///
/// Before anything is allocated, the header's size is compared with the limit and with what so many
/// bytes can inflate to. Checksums are verified.
/// Throws Io naming the file and what is wrong.
Image parse_png(std::span<const std::byte> bytes, const ImageOptions& options = {},
                const std::string& name = "png data");

/// Writes through a temporary file: the old picture stays until the new one is complete. Throws
/// InvalidArgument when sizes and pixels disagree, Io when the file cannot be written.
void write_png(const std::string& path, const Image& image);

/// x u8 [H,W] (grey) or [C,H,W] with C 1 or 3, on any device.
/// Throws Dtype, Shape; Io when the file cannot be written.
void write_png(const std::string& path, const Tensor& x);

}  // namespace weft::io
