#include "weft/nn/pixel_shuffle.h"

#include <initializer_list>

#include "weft/core/base/error.h"

namespace weft::nn {
namespace {

void check(const char* op, const Tensor& x, std::int64_t factor) {
  WEFT_CHECK(factor >= 1 && factor < (std::int64_t{1} << 31), InvalidArgument, op, "factor: got ",
             factor, ", expected 1 to 2^31 - 1");
  WEFT_CHECK(x.dim() >= 3 && x.dim() <= kMaxDims - 2, Shape, op, "input: got ", x.shape(),
             ", expected [..,C,H,W] of 3 to ", kMaxDims - 2, " dimensions");
}

// The dimensions of [..,C,H,W] before the last three.
Shape leading(const Tensor& x) {
  Shape shape;
  for (int i = 0; i + 3 < x.dim(); ++i) shape.push_back(x.shape()[i]);
  return shape;
}

Shape with(Shape shape, std::initializer_list<std::int64_t> last) {
  for (const std::int64_t n : last) shape.push_back(n);
  return shape;
}

// Permutes the last five dimensions into this order; the leading ones stay.
Tensor reordered(const Tensor& x, std::initializer_list<int> last_five) {
  const std::int64_t first = x.dim() - 5;
  Dims order;
  for (std::int64_t i = 0; i < first; ++i) order.push_back(i);
  for (const int i : last_five) order.push_back(first + i);
  return x.permute(order);
}

}  // namespace

Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor) {
  const char* op = "pixel_shuffle";
  const std::int64_t r = upscale_factor;
  check(op, x, r);
  const std::int64_t channels = x.shape(-3), h = x.shape(-2), w = x.shape(-1);
  WEFT_CHECK(channels % (r * r) == 0, Shape, op, "input: got ", x.shape(),
             ", whose channels are no multiple of ", r, "^2");
  const std::int64_t c = channels / (r * r);
  const std::int64_t height = checked_mul(h, r, op), width = checked_mul(w, r, op);
  const Tensor apart = x.reshape(with(leading(x), {c, r, r, h, w}));
  return reordered(apart, {0, 3, 1, 4, 2}).reshape(with(leading(x), {c, height, width}));
}

Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor) {
  const char* op = "pixel_unshuffle";
  const std::int64_t r = downscale_factor;
  check(op, x, r);
  const std::int64_t c = x.shape(-3), h = x.shape(-2), w = x.shape(-1);
  WEFT_CHECK(h % r == 0 && w % r == 0, Shape, op, "input: got ", x.shape(),
             ", whose height and width are no multiples of ", r);
  const std::int64_t channels = checked_mul(c, r * r, op);
  const Tensor apart = x.reshape(with(leading(x), {c, h / r, r, w / r, r}));
  return reordered(apart, {0, 2, 4, 1, 3}).reshape(with(leading(x), {channels, h / r, w / r}));
}

PixelShuffle::PixelShuffle(std::int64_t upscale_factor) : factor_(upscale_factor) {
  WEFT_CHECK(upscale_factor >= 1, InvalidArgument, "PixelShuffle", "upscale_factor: got ",
             upscale_factor, ", expected 1 or more");
  set_description(weft::detail::concat("upscale_factor=", upscale_factor));
}

}  // namespace weft::nn
