#include <limits>

#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

template <class Entry>
Entry loss_kernel(const char* op, const Tensor& x, Entry LossKernels::* entry) {
  return kernel(x.device(), &KernelTable::loss, entry, op, x.dtype());
}

void check_cross_entropy(const Tensor& logits, const Tensor& target,
                         const CrossEntropyParams& params) {
  const char* op = "cross_entropy";
  check_same_device(op, "logits", logits, "target", target);
  check_floating(op, "logits", logits);
  WEFT_CHECK(target.dtype() == DType::i64, Dtype, op, "target: got ", target.dtype(),
             ", expected i64 class numbers; convert it with to(dtype)");
  WEFT_CHECK(logits.dim() == 2, Shape, op, "logits: got ", logits.shape(), ", expected [N,C]");
  WEFT_CHECK(target.dim() == 1 && target.shape()[0] == logits.shape()[0], Shape, op, "target: got ",
             target.shape(), ", expected [", logits.shape()[0], "] for logits ", logits.shape());
  WEFT_CHECK(params.label_smoothing >= 0 && params.label_smoothing <= 1, InvalidArgument, op,
             "label_smoothing: got ", params.label_smoothing, ", expected 0 to 1");
}

// Checks for a target that is neither a class nor ignore_index. On CUDA the forward's kernel does.
void check_targets(const Tensor& target, std::int64_t classes, std::int64_t ignore_index) {
  const char* op = "cross_entropy";
  if (target.numel() == 0 || !target.device().is_cpu()) return;
  kernel(target.device(), &KernelTable::indexing, &IndexingKernels::check_bounds, op,
         target.dtype())(current_stream(target.device()),
                         {.op = op, .bound = classes, .what = "target", .ignored = ignore_index},
                         target.view_of());
}

}  // namespace

CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& target,
                                 const CrossEntropyParams& params) {
  const Span span("op", "cross_entropy");
  check_cross_entropy(logits, target, params);
  const std::int64_t n = logits.shape()[0], classes = logits.shape()[1];
  WEFT_CHECK(classes > 0 || n == 0, Shape, "cross_entropy", "logits ", logits.shape(),
             " have no classes");
  check_targets(target, classes, params.ignore_index);
  const auto run = loss_kernel("cross_entropy", logits, &LossKernels::cross_entropy);
  const Device device = logits.device();
  const DType dtype = logits.dtype();
  const bool per_row = params.reduction == Reduction::none;
  CrossEntropyResult result;
  result.loss = allocate(per_row ? Shape{n} : Shape{}, dtype, device);
  result.log_probs = allocate(logits.shape(), dtype, device);
  result.count = allocate({}, DType::f64, device);
  if (n == 0) {
    const bool mean = params.reduction == Reduction::mean;
    fill_(result.loss, mean ? std::numeric_limits<double>::quiet_NaN() : 0);
    zero_(result.count);
    return result;
  }
  const Tensor rows = contiguous(logits);
  const auto workspace_bytes =
      loss_kernel("cross_entropy", logits, &LossKernels::cross_entropy_workspace_bytes);
  const Workspace workspace(device, workspace_bytes(params, rows.view_of()));
  run(current_stream(device), params, rows.view_of(), target.view_of(), result.log_probs.view_of(),
      result.loss.view_of(), result.count.view_of(), workspace.data());
  return result;
}

Tensor cross_entropy_backward(const Tensor& grad_loss, const Tensor& log_probs,
                              const Tensor& target, const Tensor& count,
                              const CrossEntropyParams& params) {
  const char* op = "cross_entropy";
  const Span span("op", op);
  check_cross_entropy(log_probs, target, params);
  check_same_kind(op, "gradient", grad_loss, "log_probs", log_probs);
  WEFT_CHECK(count.dtype() == DType::f64 && count.device() == log_probs.device(), InvalidArgument,
             op, "count: got ", to_string(count.dtype()), " on ", to_string(count.device()),
             ", expected the f64 on ", to_string(log_probs.device()), " that cross_entropy gave");
  WEFT_CHECK(count.dim() == 0, Shape, op, "count: got ", count.shape(), ", expected a scalar");
  const std::int64_t n = log_probs.shape()[0];
  const Shape expected = params.reduction == Reduction::none ? Shape{n} : Shape{};
  WEFT_CHECK(grad_loss.shape() == expected, Shape, op, "gradient: got ", grad_loss.shape(),
             ", the loss is ", expected);
  const auto run = loss_kernel(op, log_probs, &LossKernels::cross_entropy_backward);
  const Tensor rows = contiguous(log_probs);
  Tensor grad = allocate(log_probs.shape(), log_probs.dtype(), log_probs.device());
  if (grad.numel() == 0) return grad;
  check_targets(target, log_probs.shape()[1], params.ignore_index);
  run(current_stream(grad.device()), params, grad_loss.view_of(), rows.view_of(), target.view_of(),
      count.view_of(), grad.view_of());
  return grad;
}

namespace {

void check_mse(const Tensor& x, const Tensor& target) {
  check_same_kind("mse_loss", "x", x, "target", target);
  check_floating("mse_loss", "x", x);
  WEFT_CHECK(x.shape() == target.shape(), Shape, "mse_loss", "target: got ", target.shape(),
             ", x is ", x.shape());
}

// A dense x, and the target in x's layout, as the kernels of the loss need them.
struct MsePair {
  MsePair(const Tensor& x_in, const Tensor& target_in)
      : x(x_in.is_dense() ? x_in : contiguous(x_in)), target(target_in) {
    if (same_layout(x, target)) return;
    target = allocate(x.shape(), x.strides(), x.dtype(), x.device());
    copy_(target, target_in);
  }
  Tensor x, target;
};

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_mse(x, target);
  if (reduction == Reduction::none) return unary(UnaryOp::square, sub(x, target));
  const Span span("op", "mse_loss");
  const auto workspace_bytes = loss_kernel("mse_loss", x, &LossKernels::mse_workspace_bytes);
  const auto run = loss_kernel("mse_loss", x, &LossKernels::mse);
  Tensor loss = allocate({}, x.dtype(), x.device());
  if (x.numel() == 0) {
    const bool mean = reduction == Reduction::mean;
    return fill_(loss, mean ? std::numeric_limits<double>::quiet_NaN() : 0);
  }
  const MsePair pair(x, target);
  const std::int64_t n = x.numel();
  const View from = flat_view(pair.x, n);
  const Workspace workspace(x.device(), workspace_bytes(from));
  run(current_stream(x.device()), reduction, from, flat_view(pair.target, n), loss.view_of(),
      workspace.data());
  return loss;
}

Tensor mse_loss_backward(const Tensor& grad_loss, const Tensor& x, const Tensor& target,
                         Reduction reduction) {
  check_mse(x, target);
  check_same_kind("mse_loss", "gradient", grad_loss, "x", x);
  if (reduction == Reduction::none) {
    const Tensor grad = sub(x, target);
    binary_(BinaryOp::mul, grad, grad_loss);
    return mul_(grad, 2);
  }
  WEFT_CHECK(grad_loss.numel() == 1, Shape, "mse_loss", "gradient: got ", grad_loss.shape(),
             ", the loss is a scalar");
  const Span span("op", "mse_loss");
  const auto run = loss_kernel("mse_loss", x, &LossKernels::mse_backward);
  const MsePair pair(x, target);
  Tensor grad_x = allocate_like(pair.x, x.dtype(), x.device());
  const std::int64_t n = grad_x.numel();
  if (n == 0) return grad_x;
  run(current_stream(x.device()), reduction, grad_loss.view_of(), flat_view(pair.x, n),
      flat_view(pair.target, n), flat_view(grad_x, n));
  return grad_x;
}

}  // namespace weft::raw
