// The windows of images as columns, and back, recorded on the tape.
#pragma once

#include <array>
#include <cstdint>

#include "weft/tensor/tensor.h"

namespace weft {

/// Numbers for height and width.
struct UnfoldParams {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> dilation{1, 1};
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> stride{1, 1};
};

/// x [N,C,H,W] -> [N,C kh kw,Lh Lw], or without N: each column is a window of x, padded with zeros,
/// as those of a convolution; Lh = (H + 2 p - d (kh - 1) - 1) / s + 1. As torch.nn.functional's
/// unfold, and im2col elsewhere; the method x.unfold(dim, size, step) takes the windows of one
/// dimension. Throws Shape for an image without channels or pixels and for a window that is larger
/// than the padded image, InvalidArgument for numbers that are not positive, and for a negative
/// padding.
Tensor unfold(const Tensor& x, const UnfoldParams& params);
/// x [N,C kh kw,Lh Lw] -> [N,C,H,W], or without N: adds each column to its window of an image of
/// zeros, of which `size` is (H, W). It is the transpose of unfold, no inverse. Throws as unfold,
/// and Shape for an x with another number of rows or columns.
Tensor fold(const Tensor& x, const std::array<std::int64_t, 2>& size, const UnfoldParams& params);

}  // namespace weft
