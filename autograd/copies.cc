#include "weft/autograd/copies.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/pool.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::Description;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::record_linear;
using autograd::record_view;
using autograd::recording;

namespace {

// contiguous, clone, to: a copy of the same values.
class CopyNode final : public DifferentiableNode {
 public:
  CopyNode(const char* name, const Tensor& x)
      : DifferentiableNode(name), device_(x.device()), dtype_(x.dtype()) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    Tensor grad = grads.take().to(dtype_);
    // A gradient for a leaf on another CPU device is not copied: the leaf adds it from where it is.
    const bool read_from_afar = device_.is_cpu() && grad.device().is_cpu() && edges()[0].is_leaf();
    grads.set(0, read_from_afar ? std::move(grad) : grad.to(device_));
  }

 private:
  Device device_;
  DType dtype_;
};

class CatNode final : public DifferentiableNode {
 public:
  CatNode(std::span<const Tensor> parts, std::int64_t dim) : DifferentiableNode("cat"), dim_(dim) {
    parts_.reserve(parts.size());
    for (const Tensor& part : parts) {
      add_input(part);
      parts_.push_back({part.numel() > 0 ? part.shape()[dim] : 0, part.shape(), part.dtype()});
    }
  }
  void apply(Gradients& grads) override {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& [size, shape, dtype] = parts_[i];
      if (grads.wants(static_cast<int>(i))) {
        const Tensor grad = size > 0 ? grads.y().narrow(dim_, start, size)
                                     : zeros(shape, {dtype, grads.y().device()});
        grads.set(static_cast<int>(i), grad.to(dtype));
      }
      start += size;
    }
  }
  void describe(Description& d) const override { d.set("dim", dim_); }

 private:
  struct Part {
    std::int64_t size;  // 0 of an empty one, which may have any shape
    Shape shape;
    DType dtype;
  };
  std::int64_t dim_;
  std::vector<Part, PoolAllocator<Part>> parts_;
};

class StackNode final : public DifferentiableNode {
 public:
  StackNode(std::span<const Tensor> parts, std::int64_t dim)
      : DifferentiableNode("stack"), dim_(dim) {
    dtypes_.reserve(parts.size());
    for (const Tensor& part : parts) {
      add_input(part);
      dtypes_.push_back(part.dtype());
    }
  }
  void apply(Gradients& grads) override {
    for (int i = 0; i < grads.inputs(); ++i) {
      if (grads.wants(i)) grads.set(i, grads.y().select(dim_, i).to(dtypes_[i]));
    }
  }
  void describe(Description& d) const override { d.set("dim", dim_); }

 private:
  std::int64_t dim_;
  std::vector<DType, PoolAllocator<DType>> dtypes_;
};

}  // namespace

void autograd::record_copy(const char* op, const Tensor& copy, const Tensor& x) {
  WEFT_CHECK(copy.shape() == x.shape(), Shape, op, "the copy is ", copy.shape(), ", the tensor ",
             x.shape());
  WEFT_CHECK(!copy.requires_grad() || !copy.is_leaf(), InvalidArgument, op, "the copy (",
             copy.shape(), ") is a leaf that requires a gradient of its own");
  forget_plain_base(copy);
  if (recording(x)) return attach(copy, make_intrusive<CopyNode>(op, x));
  if (Meta* meta = meta_of(copy)) {
    meta->requires_grad.store(false, std::memory_order_release);
    meta->producer.reset();
  }
}

Tensor Tensor::contiguous() const {
  return record_view<CopyNode>(raw::contiguous(*this), *this, "contiguous");
}
Tensor Tensor::clone() const { return record_view<CopyNode>(raw::clone(*this), *this, "clone"); }
Tensor Tensor::to(Device device) const {
  return record_view<CopyNode>(raw::to(*this, device), *this, "to");
}
Tensor Tensor::to(DType dtype) const {
  Tensor y = raw::to(*this, dtype);
  if (is_floating(dtype)) return record_view<CopyNode>(std::move(y), *this, "to");
  return y.same(*this) ? y : autograd::observed("to", {}, std::move(y), *this);
}
Tensor Tensor::to(Device device, DType dtype) const {
  // Converts where the dtype is smaller, so that fewer bytes go between the devices.
  return size_of(dtype) < size_of(this->dtype()) ? to(dtype).to(device) : to(device).to(dtype);
}

Tensor cat(std::span<const Tensor> parts, std::int64_t dim) {
  Tensor y = raw::cat(parts, dim);
  if (!autograd::recording_any(parts)) return y;
  const int at = normalize_dim(dim, y.dim(), "cat");
  return record<CatNode>(std::move(y), parts, at);
}
Tensor cat(std::initializer_list<Tensor> parts, std::int64_t dim) {
  return cat(std::span<const Tensor>(parts.begin(), parts.size()), dim);
}
Tensor stack(std::span<const Tensor> parts, std::int64_t dim) {
  Tensor y = raw::stack(parts, dim);
  if (!autograd::recording_any(parts)) return y;
  return record<StackNode>(std::move(y), parts, normalize_dim(dim, parts[0].dim() + 1, "stack"));
}
Tensor stack(std::initializer_list<Tensor> parts, std::int64_t dim) {
  return stack(std::span<const Tensor>(parts.begin(), parts.size()), dim);
}

Tensor repeat(const Tensor& x, const Dims& counts) {
  check_defined("repeat", "x", x);
  WEFT_CHECK(counts.size() >= x.dim(), Shape, "repeat", "got ", counts.size(), " counts for ",
             x.shape());
  for (const std::int64_t n : counts) {
    WEFT_CHECK(n >= 0, InvalidArgument, "repeat", "negative count in ", counts);
  }
  const int added = counts.size() - x.dim();
  Shape whole = counts;
  for (int i = added; i < whole.size(); ++i) {
    whole[i] = checked_mul(counts[i], x.shape()[i - added], "repeat");
  }
  check_shape(whole, "repeat");
  // Returns early: without its empty dimension the shape could be too large for the loop below.
  if (numel(whole) == 0) return x.flatten().slice(0, 0, 0).reshape(whole).clone();
  Tensor y = x;
  while (y.dim() < counts.size()) y = y.unsqueeze(0);
  // One copy for two repeated dimensions, i and j. As five dimensions, since x may already have as
  // many as a tensor can have.
  const auto repeated_up_to = [&](int d) {
    while (d > 0 && counts[d] == 1) --d;
    return std::max(d, 0);
  };
  for (int end = counts.size(); end > 0;) {
    const int j = repeated_up_to(end - 1), i = repeated_up_to(j - 1);
    Shape shape = y.shape();
    std::int64_t outer = 1, middle = 1;
    for (int d = 0; d < i; ++d) outer *= shape[d];
    for (int d = i; d < j; ++d) middle *= shape[d];
    const std::int64_t inner = y.numel() / (outer * middle), times = i < j ? counts[i] : 1;
    shape[i] = whole[i], shape[j] = whole[j];
    y = y.reshape({outer, 1, middle, 1, inner})
            .expand({outer, times, middle, counts[j], inner})
            .reshape(shape);
    end = i;
  }
  // Also copies a single element, whose expanded view still shares x's memory.
  return y.storage() == x.storage() ? y.clone() : y;
}

namespace {

Tensor rolled(const Tensor& x, std::int64_t shift, std::int64_t dim) {
  const std::int64_t n = x.shape()[dim];
  const std::int64_t rest = shift % std::max<std::int64_t>(n, 1);
  const std::int64_t first = rest > 0 ? n - rest : -rest;  // the first element of the result
  if (first == 0) return raw::clone(x);
  return raw::cat(std::vector<Tensor>{raw::slice(x, dim, first, n), raw::slice(x, dim, 0, first)},
                  dim);
}

Tensor triangle(const char* op, const Tensor& x, std::int64_t diagonal, bool lower) {
  check_defined(op, "x", x);
  WEFT_CHECK(x.dim() >= 2, Shape, op, "needs matrices, got ", x.shape());
  if (x.numel() == 0) return x.clone();
  diagonal = std::clamp(diagonal, -x.shape(-2), x.shape(-1));  // no change beyond these
  // i32 is compared in half the time.
  const bool narrow = x.shape(-2) + x.shape(-1) <= std::numeric_limits<std::int32_t>::max();
  const auto count = [&](std::int64_t dim) {
    return arange(0, static_cast<double>(x.shape(dim)), 1,
                  {narrow ? DType::i32 : DType::i64, x.device()});
  };
  const Tensor columns = count(-1);
  const Tensor ends = raw::add(raw::unsqueeze(count(-2), 1), static_cast<double>(diagonal));
  const Tensor kept = lower ? raw::le(columns, ends) : raw::ge(columns, ends);
  return where(kept, x, scalar(0, {x.dtype(), x.device()}));
}

// pads: before and after, per dimension of x.
Tensor padded(const Tensor& x, const std::vector<std::int64_t>& pads, double value) {
  Shape shape = x.shape();
  Tensor from = x;
  for (int i = 0; i < x.dim(); ++i) {
    const std::int64_t before = pads[2 * i], after = pads[2 * i + 1], size = x.shape()[i];
    // Compares before it negates: the smallest integer cannot be negated.
    const bool enough = before >= -size && after >= -size - std::min<std::int64_t>(before, 0);
    WEFT_CHECK(enough, Shape, "pad", "dimension ", i, " of ", x.shape(),
               " has fewer elements than the padding (", before, ", ", after, ") takes away");
    const std::int64_t first = std::max<std::int64_t>(-before, 0);
    const std::int64_t last = size - std::max<std::int64_t>(-after, 0);
    from = raw::slice(from, i, first, last);
    shape[i] = checked_add(last - first, std::max<std::int64_t>(before, 0), "pad");
    shape[i] = checked_add(shape[i], std::max<std::int64_t>(after, 0), "pad");
  }
  check_shape(shape, "pad");
  Tensor y = full(shape, value, {x.dtype(), x.device()});
  Tensor to = y;
  for (int i = 0; i < x.dim(); ++i) {
    const std::int64_t start = std::max<std::int64_t>(pads[2 * i], 0);
    to = raw::slice(to, i, start, start + from.shape()[i]);
  }
  raw::copy_(to, from);
  return y;
}

// Checks the padding and gives {before, after} of each dimension, the first one first.
std::vector<std::int64_t> pads_of_all(const Tensor& x, const std::vector<std::int64_t>& pads) {
  check_defined("pad", "x", x);
  WEFT_CHECK(pads.size() % 2 == 0 && std::ssize(pads) <= 2 * x.dim(), Shape, "pad", "got ",
             pads.size(), " numbers for ", x.shape(),
             ", expected two per dimension, the last dimension first");
  std::vector<std::int64_t> of_all(static_cast<std::size_t>(2 * x.dim()), 0);
  for (std::size_t i = 0; i < pads.size(); ++i) {
    const std::size_t dim = static_cast<std::size_t>(x.dim()) - 1 - i / 2;
    of_all[2 * dim + i % 2] = pads[i];
  }
  return of_all;
}

// x with elements of its own before and after it.
Tensor padded_by_itself(const Tensor& x, int dim, std::int64_t before, std::int64_t after,
                        std::string_view mode) {
  if (before == 0 && after == 0) return x;
  const std::int64_t n = x.shape()[dim], most = std::max(before, after);
  const bool mirrors = mode == "reflect", repeats = mode == "replicate";
  WEFT_CHECK(mirrors   ? most < n
             : repeats ? n > 0
                       : most <= n,
             Shape, "pad", mode, ": dimension ", dim, " of ", x.shape(),
             " has too few elements for (", before, ", ", after, ")");
  const auto taken = [&](std::int64_t begin, std::int64_t count) {
    const Tensor part = x.slice(dim, begin, begin + (repeats ? 1 : count));
    if (mirrors) return flip(part, {dim});
    Shape shape = part.shape();
    shape[dim] = count;
    return part.expand(shape);
  };
  const Tensor front = taken(mirrors ? 1 : repeats ? 0 : n - before, before);
  const Tensor back = taken(mirrors ? n - 1 - after : repeats ? n - 1 : 0, after);
  return cat({front, x, back}, dim);
}

}  // namespace

Tensor flip(const Tensor& x, const Dims& dims) {
  return record_linear(
      "flip", raw::flip(x, dims), x, [dims](const Tensor& grad) { return flip(grad, dims); },
      [dims](Description& d) { d.set("dims", dims); });
}

Tensor roll(const Tensor& x, std::int64_t shift, std::optional<std::int64_t> dim) {
  check_defined("roll", "x", x);
  if (!dim || x.dim() == 0) {
    if (dim) normalize_dim(*dim, 1, "roll");
    return roll(x.reshape({x.numel()}), shift, 0).reshape(x.shape());
  }
  const int at = normalize_dim(*dim, x.dim(), "roll");
  const std::int64_t given = shift;                   // what an exporter needs: the size may vary
  shift %= std::max<std::int64_t>(x.shape()[at], 1);  // so that -shift cannot overflow
  return record_linear(
      "roll", rolled(x, shift, at), x,
      [shift, at](const Tensor& grad) { return roll(grad, -shift, at); },
      [given, at](Description& d) { d.ints = {{"shift", {given}}, {"dim", {at}}}; });
}

Tensor tril(const Tensor& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, false); }

namespace {

// The matrix that has x [n] on its diagonal.
Tensor matrix_of(const Tensor& x, std::int64_t diagonal) {
  const std::int64_t shift = std::abs(diagonal), n = checked_add(x.numel(), shift, "diag");
  Tensor y = zeros({n, n}, {x.dtype(), x.device()});
  raw::copy_(raw::diagonal(y, diagonal), x);
  return y;
}

}  // namespace

Tensor diag(const Tensor& x, std::int64_t diagonal) {
  check_defined("diag", "x", x);
  WEFT_CHECK(x.dim() == 1 || x.dim() == 2, Shape, "diag", "needs a vector or a matrix, got ",
             x.shape());
  if (x.dim() == 2) return x.diagonal(diagonal).clone();
  WEFT_CHECK(diagonal != std::numeric_limits<std::int64_t>::min(), Shape, "diag", "diagonal: got ",
             diagonal);
  return record_linear("diag", matrix_of(x, diagonal), x,
                       [diagonal](const Tensor& grad) { return grad.diagonal(diagonal).clone(); });
}

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::optional<std::int64_t> dim) {
  check_defined("repeat_interleave", "x", x);
  WEFT_CHECK(repeats >= 0, InvalidArgument, "repeat_interleave", "repeats: got ", repeats,
             ", expected 0 or more");
  if (!dim || x.dim() == 0) {
    if (dim) normalize_dim(*dim, 1, "repeat_interleave");
    if (x.dim() != 1) return repeat_interleave(x.reshape({x.numel()}), repeats, 0);
  }
  const int at = normalize_dim(dim.value_or(0), x.dim(), "repeat_interleave");
  Shape shape = x.shape();
  shape[at] = checked_mul(shape[at], repeats, "repeat_interleave");
  check_shape(shape, "repeat_interleave");
  // The parts before and after `at` as one dimension each: x may have as many as a tensor can have.
  std::int64_t outer = 1;
  for (int i = 0; i < at; ++i) outer *= x.shape()[i];
  if (x.numel() == 0 || repeats == 0) return x.flatten().slice(0, 0, 0).reshape(shape).clone();
  const std::int64_t n = outer * x.shape()[at], inner = x.numel() / n;
  return x.reshape({n, 1, inner}).expand({n, repeats, inner}).clone().reshape(shape);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<std::int64_t> dim) {
  check_defined("repeat_interleave", "x", x);
  check_defined("repeat_interleave", "repeats", repeats);
  WEFT_CHECK(repeats.dtype() == DType::i64 || repeats.dtype() == DType::i32, Dtype,
             "repeat_interleave", "repeats: got ", repeats.dtype(), ", expected i64 or i32");
  if (repeats.numel() == 1 && repeats.dim() <= 1) {
    return repeat_interleave(x, repeats.item<std::int64_t>(), dim);
  }
  if (!dim || x.dim() == 0) {
    if (dim) normalize_dim(*dim, 1, "repeat_interleave");
    if (x.dim() != 1) return repeat_interleave(x.reshape({x.numel()}), repeats, 0);
  }
  const int at = normalize_dim(dim.value_or(0), x.dim(), "repeat_interleave");
  WEFT_CHECK(repeats.shape() == Shape{x.shape()[at]}, Shape, "repeat_interleave", "repeats: got ",
             repeats.shape(), ", expected one for each of the ", x.shape()[at], " in dimension ",
             at, " of ", x.shape());
  const std::vector<std::int64_t> counts = repeats.to_vector<std::int64_t>();
  Shape shape = x.shape();
  shape[at] = 0;
  for (const std::int64_t times : counts) {
    WEFT_CHECK(times >= 0, InvalidArgument, "repeat_interleave", "repeats: got ", times,
               ", expected 0 or more");
    shape[at] = checked_add(shape[at], times, "repeat_interleave");
  }
  check_shape(shape, "repeat_interleave");
  const Tensor positions = empty({shape[at]}, {DType::i64, Device()});
  std::int64_t* next = positions.data<std::int64_t>();
  for (std::int64_t i = 0; i < std::ssize(counts); ++i) next = std::fill_n(next, counts[i], i);
  return index_select(x, at, positions.to(x.device()));
}

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value) {
  const std::vector<std::int64_t> of_all = pads_of_all(x, pads);
  raw::check_holds("pad", value, x.dtype());
  const auto adjoint = [pads](const Tensor& grad) {
    std::vector<std::int64_t> taken = pads;
    for (std::int64_t& n : taken) n = -n;
    return pad(grad, taken);
  };
  return record_linear("pad", padded(x, of_all, value), x, adjoint,
                       [of_all, value](Description& d) {
                         d.ints["pads"] = of_all;
                         d.numbers["value"] = value;
                       });
}

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, std::string_view mode) {
  if (mode == "constant") return pad(x, pads);
  WEFT_CHECK(mode == "reflect" || mode == "replicate" || mode == "circular", InvalidArgument, "pad",
             "mode: got '", mode, "', expected constant, reflect, replicate or circular");
  std::vector<std::int64_t> added = pads_of_all(x, pads), taken = pads;
  for (std::int64_t& n : added) n = std::max<std::int64_t>(n, 0);
  for (std::int64_t& n : taken) n = std::min<std::int64_t>(n, 0);
  const bool takes = std::ranges::any_of(taken, [](std::int64_t n) { return n < 0; });
  // As in PyTorch: "circular" copies from what is left, the others from all of x.
  const bool first = mode == "circular";
  Tensor y = takes && first ? pad(x, taken) : x;
  for (int i = 0; i < x.dim(); ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    y = padded_by_itself(y, i, added[at], added[at + 1], mode);
  }
  return takes && !first ? pad(y, taken) : y;
}

}  // namespace weft
