// Resizing bytes as Pillow does. Internal to data/.
#pragma once

#include "weft/data/transforms.h"

namespace weft::data {

/// Makes the picture height x width with Pillow's bilinear filter (Image.resize, BILINEAR), whose
/// width grows as the picture shrinks. The same fixed-point arithmetic, so the same bytes.
void resample(Picture& picture, int height, int width);

}  // namespace weft::data
