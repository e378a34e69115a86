// PixelShuffle: channels become pixels.
#pragma once

#include <cstdint>

#include "weft/nn/module.h"
#include "weft/tensor/tensor.h"

namespace weft::nn {

/// x [..,C r^2,H,W] -> [..,C,H r,W r], where r is upscale_factor: each block of r x r pixels comes
/// from r^2 neighbouring channels (Shi et al., arXiv 1609.05158). As torch.nn.functional's. Throws
/// InvalidArgument for a factor below 1, Shape unless r^2 divides the channels.
Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor);
/// The inverse: x [..,C,H r,W r] -> [..,C r^2,H,W]. Throws Shape unless r divides height and width.
Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor);

/// pixel_shuffle().
class PixelShuffle : public Module<PixelShuffle> {
 public:
  explicit PixelShuffle(std::int64_t upscale_factor);
  Tensor forward(const Tensor& x) const { return pixel_shuffle(x, factor_); }

 private:
  std::int64_t factor_;
};

}  // namespace weft::nn
