// Reductions over any set of dimensions.
#include <algorithm>
#include <limits>

#include "weft/core/runtime/log.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::mean: return "mean";
    case ReduceOp::prod: return "prod";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
    case ReduceOp::all: return "all";
    case ReduceOp::any: return "any";
  }
  return "reduce";
}

DType result_dtype(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::all:
    case ReduceOp::any: return DType::boolean;
    case ReduceOp::sum:
    case ReduceOp::prod: return is_floating(dtype) ? dtype : DType::i64;
    default: return dtype;
  }
}

double result_of_nothing(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod:
    case ReduceOp::all: return 1;
    case ReduceOp::mean: return std::numeric_limits<double>::quiet_NaN();
    default: return 0;
  }
}

// One bit per dimension to be reduced. Here a scalar has one dimension.
unsigned reduced_dims(const char* op, const Tensor& x, const Dims& dims) {
  if (dims.empty()) return (1u << kMaxDims) - 1;
  unsigned reduced = 0;
  for (std::int64_t dim : dims) {
    const int i = normalize_dim(dim, std::max(x.dim(), 1), op);
    WEFT_CHECK(!(reduced >> i & 1), Shape, op, "dimension ", i, " appears twice in ", dims);
    reduced |= 1u << i;
  }
  return reduced;
}

// An empty set has no largest element. As in PyTorch, refused even if the result would be empty.
void check_choice(const char* op, const Tensor& x, unsigned reduced) {
  for (int i = 0; i < x.dim(); ++i) {
    WEFT_CHECK(!(reduced >> i & 1) || x.shape()[i] > 0, Shape, op,
               "no elements to choose from: dimension ", i, " of ", x.shape(), " is empty");
  }
}

Shape reduced_shape(const Tensor& x, unsigned reduced, bool keepdim) {
  Shape shape;
  for (int i = 0; i < x.dim(); ++i) {
    if (!(reduced >> i & 1)) {
      shape.push_back(x.shape()[i]);
    } else if (keepdim) {
      shape.push_back(1);
    }
  }
  return shape;
}

// Reduces x into the dense, row-major y; the view of y that the kernel gets has x's dimensions.
void run_reduce(const char* name, ReduceOp op, const Tensor& x, unsigned reduced, const Tensor& y) {
  const Device device = x.device();
  const auto workspace_bytes =
      kernel(device, &KernelTable::reduce, &ReduceKernels::workspace_bytes, name, x.dtype());
  const auto run = kernel(device, &KernelTable::reduce, &ReduceKernels::reduce, name, x.dtype());
  const bool everything = y.numel() == 1;
  const View from = everything && x.is_dense() ? flat_view(x, x.numel()) : x.view_of();
  View to{y.raw_data(), y.dtype(), from.shape, {}};
  for (int i = 0; i < to.shape.size(); ++i) {
    if (everything || (reduced >> i & 1)) to.shape[i] = 1;
  }
  to.strides = contiguous_strides(to.shape);
  const Workspace workspace(device, workspace_bytes(op, from, to));
  run(current_stream(device), op, from, to, workspace.data());
}

}  // namespace

Tensor reduce(ReduceOp op, const Tensor& x, const Dims& dims, bool keepdim) {
  const char* name = name_of(op);
  check_defined(name, "x", x);
  const Span span("op", name);
  if (op == ReduceOp::mean) check_floating(name, "x", x);
  const unsigned reduced = reduced_dims(name, x, dims);
  if (op == ReduceOp::max || op == ReduceOp::min) check_choice(name, x, reduced);
  Tensor y = allocate(reduced_shape(x, reduced, keepdim), result_dtype(op, x.dtype()), x.device());
  if (y.numel() == 0) return y;
  if (x.numel() == 0) {
    fill_(y, result_of_nothing(op));
    return y;
  }
  run_reduce(name, op, x, reduced, y);
  return y;
}

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::sum, x, dims, keepdim);
}
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::mean, x, dims, keepdim);
}
Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::prod, x, dims, keepdim);
}
Tensor max(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::max, x, dims, keepdim);
}
Tensor min(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::min, x, dims, keepdim);
}
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::all, x, dims, keepdim);
}
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(ReduceOp::any, x, dims, keepdim);
}

Moments moments(const char* op, const Tensor& x, const Dims& dims, bool keepdim, bool centred) {
  check_floating(op, "x", x);
  const unsigned reduced = reduced_dims(op, x, dims);
  const Device device = x.device();
  const Shape kept = reduced_shape(x, reduced, true);
  Moments m{centred ? allocate(kept, DType::f64, device) : Tensor(),
            allocate(kept, DType::f64, device), 1, reduced_shape(x, reduced, keepdim)};
  for (int i = 0; i < x.dim(); ++i) {
    if (reduced >> i & 1) m.n *= x.shape()[i];
  }
  if (m.squares.numel() == 0) return m;
  if (x.numel() == 0) {
    if (centred) fill_(m.mean, std::numeric_limits<double>::quiet_NaN());
    zero_(m.squares);
    return m;
  }
  const auto workspace_bytes =
      kernel(device, &KernelTable::reduce, &ReduceKernels::moments_workspace_bytes, op, x.dtype());
  const auto run = kernel(device, &KernelTable::reduce, &ReduceKernels::moments, op, x.dtype());
  // All elements of a dense x, in the order of the memory, which is the fastest.
  const bool everything = m.squares.numel() == 1 && x.is_dense();
  const View from = everything ? flat_view(x, x.numel()) : x.view_of();
  const auto to = [&](const Tensor& t) { return everything ? flat_view(t, 1) : t.view_of(); };
  const View squares = to(m.squares);
  const Workspace workspace(device, workspace_bytes(from, squares));
  run(current_stream(device), from, centred ? to(m.mean) : View{}, squares, workspace.data());
  return m;
}

Tensor length_of(const Tensor& x, const Moments& m) {
  // The square of a single value could overflow or underflow f64.
  return m.n == 1 ? cast(abs(x), DType::f64) : sqrt(m.squares);
}

double degrees_of_freedom(const char* op, std::int64_t n, double correction) {
  const double left = static_cast<double>(n) - correction;
  if (left > 0) return left;
  log_warning(
      detail::concat(op, ": no degrees of freedom: ", n, " values, correction ", correction));
  return 0;
}

Tensor scaled_deviation(const Tensor& x, const Tensor& center, const Tensor& factor) {
  const char* op = "scaled_deviation";
  check_floating(op, "x", x);
  const auto check = [&](const char* name, const Tensor& t) {
    check_same_device(op, "x", x, name, t);
    WEFT_CHECK(t.dtype() == DType::f64, Dtype, op, name, ": got ", t.dtype(), ", expected f64");
    WEFT_CHECK(broadcast_shapes(t.shape(), x.shape(), op) == x.shape(), Shape, op, name, ": got ",
               t.shape(), ", which does not broadcast to x ", x.shape());
  };
  check("factor", factor);
  if (center.defined()) check("center", center);
  const Device device = x.device();
  const auto run =
      kernel(device, &KernelTable::reduce, &ReduceKernels::scaled_deviation, op, x.dtype());
  Tensor y = allocate_like(x, x.dtype(), device);
  if (y.numel() == 0) return y;
  run(current_stream(device), x.view_of(),
      center.defined() ? broadcast_view(center, x.shape()) : View{},
      broadcast_view(factor, x.shape()), y.view_of());
  return y;
}

Tensor var(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  const Span span("op", "var");
  const Moments m = moments("var", x, dims, keepdim);
  const Tensor y = div(m.squares, degrees_of_freedom("var", m.n, correction));
  return cast(reshape(y, m.shape), x.dtype());
}

Tensor norm(const Tensor& x, const Dims& dims, bool keepdim) {
  const Span span("op", "norm");
  const Moments m = moments("norm", x, dims, keepdim, false);
  return cast(reshape(length_of(x, m), m.shape), x.dtype());
}

namespace {

Tensor arg_reduce(const char* name, ArgReduceOp op, const Tensor& x, std::optional<std::int64_t> of,
                  bool keepdim) {
  check_defined(name, "x", x);
  if (x.dim() == 0) {
    return reshape(arg_reduce(name, op, reshape(x, {1}), of, false), {});
  }
  if (!of) {
    check_choice(name, x, (1u << kMaxDims) - 1);
    const Tensor y = arg_reduce(name, op, reshape(x, {x.numel()}), 0, false);
    return keepdim ? reshape(y, Shape::filled(x.dim(), 1)) : y;
  }
  const int dim = normalize_dim(*of, x.dim(), name);
  const Span span("op", name);
  const Device device = x.device();
  const auto run =
      kernel(device, &KernelTable::reduce, &ReduceKernels::arg_reduce, name, x.dtype());
  const auto workspace_bytes =
      kernel(device, &KernelTable::reduce, &ReduceKernels::arg_workspace_bytes, name, x.dtype());
  check_choice(name, x, 1u << dim);
  Tensor y = allocate(reduced_shape(x, 1u << dim, true), DType::i64, device);
  if (y.numel() > 0) {
    const Workspace workspace(device, workspace_bytes(x.view_of(), y.view_of()));
    run(current_stream(device), op, x.view_of(), dim, y.view_of(), workspace.data());
  }
  return keepdim ? y : squeeze(y, dim);
}

}  // namespace

Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return arg_reduce("argmax", ArgReduceOp::argmax, x, dim, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return arg_reduce("argmin", ArgReduceOp::argmin, x, dim, keepdim);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_defined("sum_to", "x", x);
  if (x.shape() == shape) return x;
  const int added = x.dim() - shape.size();
  unsigned reduced = 0;
  bool fits = added >= 0;
  for (int i = 0; fits && i < x.dim(); ++i) {
    const std::int64_t target = i < added ? 1 : shape[i - added];
    fits = target == x.shape()[i] || target == 1;
    // An added leading dimension is removed even if its length is 1.
    if (i < added || target != x.shape()[i]) reduced |= 1u << i;
  }
  WEFT_CHECK(fits, Shape, "sum_to", x.shape(), " is no broadcast of ", shape);
  const Span span("op", "sum");
  Tensor y = allocate(shape, result_dtype(ReduceOp::sum, x.dtype()), x.device());
  if (y.numel() == 0) return y;
  if (x.numel() == 0) {
    zero_(y);
  } else {
    run_reduce("sum", ReduceOp::sum, x, reduced, y);
  }
  return y;
}

}  // namespace weft::raw
