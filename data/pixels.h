// Converts bytes to floats. Internal to data/.
#pragma once

#include <cstdint>

namespace weft::data {

/// out[i] = (in[i] / 255 - mean) / std, with each step rounded to f32 for both types T (f32 and
/// f64), as in torchvision's ToTensor and Normalize.
template <class T>
void scale_pixels(const std::uint8_t* in, T* out, std::int64_t n, float mean = 0, float std = 1);

/// Writes n points of `depth` bytes each as `depth` planes of n bytes, one after the other.
void split_channels(const std::uint8_t* in, std::uint8_t* planes, std::int64_t n, int depth);

}  // namespace weft::data
