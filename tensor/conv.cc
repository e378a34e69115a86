// Convolution and its transpose. Operands keep their format; the plan gives the result's.
#include <algorithm>
#include <array>

#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

const char* name_of(const Conv2dParams& params) {
  return params.transposed ? "conv_transpose2d" : "conv2d";
}

void check_params(const char* op, const Conv2dParams& p) {
  check_pair(op, "stride", p.stride, 1);
  check_pair(op, "padding", p.padding, 0);
  check_pair(op, "dilation", p.dilation, 1);
  check_pair(op, "output_padding", p.output_padding, 0);
  WEFT_CHECK(p.groups >= 1, InvalidArgument, op, "groups: got ", p.groups);
  for (int i = 0; i < 2; ++i) {
    WEFT_CHECK(p.transposed || p.output_padding[i] == 0, InvalidArgument, op,
               "output_padding belongs to conv_transpose2d");
    WEFT_CHECK(p.output_padding[i] < std::max(p.stride[i], p.dilation[i]) || !p.transposed,
               InvalidArgument, op, "output_padding ", p.output_padding[i],
               " must be smaller than stride ", p.stride[i], " or dilation ", p.dilation[i]);
  }
}

// Checks x against w and gives y's shape.
Shape output_shape(const char* op, const Shape& x, const Shape& w, const Conv2dParams& p) {
  check_params(op, p);
  WEFT_CHECK(x.size() == 4, Shape, op, "input: got ", x, ", expected [N,C,H,W]");
  WEFT_CHECK(w.size() == 4, Shape, op, "weight: got ", w, ", expected four dimensions");
  check_images(op, x, p.transposed ? std::array<std::int64_t, 2>{0, 0} : p.padding);
  check_images(op, w);
  const std::int64_t per_groups = checked_mul(w[1], p.groups, op);
  const std::int64_t expected = p.transposed ? w[0] : per_groups;
  WEFT_CHECK(x[1] == expected, Shape, op, "input channels: got ", x[1], ", weight expects ",
             expected, " (x ", x, ", w ", w,
             p.groups > 1 ? detail::concat(", groups ", p.groups) : "", ")");
  WEFT_CHECK(w[0] % p.groups == 0, Shape, op, p.transposed ? "input" : "output",
             " channels: ", w[0], " cannot be divided into ", p.groups, " groups (w ", w, ")");
  WEFT_CHECK(w[2] > 0 && w[3] > 0, Shape, op, "empty window (w ", w, ")");
  Shape y = {x[0], p.transposed ? per_groups : w[0], 0, 0};
  for (int i = 0; i < 2; ++i) {
    const std::int64_t in = x[2 + i], pad = 2 * p.padding[i];
    const std::int64_t reach = p.dilation[i] * (w[2 + i] - 1);
    if (p.transposed) {
      y[2 + i] = (in - 1) * p.stride[i] - pad + reach + p.output_padding[i] + 1;
      WEFT_CHECK(in > 0 && y[2 + i] > 0, Shape, op, "the result would be empty (x ", x, ", w ", w,
                 ")");
    } else {
      WEFT_CHECK(in + pad > reach, Shape, op, "window: ", reach + 1, " is larger than the input, ",
                 in, " padded by ", p.padding[i], " on both sides (x ", x, ", w ", w, ")");
      y[2 + i] = (in + pad - reach - 1) / p.stride[i] + 1;
    }
  }
  check_images(op, y, p.transposed ? p.padding : std::array<std::int64_t, 2>{0, 0});
  return y;
}

void check_gradient(const char* op, const Tensor& grad_y, const Shape& expected) {
  WEFT_CHECK(grad_y.shape() == expected, Shape, op, "gradient: got ", grad_y.shape(),
             ", the output is ", expected);
}

PlanRef<Conv2dPlan> plan_for(const char* op, Device device, const Conv2dArgs& args) {
  return kernel(device, &KernelTable::conv, &Conv2dKernels::plan, op, args.x.dtype)(args);
}

void run(const char* op, Device device, const Conv2dPlan& plan, const Conv2dArgs& args) {
  const auto run = kernel(device, &KernelTable::conv, &Conv2dKernels::run, op, args.x.dtype);
  const Workspace workspace(device, plan.workspace_bytes);
  run(current_stream(device), plan, args, workspace.data());
}

View image_view(const Tensor& x) { return formatted_view(x, format_of(x)); }

// A result that is not allocated yet, with the layout that it should have if the plan agrees.
View unplaced(const Shape& shape, MemoryFormat format, DType dtype) {
  return {nullptr, dtype, shape, format_strides(shape, format)};
}

// A result keeps its input's layout, with one exception: for images of a few channels or of a
// single pixel the layout matters little to the code that reads them, so they get channels last,
// with which later layers are faster.
MemoryFormat result_format(const Tensor& image) {
  constexpr std::int64_t kFewChannels = 4;
  const Shape& shape = image.shape();
  const bool image_like = shape[1] <= kFewChannels || shape[2] * shape[3] == 1;
  return image_like ? MemoryFormat::nhwc : format_of(image);
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params,
              Activation then) {
  const char* op = name_of(params);
  const Span span("op", op);
  check_same_kind(op, "x", x, "w", w);
  check_floating(op, "x", x);
  const Shape shape = output_shape(op, x.shape(), w.shape(), params);
  if (bias.defined()) {
    check_same_kind(op, "x", x, "bias", bias);
    WEFT_CHECK(bias.dim() == 1 && bias.shape()[0] == shape[1], Shape, op, "bias: got ",
               bias.shape(), ", expected [", shape[1], "]");
  }
  const Device device = x.device();
  if (numel(shape) == 0 || x.numel() == 0) {
    const Tensor y = allocate(shape, x.dtype(), device);
    bias.defined() ? copy_(y, reshape(bias, {1, shape[1], 1, 1})) : zero_(y);
    return then == Activation::relu ? relu(y) : y;
  }
  const Tensor image = in_image_format(x);
  const Tensor weight = in_image_format(w);
  const Tensor row = bias.defined() ? contiguous(bias) : bias;
  Conv2dArgs args{.pass = ConvPass::forward, .params = params};
  args.x = image_view(image);
  args.w = image_view(weight);
  if (row.defined()) args.bias = row.view_of();
  args.y = unplaced(shape, result_format(image), x.dtype());
  args.then = then;
  const PlanRef<Conv2dPlan> plan = plan_for(op, device, args);
  Tensor y = allocate(shape, plan->output_format, x.dtype(), device);
  args.y = y.view_of();
  if (std::int64_t* count = thread_state().multiply_adds) {
    // Each weight is multiplied with each pixel of the side over which it slides.
    const Shape& pixels = params.transposed ? x.shape() : shape;
    *count += w.numel() * pixels[0] * pixels[2] * pixels[3];
  }
  run(op, device, *plan, args);
  return y;
}

Tensor conv2d_backward_data(const Tensor& grad_y, const Tensor& w, const Shape& x_shape,
                            const Conv2dParams& params, MemoryFormat x_format) {
  const char* op = name_of(params);
  const Span span("op", op);
  check_same_kind(op, "gradient", grad_y, "w", w);
  check_floating(op, "the gradient", grad_y);
  check_gradient(op, grad_y, output_shape(op, x_shape, w.shape(), params));
  const Device device = grad_y.device();
  if (grad_y.numel() == 0 || numel(x_shape) == 0) {
    return zero_(allocate(x_shape, w.dtype(), device));
  }
  const Tensor image = in_image_format(grad_y);
  const Tensor weight = in_image_format(w);
  Conv2dArgs args{.pass = ConvPass::backward_data, .params = params};
  args.x = unplaced(x_shape, x_format, w.dtype());
  args.w = image_view(weight);
  args.y = image_view(image);
  const PlanRef<Conv2dPlan> plan = plan_for(op, device, args);
  Tensor grad_x = allocate(x_shape, plan->output_format, w.dtype(), device);
  args.x = grad_x.view_of();
  run(op, device, *plan, args);
  return grad_x;
}

std::pair<Tensor, Tensor> conv2d_relu_backward(Tensor&& grad_y, const Tensor& y) {
  const char* op = "conv2d_relu_backward";
  check_same_kind(op, "gradient", grad_y, "y", y);
  check_gradient(op, grad_y, y.shape());
  const Conv2dKernels& kernels = backend(y.device()).kernels.conv;
  if (!kernels.relu_backward || !(is_nchw(grad_y) || is_nhwc(grad_y))) {
    return {unary_backward(UnaryOp::relu, std::move(grad_y), y), Tensor()};
  }
  const Span span("op", op);
  const MemoryFormat format = format_of(y);
  const bool in_place = is_alone(grad_y) && is_format(grad_y.view_of(), format);
  Tensor before = in_place ? grad_y : allocate(y.shape(), format, y.dtype(), y.device());
  Tensor grad_bias = allocate({y.shape()[1]}, y.dtype(), y.device());
  const ReluBackwardArgs args{image_view(grad_y), image_view(y), image_view(before),
                              grad_bias.view_of()};
  const Workspace workspace(y.device(), kernels.relu_backward_workspace_bytes(args));
  kernel(y.device(), &KernelTable::conv, &Conv2dKernels::relu_backward, op, y.dtype())(
      current_stream(y.device()), args, workspace.data());
  return {std::move(before), std::move(grad_bias)};
}

std::pair<Tensor, Tensor> conv2d_backward_weights(const Tensor& x, const Tensor& grad_y,
                                                  const Shape& w_shape, bool with_bias,
                                                  const Conv2dParams& params,
                                                  MemoryFormat w_format) {
  const char* op = name_of(params);
  const Span span("op", op);
  check_same_kind(op, "gradient", grad_y, "x", x);
  check_floating(op, "x", x);
  const Shape y_shape = output_shape(op, x.shape(), w_shape, params);
  check_gradient(op, grad_y, y_shape);
  const Device device = x.device();
  Tensor grad_w = allocate(w_shape, w_format, x.dtype(), device);
  Tensor grad_bias;
  if (with_bias) grad_bias = allocate({y_shape[1]}, x.dtype(), device);
  if (x.numel() == 0 || grad_y.numel() == 0) {
    zero_(grad_w);
    if (with_bias) copy_(grad_bias, sum(grad_y, {0, 2, 3}));
    return {std::move(grad_w), std::move(grad_bias)};
  }
  const Tensor image = in_image_format(x);
  const Tensor gradient = in_image_format(grad_y);
  Conv2dArgs args{.pass = ConvPass::backward_weights, .params = params};
  args.x = image_view(image);
  args.w = grad_w.view_of();
  if (with_bias) args.bias = grad_bias.view_of();
  args.y = image_view(gradient);
  run(op, device, *plan_for(op, device, args), args);
  return {std::move(grad_w), std::move(grad_bias)};
}

}  // namespace weft::raw
