// Copies: to another layout, dtype or device, and joining of tensors.
#include <algorithm>
#include <array>
#include <span>

#include "weft/core/runtime/copy_stream.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace internal {

void copy_block(const Tensor& y, const Tensor& x) {
  graph::check_not_capturing("copy",
                             "host memory is not part of the step, nor is another device; copy "
                             "before or after it");
  const Device to = y.device();
  const Device from = x.device();
  const std::size_t bytes = x.numel() * size_of(x.dtype());
  const Stream stream = current_stream(from.is_cuda() ? from : to);
  Runtime& cuda = runtime(stream.device);
  if (to.is_cpu()) {
    cuda.copy(y.raw_data(), to, x.raw_data(), from, bytes, stream);
    cuda.synchronize(stream);  // the caller reads the memory next
  } else if (from.is_cpu()) {
    cuda.copy(y.raw_data(), to, x.raw_data(), from, bytes, stream);
    if (x.storage()->pinned()) x.storage()->record_stream(stream);
  } else {
    // The copy has a stream of its own, so that later work of the source need not wait. It runs
    // after x is made and after work of the target's stream that still uses y's memory, and before
    // later work of that stream.
    const Stream target = current_stream(to);
    const Stream copies = copy_stream(from);
    Storage& read = *x.storage();
    if (read.owned()) read.record_copy();
    const auto made = cuda.new_event(from.index);
    made->record(stream);
    made->block(copies);
    const auto free = cuda.new_event(to.index);
    free->record(target);
    free->block(copies);
    cuda.copy(y.raw_data(), to, x.raw_data(), from, bytes, copies);
    const auto done = cuda.new_event(from.index);
    done->record(copies);
    done->block(target);
    // The owner of borrowed memory knows only about the source's stream.
    if (!read.owned()) done->block(stream);
  }
}

}  // namespace internal

Tensor contiguous(const Tensor& x) {
  check_defined("contiguous", "x", x);
  if (x.is_contiguous()) return x;
  Tensor y = allocate(x.shape(), x.dtype(), x.device());
  copy_(y, x);
  return y;
}

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  check_defined("contiguous", "x", x);
  WEFT_CHECK(x.dim() == 4, Shape, "contiguous", "a memory format needs [N,C,H,W], got ", x.shape());
  if (format == MemoryFormat::nhwc ? is_nhwc(x) : is_nchw(x)) return x;
  Tensor y = allocate(x.shape(), format, x.dtype(), x.device());
  copy_(y, x);
  return y;
}

Tensor clone(const Tensor& x) {
  check_defined("clone", "x", x);
  Tensor y = allocate_like(x, x.dtype(), x.device());
  copy_(y, x);
  return y;
}

Tensor flip(const Tensor& x, const Dims& dims) {
  const char* op = "flip";
  check_defined(op, "x", x);
  View from = x.view_of();
  unsigned seen = 0;
  for (const std::int64_t d : dims) {
    const int dim = normalize_dim(d, std::max(x.dim(), 1), op);
    WEFT_CHECK(!(seen >> dim & 1), Shape, op, "dimension ", dim, " appears twice in ", dims);
    seen |= 1u << dim;
    if (x.numel() == 0 || x.dim() == 0) continue;
    // The same elements, from the last one on.
    std::int64_t& step = from.strides[dim];
    from.data = static_cast<char*>(from.data) +
                (x.shape()[dim] - 1) * step * static_cast<std::int64_t>(size_of(x.dtype()));
    step = -step;
  }
  const Span span("op", op);
  const auto copy =
      kernel(x.device(), &KernelTable::elementwise, &ElementwiseKernels::copy, op, x.dtype());
  Tensor y = allocate(x.shape(), x.dtype(), x.device());
  if (y.numel() > 0) copy(current_stream(x.device()), from, y.view_of());
  return y;
}

Tensor to(const Tensor& x, Device device) {
  check_defined("to", "x", x);
  if (x.device() == device) return x;
  if (!(x.device().is_cpu() && device.is_cpu()) && !x.is_dense()) return to(contiguous(x), device);
  Tensor y = allocate_like(x, x.dtype(), device);
  copy_(y, x);
  return y;
}

Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", "x", x);
  if (x.dtype() == dtype) return x;
  Tensor y = allocate_like(x, dtype, x.device());
  copy_(y, x);
  return y;
}

namespace {

// The dtype to which all parts are converted when they are copied into the result.
DType check_parts(const char* op, std::span<const Tensor> parts) {
  WEFT_CHECK(!parts.empty(), InvalidArgument, op, "needs at least one tensor");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) throw_undefined(op, detail::concat("tensor ", i).c_str());
  }
  DType dtype = parts[0].dtype();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (!(parts[i].device() == parts[0].device())) {
      const std::string name = detail::concat("tensor ", i);
      throw_device_mismatch(op, "tensor 0", parts[0].device(), name.c_str(), parts[i].device());
    }
    dtype = promote(dtype, parts[i].dtype());
  }
  return dtype;
}

}  // namespace

namespace {

/// Copies a few parts at a time: a list of all of them would take memory from the heap.
template <std::size_t at_once>
class PartCopies {
 public:
  PartCopies(decltype(ElementwiseKernels::copy_all) copy, const Stream& stream)
      : copy_(copy), stream_(stream) {}
  void add(const View& x, const View& y) {
    if (count_ == pairs_.size()) run();
    pairs_[count_++] = {x, y};
  }
  void run() {
    copy_(stream_, std::span(pairs_).first(count_));
    count_ = 0;
  }

 private:
  decltype(ElementwiseKernels::copy_all) copy_;
  Stream stream_;
  std::array<CopyPair, at_once> pairs_;
  std::size_t count_ = 0;
};

}  // namespace

std::vector<Tensor> to(std::span<const Tensor> xs, DType dtype) {
  const char* op = "to";
  std::vector<Tensor> ys;
  if (xs.empty()) return ys;
  for (const Tensor& x : xs) check_same_device(op, "the first tensor", xs[0], "another one", x);
  ys.reserve(xs.size());
  const Span span("op", op);
  const Device device = xs[0].device();
  const auto copy =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::copy_all, op, dtype);
  PartCopies<64> copies(copy, current_stream(device));
  for (const Tensor& x : xs) {
    ys.push_back(x.dtype() == dtype ? x : allocate_like(x, dtype, device));
    if (!ys.back().same(x) && x.numel() > 0) copies.add(x.view_of(), ys.back().view_of());
  }
  copies.run();
  return ys;
}

Tensor cat(std::span<const Tensor> parts, std::int64_t dim) {
  const DType dtype = check_parts("cat", parts);
  // As in PyTorch, [0] fits beside tensors of any shape.
  const auto has_shape = [](const Tensor& x) { return x.shape() != Shape{0}; };
  const auto given = std::find_if(parts.begin(), parts.end(), has_shape);
  const Tensor& first = given == parts.end() ? parts[0] : *given;
  dim = normalize_dim(dim, first.dim(), "cat");
  Shape shape = first.shape();
  shape[dim] = 0;
  bool channels_last = given != parts.end();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!has_shape(parts[i])) continue;
    Shape expected = first.shape();
    const Shape& got = parts[i].shape();
    if (got.size() == expected.size()) expected[dim] = got[dim];
    WEFT_CHECK(got == expected, Shape, "cat", "tensor ", i, ": got ", got, ", tensor ",
               &first - parts.data(), " is ", first.shape(), "; only dimension ", dim,
               " may differ");
    shape[dim] = checked_add(shape[dim], got[dim], "cat");
    channels_last &= is_nhwc(parts[i]) && !is_nchw(parts[i]);
  }
  const Span span("op", "cat");
  const Device device = first.device();
  const auto copy =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::copy_all, "cat", dtype);
  Tensor y =
      allocate(shape, channels_last ? MemoryFormat::nhwc : MemoryFormat::nchw, dtype, device);
  PartCopies<16> copies(copy, current_stream(device));
  View part = y.view_of();
  for (const Tensor& x : parts) {
    if (x.numel() == 0) continue;
    part.shape[dim] = x.shape()[dim];
    copies.add(x.view_of(), part);
    part.data = static_cast<char*>(part.data) +
                x.shape()[dim] * part.strides[dim] * static_cast<std::int64_t>(size_of(dtype));
  }
  copies.run();
  return y;
}

Tensor stack(std::span<const Tensor> parts, std::int64_t dim) {
  const DType dtype = check_parts("stack", parts);
  const Tensor& first = parts[0];
  check_rank("stack", first.shape(), first.dim() + 1);
  dim = normalize_dim(dim, first.dim() + 1, "stack");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    WEFT_CHECK(parts[i].shape() == first.shape(), Shape, "stack", "tensor ", i, ": got ",
               parts[i].shape(), ", tensor 0 is ", first.shape());
  }
  const Span span("op", "stack");
  const Device device = first.device();
  const auto copy =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::copy_all, "stack", dtype);
  Shape shape = first.shape();
  shape.insert(dim, static_cast<std::int64_t>(parts.size()));
  Tensor y = allocate(shape, dtype, device);
  if (y.numel() == 0) return y;
  PartCopies<16> copies(copy, current_stream(device));
  View part = y.view_of();
  const std::int64_t step = part.strides[dim] * static_cast<std::int64_t>(size_of(dtype));
  part.shape.erase(dim);
  part.strides.erase(dim);
  for (const Tensor& x : parts) {
    copies.add(x.view_of(), part);
    part.data = static_cast<char*>(part.data) + step;
  }
  copies.run();
  return y;
}

}  // namespace weft::raw
