#include <array>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

// The positions at which windows of `kernel` points, `dilation` apart, fit into an image.
struct Windows {
  const char* op;
  std::array<std::int64_t, 2> kernel, stride, padding, dilation;
  bool ceil_mode;
};

Windows windows_of(const Pool2dParams& p) {
  return {"max_pool2d", p.kernel, p.stride, p.padding, p.dilation, p.ceil_mode};
}
Windows windows_of(const AvgPool2dParams& p) {
  return {"avg_pool2d", p.kernel, p.stride, p.padding, {1, 1}, p.ceil_mode};
}

Shape output_shape(const Shape& x, const Windows& p) {
  WEFT_CHECK(x.size() == 4, Shape, p.op, "input: got ", x, ", expected [N,C,H,W]");
  check_pair(p.op, "kernel", p.kernel, 1);
  check_pair(p.op, "stride", p.stride, 1);
  check_pair(p.op, "padding", p.padding, 0);
  check_pair(p.op, "dilation", p.dilation, 1);
  check_images(p.op, x, p.padding);
  Shape y = x;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t stride = p.stride[i], pad = p.padding[i];
    const std::int64_t reach = p.dilation[i] * (p.kernel[i] - 1);
    WEFT_CHECK(2 * pad <= reach + 1, InvalidArgument, p.op, "padding ", pad,
               " is more than half of the window, ", reach + 1);
    // With ceil_mode a partial window at the end counts, even if it is the only one, unless it
    // would begin in the padding after the input.
    const std::int64_t room = x[2 + i] + 2 * pad - reach - 1 + (p.ceil_mode ? stride - 1 : 0);
    std::int64_t n = room >= 0 ? room / stride + 1 : 0;
    if (p.ceil_mode && (n - 1) * stride >= x[2 + i] + pad) --n;
    WEFT_CHECK(n > 0, Shape, p.op, "window: ", reach + 1, " is larger than the input, ", x[2 + i],
               " padded by ", pad, " on both sides (x ", x, ")");
    y[2 + i] = n;
  }
  return y;
}

}  // namespace

namespace {

void check_adaptive(const char* op, const Shape& x, const std::array<std::int64_t, 2>& size) {
  WEFT_CHECK(x.size() == 4, Shape, op, "input: got ", x, ", expected [N,C,H,W]");
  WEFT_CHECK(x[2] > 0 && x[3] > 0, Shape, op, "input: got ", x, ", which has no pixels");
  WEFT_CHECK(size[0] >= 0 && size[1] >= 0, InvalidArgument, op, "size: got ", size[0], "x",
             size[1]);
  check_images(op, x);
  check_images(op, {x[0], x[1], size[0], size[1]});
}

const char* name_of(const Pool2dParams& params) {
  return params.adaptive ? "adaptive_max_pool2d" : "max_pool2d";
}

// For both kinds of max pooling; `shape` is the output's.
std::pair<Tensor, Tensor> largest(const Tensor& x, const Shape& shape, const Pool2dParams& params) {
  const char* op = name_of(params);
  const Span span("op", op);
  const Device device = x.device();
  const auto run =
      kernel(device, &KernelTable::pooling, &PoolingKernels::max_pool2d, op, x.dtype());
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

}  // namespace

std::pair<Tensor, Tensor> max_pool2d(const Tensor& x, const Pool2dParams& params) {
  check_floating("max_pool2d", "x", x);
  return largest(x, output_shape(x.shape(), windows_of(params)), params);
}

std::pair<Tensor, Tensor> adaptive_max_pool2d(const Tensor& x,
                                              const std::array<std::int64_t, 2>& size) {
  check_floating("adaptive_max_pool2d", "x", x);
  check_adaptive("adaptive_max_pool2d", x.shape(), size);
  return largest(x, {x.shape()[0], x.shape()[1], size[0], size[1]}, {.adaptive = true});
}

Tensor max_pool2d_backward(const Tensor& grad_y, const Tensor& index, const Shape& x_shape,
                           const Pool2dParams& params) {
  const char* op = name_of(params);
  const Span span("op", op);
  check_same_device(op, "gradient", grad_y, "index", index);
  check_floating(op, "the gradient", grad_y);
  Shape expected = x_shape;
  if (params.adaptive) {
    WEFT_CHECK(index.dim() == 4, InvalidArgument, op, "index: got ", index.shape(),
               ", expected [N,C,H,W]");
    check_adaptive(op, x_shape, {index.shape()[2], index.shape()[3]});
    for (const int d : {2, 3}) expected[d] = index.shape()[d];
  } else {
    expected = output_shape(x_shape, windows_of(params));
  }
  WEFT_CHECK(index.dtype() == DType::i32 && index.shape() == expected, InvalidArgument, op,
             "index: got ", index.dtype(), " ", index.shape(), ", expected i32 ", expected);
  WEFT_CHECK(grad_y.shape() == expected, Shape, op, "gradient: got ", grad_y.shape(),
             ", the output is ", expected);
  const Device device = grad_y.device();
  const auto run = kernel(device, &KernelTable::pooling, &PoolingKernels::max_pool2d_backward, op,
                          grad_y.dtype());
  const Tensor positions = in_image_format(index);
  const MemoryFormat format = format_of(positions);
  const Tensor gradient = contiguous(grad_y, format);
  Tensor grad_x = allocate(x_shape, format, grad_y.dtype(), device);
  if (grad_x.numel() == 0) return grad_x;
  run(current_stream(device), params, formatted_view(gradient, format),
      formatted_view(positions, format), grad_x.view_of());
  return grad_x;
}

namespace {

// For both kinds of average pooling, as the rest of the file; `shape` is the output's.
Tensor average(const char* op, const Tensor& x, const Shape& shape, const AvgPool2dParams& params) {
  const Span span("op", op);
  const Device device = x.device();
  const auto run =
      kernel(device, &KernelTable::pooling, &PoolingKernels::avg_pool2d, op, x.dtype());
  const Tensor image = in_image_format(x);
  const MemoryFormat format = format_of(image);
  Tensor y = allocate(shape, format, x.dtype(), device);
  if (y.numel() > 0) {
    run(current_stream(device), params, formatted_view(image, format), y.view_of());
  }
  return y;
}

}  // namespace

Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params) {
  check_floating("avg_pool2d", "x", x);
  const Shape shape = output_shape(x.shape(), windows_of(params));
  return average("avg_pool2d", x, shape, params);
}

Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  check_floating("adaptive_avg_pool2d", "x", x);
  check_adaptive("adaptive_avg_pool2d", x.shape(), size);
  const Shape shape{x.shape()[0], x.shape()[1], size[0], size[1]};
  return average("adaptive_avg_pool2d", x, shape, {.adaptive = true});
}

Tensor avg_pool2d_backward(const Tensor& grad_y, const Shape& x_shape,
                           const AvgPool2dParams& params) {
  const char* op = params.adaptive ? "adaptive_avg_pool2d" : "avg_pool2d";
  const Span span("op", op);
  check_floating(op, "the gradient", grad_y);
  WEFT_CHECK(grad_y.dim() == 4, Shape, op, "gradient: got ", grad_y.shape(),
             ", expected [N,C,H,W]");
  Shape expected = x_shape;
  if (params.adaptive) {
    check_adaptive(op, x_shape, {grad_y.shape()[2], grad_y.shape()[3]});
    expected[2] = grad_y.shape()[2];
    expected[3] = grad_y.shape()[3];
  } else {
    expected = output_shape(x_shape, windows_of(params));
  }
  WEFT_CHECK(grad_y.shape() == expected, Shape, op, "gradient: got ", grad_y.shape(),
             ", the output is ", expected);
  const Device device = grad_y.device();
  const auto run = kernel(device, &KernelTable::pooling, &PoolingKernels::avg_pool2d_backward, op,
                          grad_y.dtype());
  const Tensor gradient = in_image_format(grad_y);
  const MemoryFormat format = format_of(gradient);
  Tensor grad_x = allocate(x_shape, format, grad_y.dtype(), device);
  if (grad_x.numel() == 0) return grad_x;
  run(current_stream(device), params, formatted_view(gradient, format), grad_x.view_of());
  return grad_x;
}

}  // namespace weft::raw
