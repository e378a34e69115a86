// Images and sequences of another size, recorded on the tape.
#pragma once

#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

struct InterpolateOptions {
  Dims size{};                         ///< of the result: {height, width}, or one for both
  std::vector<double> scale_factor{};  ///< instead of size: Ho = floor(H scale_factor)
  std::string mode = "nearest";        ///< or "bilinear" for images, "linear" for sequences
  /// Linear and bilinear only. true: the centres of the corner pixels keep their places; false: the
  /// outer corners of these pixels do.
  bool align_corners = false;
};

/// Images x [N,C,H,W] -> [N,C,Ho,Wo], or sequences x [N,C,L] -> [N,C,Lo], as
/// torch.nn.functional.interpolate, with scale = scale_factor or Ho / H. nearest: pixel i of the
/// result is pixel floor(i / scale) of x. bilinear: it is the weighted mean of the four pixels
/// around (i + 1/2) / scale - 1/2, or around i (H - 1) / (Ho - 1) with align_corners; linear: that
/// of the two. u8 is computed in f32 and rounded after each dimension. Throws Shape, Dtype,
/// and InvalidArgument unless exactly one of size and scale_factor is given and the sides of the
/// result have 1 to kMaxPixels.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

}  // namespace weft
