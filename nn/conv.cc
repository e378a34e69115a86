#include "weft/nn/conv.h"

#include "weft/core/base/error.h"
#include "weft/nn/init.h"
#include "weft/nn/module_node.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

namespace {

void check(const char* op, std::int64_t in, std::int64_t out, Pair kernel, const ConvOptions& o) {
  WEFT_CHECK(in > 0 && out > 0 && kernel.h > 0 && kernel.w > 0, InvalidArgument, op,
             "channels and kernel must be positive, got in ", in, ", out ", out, ", kernel ",
             kernel.h, "x", kernel.w);
  WEFT_CHECK(o.groups > 0 && in % o.groups == 0 && out % o.groups == 0, InvalidArgument, op,
             "groups ", o.groups, " must divide in ", in, " and out ", out);
  const Pair zeros = o.padding.amount;
  WEFT_CHECK(o.stride.h > 0 && o.stride.w > 0 && o.dilation.h > 0 && o.dilation.w > 0 &&
                 zeros.h >= 0 && zeros.w >= 0,
             InvalidArgument, op, "stride and dilation must be positive, padding not negative");
  const std::string& name = o.padding.name;
  WEFT_CHECK(name.empty() || name == "same" || name == "valid", InvalidArgument, op,
             "padding: got '", name, "', expected a number, 'same' or 'valid'");
  WEFT_CHECK(name != "same" || o.stride == Pair(1), InvalidArgument, op,
             "padding 'same' needs stride 1, got ", o.stride.h, "x", o.stride.w);
}

Conv2dParams to_params(const ConvOptions& o) {
  Conv2dParams params;
  params.stride = o.stride;
  params.padding = o.padding.amount;
  params.dilation = o.dilation;
  params.groups = o.groups;
  params.output_padding = o.output_padding;
  return params;
}

std::string describe(std::int64_t in, std::int64_t out, Pair kernel, const ConvOptions& o) {
  const auto pair = [](Pair p) { return weft::detail::concat("(", p.h, ", ", p.w, ")"); };
  std::string text = weft::detail::concat(in, ", ", out, ", kernel_size=", pair(kernel),
                                          ", stride=", pair(o.stride));
  if (!o.padding.name.empty()) text += ", padding=" + o.padding.name;
  if (!(o.padding.amount == Pair(0))) text += ", padding=" + pair(o.padding.amount);
  if (!(o.dilation == Pair(1))) text += ", dilation=" + pair(o.dilation);
  if (!(o.output_padding == Pair(0))) text += ", output_padding=" + pair(o.output_padding);
  if (o.groups != 1) text += ", groups=" + std::to_string(o.groups);
  if (!o.bias) text += ", bias=False";
  return text;
}

// Memory for the weight of a layer of images. Its values are drawn in the same order in any layout.
Tensor empty_weight(const Shape& shape) {
  // Weights that have both formats get row-major strides, as their gradients do.
  const bool has_both = shape[1] == 1 || (shape[2] == 1 && shape[3] == 1);
  TensorOptions options;
  options.channels_last = !thread_state().device.is_cpu() && !has_both;
  return empty(shape, options);
}

void mark_image_weight(const ModuleBase& module) {
  detail::ModuleNode::of(module).tensors.back().is_image_weight = true;
}

}  // namespace

Conv1d::Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& options)
    : params_{.stride = options.stride,
              .padding = options.padding.amount,
              .dilation = options.dilation,
              .groups = options.groups},
      same_(options.padding.name == "same") {
  ConvOptions of_rows{.stride = {1, options.stride},
                      .padding = {0, options.padding.amount},
                      .dilation = {1, options.dilation},
                      .groups = options.groups};
  of_rows.padding.name = options.padding.name;
  check("Conv1d", in, out, {1, kernel}, of_rows);
  weight = parameter("weight", empty({out, in / options.groups, kernel}));
  if (options.bias) bias = parameter("bias", empty({out}));
  init::default_weight_and_bias(weight, bias);
  const auto one = [](std::int64_t n) { return weft::detail::concat("(", n, ",)"); };
  std::string text = weft::detail::concat(in, ", ", out, ", kernel_size=", one(kernel),
                                          ", stride=", one(options.stride));
  if (!options.padding.name.empty()) text += ", padding=" + options.padding.name;
  if (options.padding.amount != 0) text += ", padding=" + one(options.padding.amount);
  if (options.dilation != 1) text += ", dilation=" + one(options.dilation);
  if (options.groups != 1) text += ", groups=" + std::to_string(options.groups);
  if (!options.bias) text += ", bias=False";
  set_description(std::move(text));
}

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Pair kernel, const ConvOptions& options)
    : params_(to_params(options)), same_(options.padding.name == "same") {
  check("Conv2d", in, out, kernel, options);
  WEFT_CHECK(options.output_padding == Pair(0), InvalidArgument, "Conv2d",
             "output_padding belongs to ConvTranspose2d");
  weight = parameter("weight", empty_weight({out, in / options.groups, kernel.h, kernel.w}));
  mark_image_weight(*this);
  if (options.bias) bias = parameter("bias", empty({out}));
  init::default_weight_and_bias(weight, bias);
  set_description(describe(in, out, kernel, options));
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in, std::int64_t out, Pair kernel,
                                 const ConvOptions& options)
    : params_(to_params(options)) {
  check("ConvTranspose2d", in, out, kernel, options);
  WEFT_CHECK(options.padding.name.empty(), InvalidArgument, "ConvTranspose2d", "padding: got '",
             options.padding.name, "', expected numbers");
  const auto fits = [](std::int64_t extra, std::int64_t stride, std::int64_t dilation) {
    return extra >= 0 && (extra < stride || extra < dilation);
  };
  WEFT_CHECK((options.output_padding == Pair(0)) ||
                 (fits(options.output_padding.h, options.stride.h, options.dilation.h) &&
                  fits(options.output_padding.w, options.stride.w, options.dilation.w)),
             InvalidArgument, "ConvTranspose2d",
             "output_padding must be smaller than stride or dilation");
  weight = parameter("weight", empty_weight({in, out / options.groups, kernel.h, kernel.w}));
  mark_image_weight(*this);
  if (options.bias) bias = parameter("bias", empty({out}));
  init::default_weight_and_bias(weight, bias);
  set_description(describe(in, out, kernel, options));
}

Tensor ConvTranspose2d::forward(const Tensor& x, Activation then) const {
  return conv_transpose2d(x, weight, bias, params_, then);
}

}  // namespace weft::nn
