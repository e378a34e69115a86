// JPEG pictures, read with libjpeg-turbo.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weft/io/image.h"

namespace weft::io {

/// Decodes a JPEG, baseline or progressive -> RGB, with the pixels of Pillow's
/// Image.open(f).convert("RGB"): grey is repeated, CMYK is read as Adobe writes it and converted
/// without a colour profile, an EXIF orientation is ignored.
///
/// Before anything is allocated, the header's size is compared with the limit and with the largest
/// picture that this number of bytes can contain. Where libjpeg would invent pixels for missing or
/// damaged data, this throws; stray bytes between segments, which cameras write, are skipped.
/// Throws Io naming the file and what is wrong; Unsupported for arithmetic coding and for more than
/// 8 bits.
Image parse_jpeg(std::span<const std::byte> bytes, const ImageOptions& options = {},
                 const std::string& name = "jpeg data");

}  // namespace weft::io
