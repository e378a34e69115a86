// The images that a run writes.
#pragma once

#include "weft/io/image.h"
#include "weft/tensor/tensor.h"

namespace weft::train {

/// Three rows for the first `count` examples: input, code as a strip of coloured cells (dark to
/// bright from the smallest to the largest value of all shown), reconstruction.
/// inputs, outputs [N,1,H,W] with values 0 to 1; codes [N,C]; any device, any floating dtype.
/// Throws Shape if the shapes do not fit together.
io::Image compare_picture(const Tensor& inputs, const Tensor& codes, const Tensor& outputs,
                          int count = 5);

/// Images side by side, `columns` in a row, in the order they come, as torchvision's make_grid.
/// images [N,C,H,W] with values 0 to 1, C = 1 (grey) or 3; any device, any floating dtype. Small
/// images are enlarged by a whole factor. Throws Shape for other shapes and for no images,
/// InvalidArgument for less than one column.
io::Image image_grid(const Tensor& images, int columns = 8);

}  // namespace weft::train
