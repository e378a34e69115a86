// Convolution with a padding by name, recorded on the tape.
#pragma once

#include <concepts>
#include <string_view>

#include "weft/autograd/conv.h"

namespace weft {

/// conv2d(x, w, bias, "same"): with as many zeros around the image as keep its size, as torch's
/// conv2d with padding="same". Of a dimension's d (k - 1) zeros half are at each end, and an odd
/// one is at the end. "valid" is no padding. Throws InvalidArgument for another name, for "same"
/// with a stride, for a transposed convolution, and if `params` has a padding, too.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, std::string_view padding,
              Conv2dParams params, Activation then = Activation::none);
template <std::convertible_to<std::string_view> Name>
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Name& padding,
              const Conv2dParams& params = {}) {
  return conv2d(x, w, bias, std::string_view(padding), params);
}
/// The same for sequences.
Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, std::string_view padding,
              Conv1dParams params);
template <std::convertible_to<std::string_view> Name>
Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, const Name& padding,
              const Conv1dParams& params = {}) {
  return conv1d(x, w, bias, std::string_view(padding), params);
}

}  // namespace weft
