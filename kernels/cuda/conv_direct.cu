#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/conv_direct.h"
#include "weft/kernels/cuda/launch.h"

namespace weft::cuda {
namespace {

/// A view of [d0,d1,d2,d3].
struct Image {
  void* data;
  std::int64_t size[4], stride[4];

  explicit Image(const View& view) : data(view.data) {
    for (int d = 0; d < 4; ++d) {
      size[d] = view.shape[d];
      stride[d] = view.strides[d];
    }
  }
  __device__ std::int64_t at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
  }
};

struct DirectArgs {
  Image big, small, weights;  // [N,C,H,W], [N,K,Ho,Wo], [K,C/groups,R,S]
  std::int64_t stride[2], padding[2], dilation[2], groups;
  std::int64_t dtype;  // as wide as the other members, so that there is no padding

  DirectArgs(const Conv2dParams& p, const View& b, const View& s, const View& w)
      : big(b),
        small(s),
        weights(w),
        stride{p.stride[0], p.stride[1]},
        padding{p.padding[0], p.padding[1]},
        dilation{p.dilation[0], p.dilation[1]},
        groups(p.groups),
        dtype(static_cast<std::int64_t>(b.dtype)) {}

  __device__ double load(const Image& image, std::int64_t i) const {
    return AnyFloat(image.data, static_cast<DType>(dtype)).load(i);
  }
  /// The row or column of the big image that a window's tap reads; outside the image if it is
  /// padding.
  __device__ std::int64_t tapped(int axis, std::int64_t window, std::int64_t tap) const {
    return window * stride[axis] - padding[axis] + tap * dilation[axis];
  }
};

__device__ double small_element(const DirectArgs& a, std::int64_t n, std::int64_t k,
                                std::int64_t ho, std::int64_t wo) {
  const std::int64_t channels = a.weights.size[1];
  const std::int64_t first = k / (a.weights.size[0] / a.groups) * channels;
  double sum = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t r = 0; r < a.weights.size[2]; ++r) {
      const std::int64_t h = a.tapped(0, ho, r);
      if (h < 0 || h >= a.big.size[2]) continue;
      for (std::int64_t s = 0; s < a.weights.size[3]; ++s) {
        const std::int64_t w = a.tapped(1, wo, s);
        if (w < 0 || w >= a.big.size[3]) continue;
        sum += a.load(a.big, a.big.at(n, first + c, h, w)) *
               a.load(a.weights, a.weights.at(k, c, r, s));
      }
    }
  }
  return sum;
}

__device__ double big_element(const DirectArgs& a, std::int64_t n, std::int64_t c, std::int64_t h,
                              std::int64_t w) {
  const std::int64_t per_group = a.weights.size[0] / a.groups;
  const std::int64_t group = c / a.weights.size[1], channel = c % a.weights.size[1];
  double sum = 0;
  for (std::int64_t k = group * per_group; k < (group + 1) * per_group; ++k) {
    for (std::int64_t r = 0; r < a.weights.size[2]; ++r) {
      const std::int64_t from_h = h - a.tapped(0, 0, r);
      if (from_h < 0 || from_h % a.stride[0] != 0) continue;
      const std::int64_t ho = from_h / a.stride[0];
      if (ho >= a.small.size[2]) continue;
      for (std::int64_t s = 0; s < a.weights.size[3]; ++s) {
        const std::int64_t from_w = w - a.tapped(1, 0, s);
        if (from_w < 0 || from_w % a.stride[1] != 0) continue;
        const std::int64_t wo = from_w / a.stride[1];
        if (wo >= a.small.size[3]) continue;
        sum += a.load(a.small, a.small.at(n, k, ho, wo)) *
               a.load(a.weights, a.weights.at(k, channel, r, s));
      }
    }
  }
  return sum;
}

__device__ double weights_element(const DirectArgs& a, std::int64_t k, std::int64_t channel,
                                  std::int64_t r, std::int64_t s) {
  const std::int64_t c = k / (a.weights.size[0] / a.groups) * a.weights.size[1] + channel;
  double sum = 0;
  for (std::int64_t n = 0; n < a.small.size[0]; ++n) {
    for (std::int64_t ho = 0; ho < a.small.size[2]; ++ho) {
      const std::int64_t h = a.tapped(0, ho, r);
      if (h < 0 || h >= a.big.size[2]) continue;
      for (std::int64_t wo = 0; wo < a.small.size[3]; ++wo) {
        const std::int64_t w = a.tapped(1, wo, s);
        if (w < 0 || w >= a.big.size[3]) continue;
        sum += a.load(a.big, a.big.at(n, c, h, w)) * a.load(a.small, a.small.at(n, k, ho, wo));
      }
    }
  }
  return sum;
}

using Element = double (*)(const DirectArgs&, std::int64_t, std::int64_t, std::int64_t,
                           std::int64_t);

template <Element element>
__global__ void __launch_bounds__(kBlock)
    conv2d_direct_kernel(const __grid_constant__ DirectArgs args, const __grid_constant__ Image out,
                         std::int64_t n) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const std::int64_t d = i % out.size[3], rows = i / out.size[3];
    const std::int64_t c = rows % out.size[2], planes = rows / out.size[2];
    const std::int64_t b = planes % out.size[1], a = planes / out.size[1];
    AnyFloat(out.data, static_cast<DType>(args.dtype))
        .store(out.at(a, b, c, d), element(args, a, b, c, d));
  }
}

}  // namespace

void convolve_directly(const Stream& stream, ConvPass pass, const Conv2dParams& params,
                       const View& big, const View& small, const View& weights) {
  const DirectArgs args(params, big, small, weights);
  const auto run = [&](auto kernel, const View& out) {
    launch({"conv2d"}, stream, kernel, grid_blocks(out.numel()), kBlock, args, Image(out),
           out.numel());
  };
  switch (pass) {
    case ConvPass::forward: return run(conv2d_direct_kernel<small_element>, small);
    case ConvPass::backward_data: return run(conv2d_direct_kernel<big_element>, big);
    case ConvPass::backward_weights: return run(conv2d_direct_kernel<weights_element>, weights);
  }
}

}  // namespace weft::cuda
