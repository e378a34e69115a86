// Matrix products. The kernel gets transposes and broadcast batches as strides. A batch that shares
// its right matrix becomes one product with a tall matrix. On a GPU each product is one call: where
// no stride steps through the batch, dimensions join the rows or columns, or an operand is copied.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

// An operand as the kernel sees it: rows x columns, and one stride per batch dimension.
struct Matrix {
  const char* data;
  std::int64_t rows, columns;
  std::int64_t row_stride, column_stride;
};

// The matrix in the last two dimensions.
Matrix matrix_of(const Tensor& x) {
  const int d = x.dim();
  return {static_cast<const char*>(x.raw_data()), x.shape()[d - 2], x.shape()[d - 1],
          x.strides()[d - 2], x.strides()[d - 1]};
}

// Whether the kernel can use the matrix, whose dimensions of length 1 get the strides of a packed
// one.
bool suits_kernel(Matrix& m) {
  if (m.columns <= 1) m.column_stride = 1;
  if (m.column_stride == 1 &&
      (m.rows <= 1 || m.row_stride >= std::max<std::int64_t>(m.columns, 1))) {
    if (m.rows <= 1) m.row_stride = std::max<std::int64_t>(m.columns, 1);
    return true;
  }
  if (m.rows <= 1) m.row_stride = 1;
  if (m.row_stride == 1 && (m.columns <= 1 || m.column_stride >= m.rows)) {
    if (m.columns <= 1) m.column_stride = m.rows;
    return true;
  }
  return false;
}

// Batch dimensions of both operands, merged where both have regular steps: usually one is left.
struct Batch {
  Dims sizes, a_strides, b_strides;

  void add_outer(std::int64_t size, std::int64_t a, std::int64_t b) {
    if (size == 1) return;
    const int last = sizes.size() - 1;
    if (last >= 0 && a == a_strides[last] * sizes[last] && b == b_strides[last] * sizes[last]) {
      sizes[last] *= size;
      return;
    }
    sizes.push_back(size);
    a_strides.push_back(a);
    b_strides.push_back(b);
  }
};

std::int64_t batch_stride(const Tensor& x, int from_end) {
  const int i = x.dim() - 3 - from_end;
  return i < 0 || x.shape()[i] == 1 ? 0 : x.strides()[i];
}

// An operand or a result whose batch dimensions became part of the batch, rows or columns of one
// product.
struct Joined {
  Shape shape = {};  // outermost first: batch, rows, columns; without dimensions of length 1
  Strides strides = {};
  // Of batch, rows and columns.
  std::array<std::int64_t, 3> sizes = {1, 1, 1}, steps = {};
  bool regular = true;      // it has such steps
  std::int64_t stored = 1;  // elements in memory

  void add_inner(int axis, std::int64_t size, std::int64_t stride) {
    const auto i = static_cast<std::size_t>(axis);
    if (size == 1) return;
    if (sizes[i] > 1 && steps[i] != size * stride) regular = false;
    sizes[i] *= size;
    steps[i] = stride;
    shape.push_back(size);
    strides.push_back(stride);
    if (stride != 0) stored *= size;
  }
  Shape joined() const { return {sizes[0], sizes[1], sizes[2]}; }
  bool suits_kernel() const {
    Matrix m{nullptr, sizes[1], sizes[2], steps[1], steps[2]};
    return regular && raw::suits_kernel(m);
  }
  bool is_dense() const {
    const Strides dense = contiguous_strides(joined());
    for (int i = 0; i < 3; ++i) {
      const auto axis = static_cast<std::size_t>(i);
      if (sizes[axis] > 1 && steps[axis] != dense[i]) return false;
    }
    return regular;
  }
};

// Sets of batch dimensions, as bits: what becomes of them in one product.
struct Places {
  unsigned batch = 0, rows = 0, columns = 0;
  unsigned once = 0;  // outside of the product
};

Joined join(const Batch& batch, const Dims& strides, const Places& places, const Matrix& m) {
  Joined joined;
  const auto add = [&](int axis, unsigned dims) {
    for (int i = batch.sizes.size() - 1; i >= 0; --i) {
      if (dims >> i & 1) joined.add_inner(axis, batch.sizes[i], strides[i]);
    }
  };
  add(0, places.once);
  add(0, places.batch);
  add(1, places.rows);
  joined.add_inner(1, m.rows, m.row_stride);
  add(2, places.columns);
  joined.add_inner(2, m.columns, m.column_stride);
  return joined;
}

// x as [batch, rows, columns], a copy if the kernel could not use it so.
Tensor view_joined(const Tensor& x, const Joined& joined) {
  if (joined.suits_kernel()) {
    return make_view(x, x.offset(), joined.joined(),
                     {joined.steps[0], joined.steps[1], joined.steps[2]});
  }
  return reshape(contiguous(make_view(x, x.offset(), joined.shape, joined.strides)),
                 joined.joined());
}

View view_of(const Matrix& m, DType dtype, std::int64_t batch, std::int64_t stride) {
  return {const_cast<char*>(m.data),
          dtype,
          {batch, m.rows, m.columns},
          {stride, m.row_stride, m.column_stride}};
}

// What a kernel may do in the same pass, if it can; for one product, not for a batch.
struct Beside {
  bool sums_rows = false, makes_mask = false;
  Tensor row_sums = {};  // as MatmulArgs has them; undefined if the kernel did not make them
  Tensor mask = {};
  bool masked = false;  // the mask was applied
};

// Asks for a plan that does what `beside` says in the same pass, and makes room for its results.
template <class PlanFor>
PlanRef<MatmulPlan> plan_beside(PlanFor plan_for, MatmulArgs& args, Beside& beside, Device device) {
  const std::int64_t m = args.y.shape[1];
  const Shape of_mask{m, mask_bytes(args.y.shape[2])};
  if (beside.sums_rows) args.row_sums.shape = {m};
  if (beside.mask.defined()) args.mask = beside.mask.view_of();
  PlanRef<MatmulPlan> plan = plan_for(args);
  const bool fuses = plan->fuses(args);
  beside.masked = fuses && beside.mask.defined();
  if (fuses && beside.sums_rows) beside.row_sums = allocate({m}, args.y.dtype, device);
  if (fuses && beside.makes_mask) beside.mask = allocate(of_mask, DType::u8, device);
  args.row_sums = beside.row_sums.defined() ? beside.row_sums.view_of() : View();
  args.mask = fuses && beside.mask.defined() ? beside.mask.view_of() : View();
  return plan;
}

void run_matmul(const char* op, const Tensor& a, const Tensor& b, const Tensor& bias,
                const Tensor& y, Activation then = Activation::none, Beside* beside = nullptr);

// run_matmul() for a batch of several dimensions, as one call whatever their lengths. A dimension
// over which one operand is broadcast stays in the batch or joins the other operand's rows or
// columns; one over which both are is computed once. Each way may need copies of the operands, or
// of y; that which moves the fewest bytes is taken. One of them repeats nothing that is broadcast,
// so the copies are in sum no larger than operands and y.
void run_as_one(const char* op, const Tensor& a, const Tensor& b, const Tensor& bias,
                const Tensor& y, Activation then, Beside* beside, const Batch& batch) {
  const Matrix ma = matrix_of(a), mb = matrix_of(b), my = matrix_of(y);
  Strides y_strides;
  unsigned all = 0, a_broadcast = 0, b_broadcast = 0;
  for (int i = 0; i < batch.sizes.size(); ++i) {
    y_strides.push_back(i == 0 ? my.rows * my.columns : y_strides[i - 1] * batch.sizes[i - 1]);
    all |= 1u << i;
    if (batch.a_strides[i] == 0) a_broadcast |= 1u << i;
    if (batch.b_strides[i] == 0) b_broadcast |= 1u << i;
  }
  const unsigned once = a_broadcast & b_broadcast;
  Places best;
  Joined of_a, of_b, of_y;
  double fewest = std::numeric_limits<double>::infinity();
  for (unsigned joins = all + 1; joins-- > 0;) {  // larger matrices first
    if (joins & (once | ~(a_broadcast | b_broadcast))) continue;
    const Places places = {.batch = all & ~once & ~joins,
                           .rows = joins & b_broadcast,
                           .columns = joins & a_broadcast,
                           .once = once};
    // An operand that is broadcast over the whole batch is one matrix.
    const auto batch_of = [&](unsigned broadcast) {
      return places.batch & ~broadcast ? places.batch : 0;
    };
    const Joined ja =
        join(batch, batch.a_strides, {.batch = batch_of(a_broadcast), .rows = places.rows}, ma);
    const Joined jb = join(batch, batch.b_strides,
                           {.batch = batch_of(b_broadcast), .columns = places.columns}, mb);
    const Joined jy = join(batch, y_strides, {places.batch, places.rows, places.columns}, my);
    // What is copied is read, written, and read again.
    const auto elements = [](const Joined& j) {
      return static_cast<double>(j.stored) +
             (j.suits_kernel() ? 0 : 2 * static_cast<double>(numel(j.joined())));
    };
    // What `beside` wants is a pass over y of its own after a batch or a copy: it reads and writes.
    const bool wants = beside && (beside->makes_mask || beside->mask.defined());
    const bool has_pass = wants && (places.batch != 0 || !jy.is_dense());
    const double bytes = (elements(ja) + elements(jb)) * static_cast<double>(size_of(a.dtype())) +
                         static_cast<double>(jy.stored) *
                             ((jy.is_dense() ? 1 : 3) + (has_pass ? 2 : 0)) *
                             static_cast<double>(size_of(y.dtype()));
    if (bytes >= fewest) continue;
    fewest = bytes, best = places;
    of_a = ja, of_b = jb, of_y = jy;
  }
  const Shape shape = of_y.joined();
  const bool in_place = once == 0 && of_y.is_dense();
  const Tensor out = in_place ? make_view(y, y.offset(), shape, contiguous_strides(shape))
                              : allocate(shape, y.dtype(), y.device());
  const std::int64_t repeats = shape.back() / my.columns;
  const Tensor row = bias.defined() && repeats > 1
                         ? reshape(expand(bias, {repeats, my.columns}), {shape.back()})
                         : bias;
  run_matmul(op, view_joined(a, of_a), view_joined(b, of_b), row, out, then,
             in_place ? beside : nullptr);
  if (in_place) return;
  const Joined all_of_y = join(batch, y_strides, best, my);
  copy_(make_view(y, y.offset(), all_of_y.shape, all_of_y.strides), reshape(out, of_y.shape));
}

// y [.., M, N] = then(a b + bias), y row-major and new.
void run_matmul(const char* op, const Tensor& a, const Tensor& b, const Tensor& bias,
                const Tensor& y, Activation then, Beside* beside) {
  if (a.shape().back() == 0) {  // the sums are empty; an empty matrix may have any strides
    bias.defined() ? copy_(y, bias) : zero_(y);
    if (then == Activation::relu) unary_(UnaryOp::relu, y);
    return;
  }
  Batch batch;
  for (int i = 0; i < y.dim() - 2; ++i) {
    batch.add_outer(y.shape()[y.dim() - 3 - i], batch_stride(a, i), batch_stride(b, i));
  }
  if (batch.sizes.size() > 1 && y.device().type == DeviceType::cuda) {
    return run_as_one(op, a, b, bias, y, then, beside, batch);
  }
  Matrix ma = matrix_of(a), mb = matrix_of(b);
  if (!suits_kernel(ma)) return run_matmul(op, contiguous(a), b, bias, y, then, beside);
  if (!suits_kernel(mb)) return run_matmul(op, a, contiguous(b), bias, y, then, beside);
  if (std::int64_t* count = thread_state().multiply_adds) *count += y.numel() * a.shape().back();

  // If b is the same for all, the matrices of a together are one tall matrix.
  const bool tall = batch.sizes.size() == 1 && batch.b_strides[0] == 0 && ma.column_stride == 1 &&
                    batch.a_strides[0] == ma.rows * ma.row_stride;
  if (tall) {
    ma.rows *= batch.sizes[0];
    batch = Batch();
  }
  const DType dtype = a.dtype();
  const Device device = y.device();
  const std::int64_t inner = batch.sizes.empty() ? 1 : batch.sizes[0];
  MatmulArgs args;
  args.a = view_of(ma, dtype, inner, batch.sizes.empty() ? 0 : batch.a_strides[0]);
  args.b = view_of(mb, dtype, inner, batch.sizes.empty() ? 0 : batch.b_strides[0]);
  args.y = {y.raw_data(), y.dtype(), {inner, ma.rows, mb.columns}, {}};
  args.y.strides = contiguous_strides(args.y.shape);
  if (bias.defined()) args.bias = bias.view_of();
  args.then = then;

  const auto plan_for = kernel(device, &KernelTable::matmul, &MatmulKernels::plan, op, dtype);
  const auto run = kernel(device, &KernelTable::matmul, &MatmulKernels::run, op, dtype);
  const bool single = batch.sizes.empty();
  const PlanRef<MatmulPlan> plan =
      beside && single ? plan_beside(plan_for, args, *beside, device) : plan_for(args);
  const Workspace workspace(device, plan->workspace_bytes);
  const Stream stream = current_stream(device);

  // Batch dimensions that could not be merged are looped over on the CPU, innermost first.
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t bytes_of_y = static_cast<std::int64_t>(size_of(y.dtype()));
  const std::int64_t outer = numel(batch.sizes) / inner;
  char* out = static_cast<char*>(args.y.data);
  for (std::int64_t i = 0; i < outer; ++i) {
    std::int64_t rest = i, at_a = 0, at_b = 0;
    for (int d = 1; d < batch.sizes.size(); ++d) {
      const std::int64_t k = rest % batch.sizes[d];
      rest /= batch.sizes[d];
      at_a += k * batch.a_strides[d];
      at_b += k * batch.b_strides[d];
    }
    args.a.data = const_cast<char*>(ma.data) + at_a * bytes;
    args.b.data = const_cast<char*>(mb.data) + at_b * bytes;
    args.y.data = out + i * inner * ma.rows * mb.columns * bytes_of_y;
    run(stream, *plan, args, workspace.data());
  }
}

// The bias as one row of n, or undefined.
Tensor checked_bias(const char* op, const Tensor& a, const Tensor& bias, std::int64_t n) {
  if (!bias.defined()) return bias;
  check_same_kind(op, "a", a, "bias", bias);
  WEFT_CHECK(bias.dim() == 1 && bias.shape()[0] == n, Shape, op, "bias: got ", bias.shape(),
             ", expected [", n, "]");
  return contiguous(bias);
}

// y = a b of integers, modulo 2^bits: sums of products of a column of a with a row of b, as many
// columns at a time as fit into a block.
void multiply_integers(const Tensor& a, const Tensor& b, const Tensor& y) {
  constexpr std::int64_t kBlock = 1 << 20;  // products
  zero_(y);
  const std::int64_t k = a.shape().back();
  const std::int64_t step = std::max<std::int64_t>(kBlock / y.numel(), 1);
  const Tensor columns = unsqueeze(a, -1), rows = unsqueeze(b, -3);
  for (std::int64_t i = 0; i < k; i += step) {
    const std::int64_t n = std::min(step, k - i);
    const Tensor products = mul(narrow(columns, -2, i, n), narrow(rows, -2, i, n));
    binary_(BinaryOp::add, y, cast(sum(products, {-2}), y.dtype()));
  }
}

Tensor product(const Tensor& a, const Tensor& b, const Tensor& bias, std::optional<DType> out_dtype,
               Beside* beside = nullptr) {
  const char* op = "matmul";
  const Span span("op", op);
  check_same_kind(op, "a", a, "b", b);
  WEFT_CHECK(a.dtype() != DType::boolean, Dtype, op, "a: got bool, expected numbers");
  WEFT_CHECK(a.dim() >= 1 && b.dim() >= 1, Shape, op, "needs vectors or matrices, got a ",
             a.shape(), ", b ", b.shape());
  if (a.dim() == 1 || b.dim() == 1) {
    // A vector on the left is a row, on the right a column.
    const Tensor y = product(a.dim() == 1 ? unsqueeze(a, 0) : a, b.dim() == 1 ? unsqueeze(b, 1) : b,
                             bias, out_dtype);
    const Tensor rows = b.dim() == 1 ? squeeze(y, -1) : y;
    return a.dim() == 1 ? squeeze(rows, b.dim() == 1 ? -1 : -2) : rows;
  }
  const std::int64_t m = a.shape()[a.dim() - 2], k = a.shape().back();
  const std::int64_t n = b.shape().back();
  WEFT_CHECK(b.shape()[b.dim() - 2] == k, Shape, op, "inner dimensions: a has ", k, ", b has ",
             b.shape()[b.dim() - 2], " (a ", a.shape(), ", b ", b.shape(), ")");
  Shape shape;
  if (a.dim() > 2 || b.dim() > 2) {
    const std::span<const std::int64_t> sa = a.shape(), sb = b.shape();
    shape = broadcast_shapes(Dims(sa.first(sa.size() - 2)), Dims(sb.first(sb.size() - 2)), op);
  }
  shape.push_back(m);
  shape.push_back(n);
  const Tensor row = checked_bias(op, a, bias, n);
  const DType dtype = out_dtype.value_or(a.dtype());
  WEFT_CHECK(dtype == a.dtype() || (a.dtype() == DType::bf16 && dtype == DType::f32), Dtype, op,
             "out_dtype: got ", dtype, " of ", a.dtype(), " operands, expected ", a.dtype(),
             ", or f32 of bf16");
  Tensor y = allocate(shape, dtype, a.device());
  if (y.numel() == 0) return y;
  if (is_floating(dtype)) {
    run_matmul(op, a, b, row, y, Activation::none, beside);
    return y;
  }
  check_rank(op, shape, shape.size() + 1);
  multiply_integers(a, b, y);
  return row.defined() ? add(y, row) : y;
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, Activation then,
              Beside* beside) {
  const char* op = "linear";
  const Span span("op", op);
  check_same_kind(op, "x", x, "w", w);
  check_floating(op, "x", x);
  WEFT_CHECK(w.dim() == 2, Shape, op, "weight: got ", w.shape(), ", expected [out,in]");
  WEFT_CHECK(x.dim() >= 1, Shape, op, "input: got a scalar, expected [..,in]");
  WEFT_CHECK(x.shape().back() == w.shape()[1], Shape, op, "input features: got ", x.shape().back(),
             ", weight expects ", w.shape()[1], " (x ", x.shape(), ", w ", w.shape(), ")");
  const Tensor row = checked_bias(op, x, bias, w.shape()[0]);
  Shape shape = x.shape();
  shape[shape.size() - 1] = w.shape()[0];
  Tensor y = allocate(shape, x.dtype(), x.device());
  if (y.numel() == 0) return y;
  const Tensor wt = transpose(w, 0, 1);
  if (x.dim() == 1) {
    run_matmul(op, unsqueeze(x, 0), wt, row, unsqueeze(y, 0), then, beside);
  } else {
    run_matmul(op, x, wt, row, y, then, beside);
  }
  return y;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias) {
  return product(a, b, bias, {});
}

Tensor matmul(const Tensor& a, const Tensor& b, DType out_dtype) {
  return product(a, b, {}, out_dtype);
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, Activation then) {
  return linear(x, w, bias, then, nullptr);
}

std::pair<Tensor, Tensor> linear_relu(const Tensor& x, const Tensor& w, const Tensor& bias) {
  Beside beside{.makes_mask = bias.defined()};
  Tensor y = linear(x, w, bias, Activation::relu, &beside);
  return {std::move(y), std::move(beside.mask)};
}

std::pair<Tensor, bool> matmul_where(const Tensor& a, const Tensor& b, const Tensor& mask) {
  Beside beside{.mask = mask};
  Tensor y = product(a, b, {}, {}, &beside);
  return {std::move(y), beside.masked};
}

std::pair<Tensor, Tensor> linear_backward_weights(const Tensor& x, const Tensor& grad_y) {
  check_same_kind("linear", "x", x, "gradient", grad_y);
  Beside beside{.sums_rows = true};
  Tensor grad_w = product(transpose(grad_y, 0, 1), x, {}, {}, &beside);
  if (!beside.row_sums.defined()) beside.row_sums = sum(grad_y, {0});
  return {std::move(grad_w), std::move(beside.row_sums)};
}

}  // namespace weft::raw
