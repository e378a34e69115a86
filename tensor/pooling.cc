#include <array>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

constexpr const char* kName = "max_pool2d";

Shape output_shape(const Shape& x, const Pool2dParams& p) {
  WEFT_CHECK(x.size() == 4, Shape, kName, "input: got ", x, ", expected [N,C,H,W]");
  Shape y = x;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t kernel = p.kernel[i], stride = p.stride[i], pad = p.padding[i];
    WEFT_CHECK(kernel >= 1 && stride >= 1 && p.dilation[i] >= 1 && pad >= 0, InvalidArgument, kName,
               "got kernel ", kernel, ", stride ", stride, ", dilation ", p.dilation[i],
               ", padding ", pad);
    const std::int64_t reach = p.dilation[i] * (kernel - 1);
    WEFT_CHECK(2 * pad <= reach + 1, InvalidArgument, kName, "padding ", pad,
               " is more than half of the window, ", reach + 1);
    const std::int64_t room = x[2 + i] + 2 * pad - reach - 1;
    WEFT_CHECK(room >= 0, Shape, kName, "window: ", reach + 1, " is larger than the input, ",
               x[2 + i], " padded by ", pad, " on both sides (x ", x, ")");
    std::int64_t n = room / stride + 1;
    // A last, partial window counts unless it would begin in the padding behind the input.
    if (p.ceil_mode && room % stride != 0 && n * stride < x[2 + i] + pad) ++n;
    y[2 + i] = n;
  }
  return y;
}

}  // namespace

std::pair<Tensor, Tensor> max_pool2d(const Tensor& x, const Pool2dParams& params) {
  const Span span("op", kName);
  check_floating(kName, "x", x);
  const Shape shape = output_shape(x.shape(), params);
  const Device device = x.device();
  const auto run =
      kernel(device, &KernelTable::pooling, &PoolingKernels::max_pool2d, kName, x.dtype());
  const Tensor image = in_image_format(x);
  const MemoryFormat format = format_of(image);
  Tensor y = allocate(shape, format, x.dtype(), device);
  Tensor index = allocate(shape, format, DType::i32, device);
  if (y.numel() > 0) {
    run(current_stream(device), params, formatted_view(image, format), y.view_of(),
        index.view_of());
  }
  return {std::move(y), std::move(index)};
}

Tensor max_pool2d_backward(const Tensor& grad_y, const Tensor& index, const Shape& x_shape,
                           const Pool2dParams& params) {
  const Span span("op", kName);
  check_same_device(kName, "gradient", grad_y, "index", index);
  check_floating(kName, "the gradient", grad_y);
  const Shape expected = output_shape(x_shape, params);
  WEFT_CHECK(index.dtype() == DType::i32 && index.shape() == expected, InvalidArgument, kName,
             "index: got ", index.dtype(), " ", index.shape(), ", expected i32 ", expected);
  WEFT_CHECK(grad_y.shape() == expected, Shape, kName, "gradient: got ", grad_y.shape(),
             ", the output is ", expected);
  const Device device = grad_y.device();
  const auto run = kernel(device, &KernelTable::pooling, &PoolingKernels::max_pool2d_backward,
                          kName, grad_y.dtype());
  const Tensor positions = in_image_format(index);
  const MemoryFormat format = format_of(positions);
  const Tensor gradient = contiguous(grad_y, format);
  Tensor grad_x = allocate(x_shape, format, grad_y.dtype(), device);
  if (grad_x.numel() == 0) return grad_x;
  run(current_stream(device), params, formatted_view(gradient, format),
      formatted_view(positions, format), grad_x.view_of());
  return grad_x;
}

}  // namespace weft::raw
