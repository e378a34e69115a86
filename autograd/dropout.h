// Dropout, recorded on the tape.
#pragma once

#include <cstdint>

#include "weft/tensor/tensor.h"

namespace weft {

/// Of a tensor whose dimension `dim` is cut into `count` equal parts, which are on as many ranks,
/// part `index`. All of it is drawn, and thrown away but for the part: so ranks with equal
/// generators get what one process draws, and their generators go on as its does.
struct DrawnPart {
  std::int64_t dim = 0;  ///< a negative one counts from the end
  int index = 0, count = 1;
};

namespace raw {
/// y = 1 with probability p, else 0: as bernoulli_ for the whole of which y is a part.
const Tensor& bernoulli_(const Tensor& y, double p, const DrawnPart& part);
}  // namespace raw

/// Sets each element of x to 0 with probability p and divides the others by 1 - p. Returns x itself
/// if training is false or p is 0. The mask takes one number per element, in row-major order, from
/// the thread's generator of x's device. `part`: x is that part of the tensor which the mask is
/// for. Throws InvalidArgument for p outside [0, 1].
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true, const DrawnPart& part = {});

/// x [N,C,..]: sets each whole channel of each image to 0 with probability p and divides the others
/// by 1 - p. Otherwise as dropout. Throws Shape below 3 dimensions.
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace weft
