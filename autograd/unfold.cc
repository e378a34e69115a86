#include "weft/autograd/unfold.h"

#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {
namespace {

using Pair = std::array<std::int64_t, 2>;

// The most that a number may be; so no sum or product of two of them overflows.
constexpr std::int64_t kMost = std::int64_t{1} << 31;

void check_pair(const char* op, const char* name, const Pair& pair, std::int64_t least) {
  for (const std::int64_t n : pair) {
    WEFT_CHECK(n >= least && n < kMost, InvalidArgument, op, name, ": got ", n, ", expected ",
               least, " to 2^31 - 1");
  }
}

// How many windows fit into an image in each dimension.
Pair count_windows(const char* op, const Pair& size, const UnfoldParams& p) {
  check_pair(op, "kernel", p.kernel, 1);
  check_pair(op, "dilation", p.dilation, 1);
  check_pair(op, "padding", p.padding, 0);
  check_pair(op, "stride", p.stride, 1);
  Pair count;
  for (int i = 0; i < 2; ++i) {
    WEFT_CHECK(size[i] > 0 && size[i] < kMost, Shape, op, "image: got ", size[0], "x", size[1],
               ", expected 1 to 2^31 - 1 pixels on each side");
    const std::int64_t reach = p.dilation[i] * (p.kernel[i] - 1) + 1;
    const std::int64_t padded = size[i] + 2 * p.padding[i];
    WEFT_CHECK(reach <= padded, Shape, op, "window: ", reach, " is larger than the input, ",
               size[i], " padded by ", p.padding[i], " on both sides");
    count[i] = (padded - reach) / p.stride[i] + 1;
  }
  return count;
}

// The pixels of padded images [N,C,H,W] at place (i, j) of all windows: [N,C,Lh,Lw].
Tensor at_place(const Tensor& padded, std::int64_t i, std::int64_t j, const Pair& count,
                const UnfoldParams& p) {
  const auto every = [&](const Tensor& x, int side, std::int64_t place) {
    const std::int64_t first = place * p.dilation[side];
    const std::int64_t last = first + (count[side] - 1) * p.stride[side];
    return raw::slice(x, 2 + side, first, last + 1, p.stride[side]);
  };
  return every(every(padded, 0, i), 1, j);
}

// The images without their padding, a view.
Tensor inside(const Tensor& padded, const Pair& size, const UnfoldParams& p) {
  const Tensor rows = raw::narrow(padded, 2, p.padding[0], size[0]);
  return raw::narrow(rows, 3, p.padding[1], size[1]);
}

Tensor padded_zeros(const Tensor& like, std::int64_t n, std::int64_t c, const Pair& size,
                    const UnfoldParams& p) {
  return zeros({n, c, size[0] + 2 * p.padding[0], size[1] + 2 * p.padding[1]},
               {like.dtype(), like.device()});
}

// Calls f(window's place in the columns, pixels at that place).
template <class F>
void for_each_place(const Tensor& padded, const Pair& count, const UnfoldParams& p, F f) {
  if (padded.numel() == 0) return;
  for (std::int64_t i = 0; i < p.kernel[0]; ++i) {
    for (std::int64_t j = 0; j < p.kernel[1]; ++j) {
      f(i * p.kernel[1] + j, at_place(padded, i, j, count, p));
    }
  }
}

}  // namespace

Tensor unfold(const Tensor& x, const UnfoldParams& params) {
  const char* op = "unfold";
  autograd::check_defined(op, "x", x);
  WEFT_CHECK(x.dim() == 3 || x.dim() == 4, Shape, op, "input: got ", x.shape(),
             ", expected [N,C,H,W] or [C,H,W]");
  if (x.dim() == 3) return unfold(x.unsqueeze(0), params).squeeze(0);
  const std::int64_t n = x.shape(0), c = x.shape(1);
  WEFT_CHECK(c > 0, Shape, op, "input: got ", x.shape(), ", which has no channels");
  const Pair size{x.shape(2), x.shape(3)}, count = count_windows(op, size, params);
  Tensor padded = x;
  if (params.padding != Pair{0, 0}) {
    padded = padded_zeros(x, n, c, size, params);
    raw::copy_(inside(padded, size, params), x);
  }
  const std::int64_t places = checked_mul(params.kernel[0], params.kernel[1], op);
  const Shape columns{n, checked_mul(c, places, op), count[0] * count[1]};
  const Tensor y = empty({n, c, places, count[0], count[1]}, {x.dtype(), x.device()});
  for_each_place(padded, count, params, [&](std::int64_t place, const Tensor& pixels) {
    raw::copy_(raw::select(y, 2, place), pixels);
  });
  const auto back = [size, params](const Tensor& g) { return fold(g, size, params); };
  return autograd::record_linear(op, raw::reshape(y, columns), x, back);
}

Tensor fold(const Tensor& x, const Pair& size, const UnfoldParams& params) {
  const char* op = "fold";
  autograd::check_defined(op, "x", x);
  WEFT_CHECK(x.dim() == 2 || x.dim() == 3, Shape, op, "input: got ", x.shape(),
             ", expected [N,C kh kw,Lh Lw] or [C kh kw,Lh Lw]");
  if (x.dim() == 2) return fold(x.unsqueeze(0), size, params).squeeze(0);
  const Pair count = count_windows(op, size, params);
  const std::int64_t places = checked_mul(params.kernel[0], params.kernel[1], op);
  const std::int64_t n = x.shape(0), rows = x.shape(1);
  WEFT_CHECK(rows > 0 && rows % places == 0, Shape, op, "input: got ", x.shape(),
             ", expected a multiple of ", places, " rows, for a kernel of ", params.kernel[0], "x",
             params.kernel[1]);
  WEFT_CHECK(x.shape(2) == count[0] * count[1], Shape, op, "input: got ", x.shape(), ", expected ",
             count[0] * count[1], " columns, the windows of an image of ", size[0], "x", size[1]);
  const Tensor columns = raw::reshape(x, {n, rows / places, places, count[0], count[1]});
  const Tensor padded = padded_zeros(x, n, rows / places, size, params);
  for_each_place(padded, count, params, [&](std::int64_t place, const Tensor& pixels) {
    raw::add_scaled_(pixels, 1, raw::select(columns, 2, place));
  });
  const auto back = [params](const Tensor& g) { return unfold(g, params); };
  return autograd::record_linear(op, raw::contiguous(inside(padded, size, params)), x, back);
}

}  // namespace weft
