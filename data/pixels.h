// From bytes to floats. Internal to data/.
#pragma once

#include <cstdint>

namespace weft::data {

/// out[i] = (in[i] / 255 - mean) / std, each step rounded to f32 whatever T is (f32 or f64), as
/// torchvision's ToTensor and Normalize do it.
template <class T>
void scale_pixels(const std::uint8_t* in, T* out, std::int64_t n, float mean = 0, float std = 1);

/// Planes of n bytes each, one behind the other, from n points of `depth` bytes.
void split_channels(const std::uint8_t* in, std::uint8_t* planes, std::int64_t n, int depth);

}  // namespace weft::data
