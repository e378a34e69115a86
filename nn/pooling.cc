#include "weft/nn/pooling.h"

#include "weft/autograd/copies.h"
#include "weft/autograd/indexing.h"
#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

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

Pool2dParams params_of(const char* op, Pair kernel, const PoolOptions& options) {
  const Pair stride = options.stride.value_or(kernel);
  check(op, kernel, stride, options.padding);
  WEFT_CHECK(options.dilation.h > 0 && options.dilation.w > 0, InvalidArgument, op,
             "dilation must be positive");
  return {.kernel = kernel,
          .stride = stride,
          .padding = options.padding,
          .dilation = options.dilation,
          .ceil_mode = options.ceil_mode};
}

std::string describe(Pair kernel, const PoolOptions& options) {
  return describe(kernel, options.stride.value_or(kernel), options.padding) +
         ", dilation=" + detail::repr(options.dilation) +
         ", ceil_mode=" + detail::repr(options.ceil_mode);
}

// Whether MaxPool2d with this stride could give the same output size for `size` pixels as for
// `usual`.
bool could_be(std::int64_t size, std::int64_t usual, std::int64_t stride) {
  return size > 0 && usual > 0 && (size > usual ? size - usual : usual - size) < stride;
}

}  // namespace

MaxPool2d::MaxPool2d(Pair kernel, const PoolOptions& options)
    : params_(params_of("MaxPool2d", kernel, options)) {
  set_description(describe(kernel, options));
}

MaxPool2dWithIndices::MaxPool2dWithIndices(Pair kernel, const PoolOptions& options)
    : params_(params_of("MaxPool2dWithIndices", kernel, options)) {
  set_description(describe(kernel, options));
}

Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Pair size) {
  const char* op = "max_unpool2d";
  WEFT_CHECK(x.dim() == 3 || x.dim() == 4, Shape, op, "input: got ", x.shape(),
             ", expected [N,C,H,W] or [C,H,W]");
  WEFT_CHECK(x.shape() == indices.shape(), Shape, op, "indices: got ", indices.shape(),
             ", the input is ", x.shape());
  WEFT_CHECK(size.h > 0 && size.w > 0, InvalidArgument, op, "size must be positive, got ", size.h,
             "x", size.w);
  Shape shape = x.shape(), rows = x.shape();
  shape[x.dim() - 2] = size.h;
  shape[x.dim() - 1] = size.w;
  rows.erase(x.dim() - 1);
  rows[x.dim() - 2] = checked_mul(size.h, size.w, op);
  const Tensor image = zeros(rows, {x.dtype(), x.device()});
  return scatter(image, -1, indices.flatten(-2), x.flatten(-2)).reshape(shape);
}

MaxUnpool2d::MaxUnpool2d(Pair kernel, const UnpoolOptions& options)
    : kernel_(kernel), stride_(options.stride.value_or(kernel)), padding_(options.padding) {
  check("MaxUnpool2d", kernel, stride_, padding_);
  const auto pair = [](Pair p) { return weft::detail::concat("(", p.h, ", ", p.w, ")"); };
  set_description("kernel_size=" + pair(kernel_) + ", stride=" + pair(stride_) +
                  ", padding=" + pair(padding_));
}

Tensor MaxUnpool2d::forward(const Tensor& x, const Tensor& indices,
                            std::optional<Pair> size) const {
  WEFT_CHECK(x.dim() == 3 || x.dim() == 4, Shape, "MaxUnpool2d", "input: got ", x.shape(),
             ", expected [N,C,H,W] or [C,H,W]");
  const auto pooled_from = [](std::int64_t n, std::int64_t stride, std::int64_t padding,
                              std::int64_t kernel) {
    const std::int64_t windows = checked_mul(n - 1, stride, "MaxUnpool2d");
    return checked_add(windows, kernel - 2 * padding, "MaxUnpool2d");
  };
  const Pair usual(pooled_from(x.shape(-2), stride_.h, padding_.h, kernel_.h),
                   pooled_from(x.shape(-1), stride_.w, padding_.w, kernel_.w));
  WEFT_CHECK(
      !size || (could_be(size->h, usual.h, stride_.h) && could_be(size->w, usual.w, stride_.w)),
      InvalidArgument, "MaxUnpool2d", "size: got ", size->h, "x", size->w,
      ", expected less than a stride more or less than ", usual.h, "x", usual.w);
  return max_unpool2d(x, indices, size.value_or(usual));
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
