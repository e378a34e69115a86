// Resizing bytes as Pillow does. Internal to data/.
#pragma once

#include "weft/data/picture.h"

namespace weft::data {

/// Makes the picture height x width with Pillow's bilinear filter (Image.resize, BILINEAR), which
/// gets wider the more the picture shrinks. The fixed-point arithmetic is the same as Pillow's, so
/// the bytes are equal.
void resample(Picture& picture, int height, int width);

}  // namespace weft::data
