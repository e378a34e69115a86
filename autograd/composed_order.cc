// What composed.h declares about places: masks, and elements in another order.
#include <algorithm>

#include "weft/autograd/composed.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::record_linear;

namespace {

void check_mask(const char* op, const Tensor& x, const Tensor& mask) {
  check_defined(op, "x", x);
  check_defined(op, "mask", mask);
  WEFT_CHECK(mask.dtype() == DType::boolean, Dtype, op, "mask: got ", mask.dtype(),
             ", expected bool");
  WEFT_CHECK(mask.device() == x.device(), Device, op, "x is on ", x.device(), ", mask on ",
             mask.device());
}

// Positions of the elements that hold, in row-major order.
Tensor positions(const Tensor& mask) {
  const Tensor host = raw::contiguous(raw::to(mask, Device()));
  const bool* holds = host.data<bool>();
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    if (holds[i]) found.push_back(i);
  }
  return from_vector(found, {static_cast<std::int64_t>(found.size())}, mask.device());
}

}  // namespace

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_mask("masked_fill", x, mask);
  raw::check_holds("masked_fill", value, x.dtype());
  return where(mask, scalar(value, {x.dtype(), x.device()}), x);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_mask("masked_select", x, mask);
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  return x.expand(shape).flatten().index_select(0, positions(raw::expand(mask, shape)));
}

Tensor Tensor::operator[](const Tensor& mask) const {
  check_mask("masked_select", *this, mask);
  const int n = mask.dim();
  bool covers = n >= 1 && n <= dim();
  for (int i = 0; covers && i < n; ++i) covers = mask.shape()[i] == shape()[i];
  WEFT_CHECK(covers, Shape, "masked_select", "mask: got ", mask.shape(),
             ", which is not the first dimensions of ", shape());
  return flatten(0, n - 1).index_select(0, positions(mask));
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
  // Without its empty dimension it could be too large.
  if (numel(whole) == 0) return x.flatten().slice(0, 0, 0).reshape(whole).clone();
  Tensor y = x;
  while (y.dim() < counts.size()) y = y.unsqueeze(0);
  for (int i = counts.size() - 1; i >= 0; --i) {
    if (counts[i] == 1) continue;
    Shape shape = y.shape();
    shape[i] = whole[i];
    // In three dimensions, since there may be no room for one more.
    std::int64_t outer = 1;
    for (int d = 0; d < i; ++d) outer *= shape[d];
    const std::int64_t inner = y.numel() / outer;
    y = y.reshape({outer, 1, inner}).expand({outer, counts[i], inner}).reshape(shape);
  }
  // Also copies of one element, which need no memory to be expanded.
  return y.storage() == x.storage() ? y.clone() : y;
}

namespace {

Tensor flipped(const Tensor& x, const Dims& dims) {
  Tensor y = x;
  const bool empty = x.numel() == 0;
  unsigned seen = 0;
  for (const std::int64_t d : dims) {
    const int dim = normalize_dim(d, std::max(x.dim(), 1), "flip");
    WEFT_CHECK(!(seen >> dim & 1), Shape, "flip", "dimension ", dim, " appears twice in ", dims);
    seen |= 1u << dim;
    if (x.dim() == 0 || empty) continue;
    const double last = static_cast<double>(x.shape()[dim]) - 1;
    y = raw::index_select(y, dim, arange(last, -1, -1, {DType::i64, x.device()}), false);
  }
  return y.same(x) ? raw::clone(x) : y;
}

Tensor rolled(const Tensor& x, std::int64_t shift, std::int64_t dim) {
  const std::int64_t n = x.shape()[dim];
  const std::int64_t rest = shift % std::max<std::int64_t>(n, 1);
  const std::int64_t first = rest > 0 ? n - rest : -rest;  // what comes to the front
  if (first == 0) return raw::clone(x);
  return raw::cat(std::vector<Tensor>{raw::slice(x, dim, first, n), raw::slice(x, dim, 0, first)},
                  dim);
}

Tensor triangle(const char* op, const Tensor& x, std::int64_t diagonal, bool lower) {
  check_defined(op, "x", x);
  WEFT_CHECK(x.dim() >= 2, Shape, op, "needs matrices, got ", x.shape());
  if (x.numel() == 0) return x.clone();
  diagonal = std::clamp(diagonal, -x.shape(-2), x.shape(-1));  // beyond, all are on one side
  const auto count = [&](std::int64_t dim) {
    return arange(0, static_cast<double>(x.shape(dim)), 1, {DType::i64, x.device()});
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
    // Compared before they are negated, which the least number cannot be.
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

}  // namespace

Tensor flip(const Tensor& x, const Dims& dims) {
  check_defined("flip", "x", x);
  return record_linear("flip", flipped(x, dims), x,
                       [dims](const Tensor& grad) { return flipped(grad, dims); });
}

Tensor roll(const Tensor& x, std::int64_t shift, std::optional<std::int64_t> dim) {
  check_defined("roll", "x", x);
  if (!dim || x.dim() == 0) {
    if (dim) normalize_dim(*dim, 1, "roll");
    return roll(x.reshape({x.numel()}), shift, 0).reshape(x.shape());
  }
  const int at = normalize_dim(*dim, x.dim(), "roll");
  shift %= std::max<std::int64_t>(x.shape()[at], 1);  // can be turned around
  return record_linear("roll", rolled(x, shift, at), x,
                       [shift, at](const Tensor& grad) { return rolled(grad, -shift, at); });
}

Tensor tril(const Tensor& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, false); }

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value) {
  check_defined("pad", "x", x);
  WEFT_CHECK(pads.size() % 2 == 0 && std::ssize(pads) <= 2 * x.dim(), Shape, "pad", "got ",
             pads.size(), " numbers for ", x.shape(),
             ", expected two per dimension, the last dimension first");
  raw::check_holds("pad", value, x.dtype());
  std::vector<std::int64_t> of_all(static_cast<std::size_t>(2 * x.dim()), 0);
  for (std::size_t i = 0; i < pads.size(); ++i) {
    const std::size_t dim = static_cast<std::size_t>(x.dim()) - 1 - i / 2;
    of_all[2 * dim + i % 2] = pads[i];
  }
  Tensor y = padded(x, of_all, value);
  std::vector<std::int64_t> taken = of_all;
  for (std::int64_t& n : taken) n = -n;
  return record_linear("pad", std::move(y), x,
                       [taken](const Tensor& grad) { return padded(grad, taken, 0); });
}

}  // namespace weft
