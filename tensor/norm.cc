#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

template <class Entry>
Entry norm_kernel(const char* op, const Tensor& x, Entry NormKernels::* entry) {
  return kernel(x.device(), &KernelTable::norm, entry, op, x.dtype());
}

/// The dtype in which mean and invstd are computed.
DType compute_type(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

View optional_view(const Tensor& x) { return x.defined() ? x.view_of() : View{}; }

Tensor optional_contiguous(const Tensor& x, DType dtype) {
  return x.defined() ? contiguous(cast(x, dtype)) : x;
}

/// `wide`: it may also have the dtype in which x is computed.
void check_part(const char* op, const char* name, const Tensor& part, const Tensor& x,
                const Shape& expected, bool wide = false) {
  if (!part.defined()) return;
  if (wide && part.dtype() == compute_type(x.dtype())) {
    check_same_device(op, "x", x, name, part);
  } else {
    check_same_kind(op, "x", x, name, part);
  }
  WEFT_CHECK(part.shape() == expected, Shape, op, name, ": got ", part.shape(), ", expected ",
             expected, " (x ", x.shape(), ")");
}

/// Checks that `other` has x's shape, dtype and device.
void check_like_x(const char* op, const char* name, const Tensor& other, const Tensor& x) {
  if (!other.defined()) return;
  check_same_kind(op, "x", x, name, other);
  WEFT_CHECK(other.shape() == x.shape(), Shape, op, name, ": got ", other.shape(), ", x is ",
             x.shape());
}

void check_slope(const std::optional<double>& slope) {
  WEFT_CHECK(!slope || *slope >= 0, InvalidArgument, "batch_norm", "negative_slope: got ", *slope,
             ", expected 0 or more");
}

void check_gradient(const char* op, const Tensor& grad_y, const Tensor& x) {
  check_same_kind(op, "gradient", grad_y, "x", x);
  WEFT_CHECK(grad_y.shape() == x.shape(), Shape, op, "gradient: got ", grad_y.shape(),
             ", the output is ", x.shape());
}

void check_statistics(const char* op, const Tensor& mean, const Tensor& invstd, const Tensor& x,
                      const Shape& expected) {
  check_same_kind(op, "mean", mean, "invstd", invstd);
  check_same_device(op, "x", x, "mean", mean);
  WEFT_CHECK(mean.dtype() == compute_type(x.dtype()) && mean.shape() == expected &&
                 invstd.shape() == expected && mean.is_contiguous() && invstd.is_contiguous(),
             InvalidArgument, op, "mean and invstd: got ", mean.dtype(), " ", mean.shape(), ", ",
             invstd.shape(), ", expected what forward returned");
}

/// Those of weight and bias have the shape `part` and the dtype `type`.
NormGradients allocate_gradients(const Tensor& x, MemoryFormat format, const Shape& part,
                                 DType type, const NormWants& wants) {
  NormGradients grads;
  if (wants.x && format == MemoryFormat::nhwc) {
    grads.x = allocate(x.shape(), format, x.dtype(), x.device());
  } else if (wants.x) {
    grads.x = allocate(x.shape(), x.dtype(), x.device());
  }
  if (wants.weight) grads.weight = allocate(part, type, x.device());
  if (wants.bias) grads.bias = allocate(part, type, x.device());
  return grads;
}

NormGradients of_nothing(NormGradients grads) {
  for (const Tensor* grad : {&grads.x, &grads.weight, &grads.bias}) {
    if (grad->defined()) zero_(*grad);
  }
  return grads;
}

Shape channels_of(const Tensor& x) {
  check_defined("batch_norm", "x", x);
  WEFT_CHECK(x.dim() == 4, Shape, "batch_norm", "input: got ", x.shape(), ", expected [N,C,H,W]");
  return {x.shape()[1]};
}

void check_running(const Tensor& running, const char* name, const Tensor& x, const Shape& part) {
  check_part("batch_norm", name, running, x, part, true);
  WEFT_CHECK(!running.defined() || running.is_contiguous(), InvalidArgument, "batch_norm", name,
             ": strides ", running.strides(), ", expected contiguous memory");
}

}  // namespace

NormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const RunningStats& running, const BatchNormParams& params,
                      const Tensor& addend) {
  const char* op = "batch_norm";
  const Span span("op", op);
  const Shape part = channels_of(x);
  check_floating(op, "x", x);
  check_part(op, "weight", weight, x, part, true);
  check_part(op, "bias", bias, x, part, true);
  check_like_x(op, "addend", addend, x);
  check_slope(params.negative_slope);
  check_running(running.mean, "running_mean", x, part);
  check_running(running.var, "running_var", x, part);
  const Tensor& batches = running.num_batches;
  if (batches.defined()) {
    check_same_device(op, "x", x, "num_batches", batches);
    WEFT_CHECK(batches.dtype() == DType::i64 && batches.dim() == 0, InvalidArgument, op,
               "num_batches: got ", batches.dtype(), " ", batches.shape(), ", expected i64 []");
  }
  WEFT_CHECK(params.training || (running.mean.defined() && running.var.defined()), InvalidArgument,
             op, "evaluation needs running_mean and running_var");
  WEFT_CHECK(!params.cumulative || batches.defined(), InvalidArgument, op,
             "cumulative averages need num_batches");
  WEFT_CHECK(!params.training || x.shape()[0] * x.shape()[2] * x.shape()[3] != 1, Shape, op,
             "expected more than 1 value per channel when training, got x ", x.shape());

  const Device device = x.device();
  const auto run = norm_kernel(op, x, &NormKernels::batch_norm);
  const auto workspace_bytes = norm_kernel(op, x, &NormKernels::batch_norm_workspace_bytes);
  const Tensor image = in_image_format(x);
  const MemoryFormat format = format_of(image);
  const DType computed = compute_type(x.dtype());
  NormResult result{allocate(x.shape(), format, x.dtype(), device),
                    allocate(part, computed, device), allocate(part, computed, device)};
  if (x.numel() == 0) {  // an average over no pixels would make the running statistics useless
    if (params.training && batches.defined()) add_(batches, 1);
    zero_(result.mean);
    zero_(result.invstd);
    return result;
  }
  const Tensor factors = optional_contiguous(weight, computed),
               offsets = optional_contiguous(bias, computed);
  const Tensor means = optional_contiguous(running.mean, computed),
               vars = optional_contiguous(running.var, computed);
  const Tensor added = addend.defined() ? contiguous(addend, format) : addend;
  BatchNormArgs args;
  args.x = formatted_view(image, format);
  args.weight = optional_view(factors);
  args.bias = optional_view(offsets);
  args.running_mean = optional_view(means);
  args.running_var = optional_view(vars);
  args.num_batches = optional_view(batches);
  args.y = result.y.view_of();
  args.mean = result.mean.view_of();
  args.invstd = result.invstd.view_of();
  args.addend = optional_view(added);
  const Workspace workspace(device, workspace_bytes(args.x));
  if (params.training) {
    for (const Tensor* written : {&running.mean, &running.var, &batches}) {
      if (written->defined()) written->storage()->bump_version();
    }
  }
  run(current_stream(device), params, args, workspace.data());
  if (params.training && means.defined() && !means.same(running.mean)) copy_(running.mean, means);
  if (params.training && vars.defined() && !vars.same(running.var)) copy_(running.var, vars);
  return result;
}

NormGradients batch_norm_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  const Tensor& mean, const Tensor& invstd, bool training,
                                  const NormWants& wants, const BatchNormActivation& activation) {
  const char* op = "batch_norm";
  const Span span("op", op);
  const Shape part = channels_of(x);
  check_floating(op, "x", x);
  check_gradient(op, grad_y, x);
  check_part(op, "weight", weight, x, part, true);
  check_part(op, "bias", activation.bias, x, part, true);
  check_like_x(op, "y", activation.y, x);
  check_slope(activation.negative_slope);
  check_statistics(op, mean, invstd, x, part);
  const Device device = x.device();
  const auto run = norm_kernel(op, x, &NormKernels::batch_norm_backward);
  const auto workspace_bytes = norm_kernel(op, x, &NormKernels::batch_norm_workspace_bytes);
  const Tensor image = in_image_format(x);
  const MemoryFormat format = format_of(image);
  const bool active = activation.negative_slope.has_value();
  WEFT_CHECK(!wants.addend || !active || activation.y.defined(), InvalidArgument, op,
             "the gradient of the addend needs y");
  const DType computed = compute_type(x.dtype());
  NormGradients grads = allocate_gradients(x, format, part, computed, wants);
  if (wants.addend) {
    grads.addend = active ? allocate(x.shape(), format, x.dtype(), device) : grad_y;
  }
  if (x.numel() == 0) return of_nothing(std::move(grads));
  if (!wants.x && !wants.weight && !wants.bias && !(wants.addend && active)) return grads;
  const Tensor gradient = contiguous(grad_y, format);
  const Tensor factors = optional_contiguous(weight, computed),
               offsets = optional_contiguous(activation.bias, computed);
  const Tensor y = active && activation.y.defined() ? contiguous(activation.y, format) : Tensor();
  BatchNormParams params;
  params.training = training;
  params.negative_slope = activation.negative_slope;
  BatchNormGradArgs args;
  args.grad_y = formatted_view(gradient, format);
  args.x = formatted_view(image, format);
  args.weight = optional_view(factors);
  args.mean = mean.view_of();
  args.invstd = invstd.view_of();
  args.grad_x = optional_view(grads.x);
  args.grad_weight = optional_view(grads.weight);
  args.grad_bias = optional_view(grads.bias);
  args.bias = optional_view(offsets);
  args.y = optional_view(y);
  if (active) args.grad_addend = optional_view(grads.addend);
  const Workspace workspace(device, workspace_bytes(args.x));
  run(current_stream(device), params, args, workspace.data());
  return grads;
}

namespace {

/// How layer norm and group norm see x: as [images, channels, spatial], with `groups` groups of
/// channels in each image.
struct Grouping {
  View view(const Tensor& x) const {
    return {x.raw_data(), x.dtype(), shape, contiguous_strides(shape)};
  }
  View view_of_statistics(const Tensor& values) const {
    const Shape of_groups{shape[0], groups};
    return {values.raw_data(), values.dtype(), of_groups, contiguous_strides(of_groups)};
  }

  const char* op;
  Shape shape;
  std::int64_t groups;
  Shape statistics, part;  // the shapes of mean and invstd, of weight and bias
};

View flat_optional(const Tensor& x) { return x.defined() ? flat_view(x, x.numel()) : View{}; }

NormResult normalise(const Grouping& by, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps) {
  check_floating(by.op, "x", x);
  check_part(by.op, "weight", weight, x, by.part);
  check_part(by.op, "bias", bias, x, by.part);
  const Device device = x.device();
  const auto run = norm_kernel(by.op, x, &NormKernels::group_norm);
  const DType computed = compute_type(x.dtype());
  NormResult result{allocate(x.shape(), x.dtype(), device),
                    allocate(by.statistics, computed, device),
                    allocate(by.statistics, computed, device)};
  if (x.numel() == 0) {
    zero_(result.mean);
    zero_(result.invstd);
    return result;
  }
  const Tensor dense = contiguous(x);
  const Tensor factors = optional_contiguous(weight, x.dtype()),
               offsets = optional_contiguous(bias, x.dtype());
  GroupNormArgs args;
  args.eps = eps;
  args.groups = by.groups;
  args.x = by.view(dense);
  args.weight = flat_optional(factors);
  args.bias = flat_optional(offsets);
  args.y = by.view(result.y);
  args.mean = by.view_of_statistics(result.mean);
  args.invstd = by.view_of_statistics(result.invstd);
  run(current_stream(device), args);
  return result;
}

NormGradients normalise_backward(const Grouping& by, const Tensor& grad_y, const Tensor& x,
                                 const Tensor& weight, const Tensor& mean, const Tensor& invstd,
                                 const NormWants& wants) {
  check_floating(by.op, "x", x);
  check_gradient(by.op, grad_y, x);
  check_part(by.op, "weight", weight, x, by.part);
  check_statistics(by.op, mean, invstd, x, by.statistics);
  const Device device = x.device();
  const auto run = norm_kernel(by.op, x, &NormKernels::group_norm_backward);
  const auto workspace_bytes =
      norm_kernel(by.op, x, &NormKernels::group_norm_backward_workspace_bytes);
  NormGradients grads = allocate_gradients(x, MemoryFormat::nchw, by.part, x.dtype(), wants);
  if (x.numel() == 0) return of_nothing(std::move(grads));
  const Tensor dense = contiguous(x), gradient = contiguous(grad_y);
  const Tensor factors = optional_contiguous(weight, x.dtype());
  const bool alone = wants.x && by.shape[1] / by.groups * by.shape[2] == 1;
  if (alone) {  // exactly 0 if x is finite: not a rounding error / eps
    grads.x = add(sub(gradient, gradient), sub(dense, dense));
    if (!wants.weight && !wants.bias) return grads;
  }
  GroupNormGradArgs args;
  args.groups = by.groups;
  args.grad_y = by.view(gradient);
  args.x = by.view(dense);
  args.weight = flat_optional(factors);
  args.mean = by.view_of_statistics(mean);
  args.invstd = by.view_of_statistics(invstd);
  if (!alone && grads.x.defined()) args.grad_x = by.view(grads.x);
  args.grad_weight = flat_optional(grads.weight);
  args.grad_bias = flat_optional(grads.bias);
  const Workspace workspace(device, workspace_bytes(args.x));
  run(current_stream(device), args, workspace.data());
  return grads;
}

Grouping rows_of(const Tensor& x, const Shape& normalized) {
  const char* op = "layer_norm";
  check_defined(op, "x", x);
  const int first = x.dim() - normalized.size();
  bool fits = !normalized.empty() && first >= 0;
  for (int i = 0; fits && i < normalized.size(); ++i) {
    fits = x.shape()[first + i] == normalized[i];
  }
  WEFT_CHECK(fits, Shape, op, "input: got ", x.shape(),
             ", its last dimensions must be normalized_shape ", normalized);
  Shape leading;
  for (int i = 0; i < first; ++i) leading.push_back(x.shape()[i]);
  return {op, {numel(leading), numel(normalized), 1}, 1, leading, normalized};
}

Grouping groups_of(const Tensor& x, std::int64_t groups) {
  const char* op = "group_norm";
  check_defined(op, "x", x);
  WEFT_CHECK(x.dim() >= 2, Shape, op, "x: got ", x.shape(), ", expected [N,C,..]");
  const std::int64_t images = x.shape(0), channels = x.shape(1);
  WEFT_CHECK(groups > 0 && channels % groups == 0, Shape, op, "groups ", groups,
             " do not divide the channels of ", x.shape());
  checked_mul(images, groups, op);
  Shape plane;
  for (int d = 2; d < x.dim(); ++d) plane.push_back(x.shape(d));
  return {op, {images, channels, numel(plane)}, groups, {images, groups}, {channels}};
}

}  // namespace

NormResult layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                      const Tensor& bias, double eps) {
  const Span span("op", "layer_norm");
  return normalise(rows_of(x, normalized_shape), x, weight, bias, eps);
}

NormGradients layer_norm_backward(const Tensor& grad_y, const Tensor& x,
                                  const Shape& normalized_shape, const Tensor& weight,
                                  const Tensor& mean, const Tensor& invstd,
                                  const NormWants& wants) {
  const Span span("op", "layer_norm");
  return normalise_backward(rows_of(x, normalized_shape), grad_y, x, weight, mean, invstd, wants);
}

NormResult group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight,
                      const Tensor& bias, double eps) {
  const Span span("op", "group_norm");
  return normalise(groups_of(x, groups), x, weight, bias, eps);
}

NormGradients group_norm_backward(const Tensor& grad_y, const Tensor& x, std::int64_t groups,
                                  const Tensor& weight, const Tensor& mean, const Tensor& invstd,
                                  const NormWants& wants) {
  const Span span("op", "group_norm");
  return normalise_backward(groups_of(x, groups), grad_y, x, weight, mean, invstd, wants);
}

}  // namespace weft::raw
