// From bytes to floats. Internal to data/.
#pragma once

#include <cstdint>

namespace weft::data {

/// out[i] = (in[i] / 255 - mean) / std, each step rounded to f32 whatever T is (f32 or f64), as
/// torchvision's ToTensor and Normalize do it.
template <class T>
void scale_pixels(const std::uint8_t* in, T* out, std::int64_t n, float mean = 0, float std = 1);

/// Writes n points of `depth` bytes each as `depth` planes of n bytes, one after the other.
void split_channels(const std::uint8_t* in, std::uint8_t* planes, std::int64_t n, int depth);

}  // namespace weft::data
