// A picture on its way into a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/io/image.h"

namespace weft::data {

/// The largest picture, in bytes, that a transform makes.
inline constexpr std::int64_t kMostPictureBytes = (std::int64_t{1} << 31) - 1;

/// A picture that is being transformed: `planes` planes of height x width points with `depth` bytes
/// each. A decoded file is one plane with 3 bytes per point, a CIFAR image three planes with one.
struct Picture {
  int height = 0;
  int width = 0;
  int planes = 1;
  int depth = 3;
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t>
      spare;  ///< for the next version of the pixels, so that none is allocated

  int channels() const { return planes * depth; }
  std::size_t row_bytes() const { return std::size_t(width) * std::size_t(depth); }
  std::size_t plane_bytes() const { return row_bytes() * std::size_t(height); }

  /// Takes over an image's pixels and gives it this picture's old ones.
  void swap(io::Image& image);
  /// Swaps `pixels` and `spare`, which holds a picture of this size.
  void take_spare(int new_height, int new_width);
};

}  // namespace weft::data
