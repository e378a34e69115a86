#include "weft/nn/pooling.h"

#include "weft/core/error.h"

namespace weft::nn {

MaxPool2d::MaxPool2d(Pair kernel, const PoolOptions& options) {
  const Pair stride = options.stride.value_or(kernel);
  WEFT_CHECK(kernel.h > 0 && kernel.w > 0 && stride.h > 0 && stride.w > 0 &&
                 options.dilation.h > 0 && options.dilation.w > 0,
             InvalidArgument, "MaxPool2d", "kernel, stride and dilation must be positive");
  WEFT_CHECK(options.padding.h >= 0 && 2 * options.padding.h <= kernel.h &&
                 options.padding.w >= 0 && 2 * options.padding.w <= kernel.w,
             InvalidArgument, "MaxPool2d", "padding ", options.padding.h, "x", options.padding.w,
             " must be at most half the kernel ", kernel.h, "x", kernel.w);
  params_.kernel = kernel;
  params_.stride = stride;
  params_.padding = options.padding;
  params_.dilation = options.dilation;
  params_.ceil_mode = options.ceil_mode;
  const auto pair = [](Pair p) {
    return p.h == p.w ? std::to_string(p.h) : weft::detail::concat("(", p.h, ", ", p.w, ")");
  };
  set_description("kernel_size=" + pair(kernel) + ", stride=" + pair(stride) +
                  ", padding=" + pair(options.padding) + ", dilation=" + pair(options.dilation) +
                  ", ceil_mode=" + (options.ceil_mode ? "True" : "False"));
}

}  // namespace weft::nn
