#include "weft/nn/pooling.h"

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"

namespace weft::nn {

namespace {

void check(const char* op, Pair kernel, Pair stride, Pair padding) {
  WEFT_CHECK(kernel.h > 0 && kernel.w > 0 && stride.h > 0 && stride.w > 0, InvalidArgument, op,
             "kernel and stride must be positive");
  WEFT_CHECK(
      padding.h >= 0 && padding.h <= kernel.h / 2 && padding.w >= 0 && padding.w <= kernel.w / 2,
      InvalidArgument, op, "padding ", padding.h, "x", padding.w,
      " must be at most half the kernel ", kernel.h, "x", kernel.w);
}

std::string describe(Pair kernel, Pair stride, Pair padding) {
  return "kernel_size=" + detail::repr(kernel) + ", stride=" + detail::repr(stride) +
         ", padding=" + detail::repr(padding);
}

std::string describe_adaptive(const char* op, Pair size) {
  WEFT_CHECK(size.h > 0 && size.w > 0, InvalidArgument, op, "size must be positive, got ", size.h,
             "x", size.w);
  return "output_size=" + detail::repr(size);
}

}  // namespace

MaxPool2d::MaxPool2d(Pair kernel, const PoolOptions& options) {
  const Pair stride = options.stride.value_or(kernel);
  check("MaxPool2d", kernel, stride, options.padding);
  WEFT_CHECK(options.dilation.h > 0 && options.dilation.w > 0, InvalidArgument, "MaxPool2d",
             "dilation must be positive");
  params_.kernel = kernel;
  params_.stride = stride;
  params_.padding = options.padding;
  params_.dilation = options.dilation;
  params_.ceil_mode = options.ceil_mode;
  set_description(describe(kernel, stride, options.padding) +
                  ", dilation=" + detail::repr(options.dilation) +
                  ", ceil_mode=" + detail::repr(options.ceil_mode));
}

AvgPool2d::AvgPool2d(Pair kernel, const AvgPoolOptions& options) {
  const Pair stride = options.stride.value_or(kernel);
  check("AvgPool2d", kernel, stride, options.padding);
  WEFT_CHECK(options.divisor != 0, InvalidArgument, "AvgPool2d", "divisor must not be 0");
  params_.kernel = kernel;
  params_.stride = stride;
  params_.padding = options.padding;
  params_.ceil_mode = options.ceil_mode;
  params_.count_include_pad = options.count_include_pad;
  params_.divisor = options.divisor.value_or(0);
  set_description(describe(kernel, stride, options.padding));
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(Pair size) : size_(size) {
  set_description(describe_adaptive("AdaptiveAvgPool2d", size));
}

AdaptiveMaxPool2d::AdaptiveMaxPool2d(Pair size) : size_(size) {
  set_description(describe_adaptive("AdaptiveMaxPool2d", size));
}

}  // namespace weft::nn
