// A convolution as both backends see it.
#pragma once

#include <algorithm>
#include <string>

#include "weft/core/base/error.h"
#include "weft/kernels/conv.h"

namespace weft {

/// The images of a convolution. x is the small one if it is transposed, else the big one.
inline const View& big_of(const Conv2dArgs& args) {
  return args.params.transposed ? args.y : args.x;
}
inline const View& small_of(const Conv2dArgs& args) {
  return args.params.transposed ? args.x : args.y;
}

/// A transposed convolution's pass, named by what it does to the big and the small image: its
/// forward is backward_data, and the other way round.
inline ConvPass transposed_pass(ConvPass pass) {
  if (pass == ConvPass::backward_weights) return pass;
  return pass == ConvPass::forward ? ConvPass::backward_data : ConvPass::forward;
}

/// A convolution between a big image [images,c,h,w] and a small one [images,k,ho,wo] through
/// weights [k,c/groups,r,s], also a transposed one: its weights [C,K/groups,R,S] already have the
/// channels of the small image first.
struct ConvProblem : Conv2dParams {
  /// forward: big, weights -> small. backward_data: small, weights -> big. backward_weights: both
  /// images -> weights.
  ConvPass pass;
  DType dtype;
  bool bias;  ///< a bias must be added, or its gradient computed
  std::int64_t images, c, h, w, k, ho, wo, r, s;

  explicit ConvProblem(const Conv2dArgs& args)
      : Conv2dParams(args.params),
        pass(transposed ? transposed_pass(args.pass) : args.pass),
        dtype(args.w.dtype),
        bias(args.pass != ConvPass::backward_data && bool(args.bias)),
        images(args.x.shape[0]),
        c(big_of(args).shape[1]),
        h(big_of(args).shape[2]),
        w(big_of(args).shape[3]),
        k(small_of(args).shape[1]),
        ho(small_of(args).shape[2]),
        wo(small_of(args).shape[3]),
        r(args.w.shape[2]),
        s(args.w.shape[3]) {}

  Shape big() const { return {images, c, h, w}; }
  Shape small() const { return {images, k, ho, wo}; }
  Shape weights() const { return {k, c / groups, r, s}; }
  /// Whether an image or the weights have no elements.
  bool empty() const { return std::min({images, c, h, w, k, ho, wo, r, s}) == 0; }
  bool writes_big() const { return pass == ConvPass::backward_data; }
  bool writes_small() const { return pass == ConvPass::forward; }
  bool writes_weights() const { return pass == ConvPass::backward_weights; }
  /// For messages; with the pass that was asked for.
  std::string text() const {
    static constexpr const char* kPasses[] = {"forward", "backward_data", "backward_weights"};
    return detail::concat(kPasses[int(transposed ? transposed_pass(pass) : pass)],
                          transposed ? " (transposed)" : "", ": big ", to_string(big()), ", small ",
                          to_string(small()), ", kernel [", r, ",", s, "], stride [", stride[0],
                          ",", stride[1], "], padding [", padding[0], ",", padding[1],
                          "], dilation [", dilation[0], ",", dilation[1], "], groups ", groups,
                          ", ", to_string(dtype));
  }
};

}  // namespace weft
