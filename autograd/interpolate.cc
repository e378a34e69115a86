#include "weft/autograd/interpolate.h"

#include <cmath>

#include "weft/autograd/autocast.h"
#include "weft/autograd/description.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;

namespace {

constexpr const char* kInterpolate = "interpolate";

using autograd::Description;

// Each output position along one dimension is the sum of weights[k] times input position index[k].
struct Taps {
  std::vector<Tensor> index, weights;  // i64 [out]; of the computed dtype, none for one tap
  double step = 0;                     // the distance of positions in the input
  bool align_corners = false;

  void describe(Description& d, std::int64_t dim) const {
    d.ints = {{"dim", {dim}}, {"linear", {!weights.empty()}}, {"align_corners", {align_corners}}};
    d.numbers["step"] = step;
    for (std::size_t k = 0; k < index.size(); ++k) {
      d.tensors["index" + std::to_string(k)] = index[k];
      if (k < weights.size()) d.tensors["weights" + std::to_string(k)] = weights[k];
    }
  }
};

Tensor resample(const Tensor& x, std::int64_t dim, const Taps& taps) {
  Tensor y;
  for (std::size_t k = 0; k < taps.index.size(); ++k) {
    Tensor part = raw::index_select(x, dim, taps.index[k], false);
    if (k < taps.weights.size()) raw::binary_(BinaryOp::mul, part, taps.weights[k]);
    y = y.defined() ? raw::add(y, part) : part;
  }
  return y;
}

// The gradient of resample, for an input of `length` positions.
Tensor gather_back(const Tensor& grad, std::int64_t dim, const Taps& taps, std::int64_t length) {
  Shape shape = grad.shape();
  shape[dim] = length;
  const Tensor x = zeros(shape, {grad.dtype(), grad.device()});
  for (std::size_t k = 0; k < taps.index.size(); ++k) {
    const Tensor part = k < taps.weights.size() ? raw::mul(grad, taps.weights[k]) : grad;
    raw::index_add_(x, dim, taps.index[k], part, false);
  }
  return x;
}

// The same on the tape: the adjoints of each other.
Tensor resampled(const Tensor& x, std::int64_t dim, const Taps& taps);
Tensor gathered_back(const Tensor& grad, std::int64_t dim, const Taps& taps, std::int64_t length) {
  return autograd::record_linear("interpolate_backward", gather_back(grad, dim, taps, length), grad,
                                 [dim, taps](const Tensor& g) { return resampled(g, dim, taps); });
}
Tensor resampled(const Tensor& x, std::int64_t dim, const Taps& taps) {
  return autograd::record_linear(
      kInterpolate, resample(x, dim, taps), x,
      [dim, taps, length = x.shape(int(dim))](const Tensor& grad) {
        return gathered_back(grad, dim, taps, length);
      },
      [dim, taps](Description& d) { taps.describe(d, dim); });
}

// Positions are computed in the dtype of the pixels, as in PyTorch, so that they are rounded alike.
Taps taps_of(const Tensor& x, std::int64_t dim, std::int64_t out, double per_pixel, bool linear,
             bool align_corners) {
  const double last = static_cast<double>(x.shape(dim)) - 1;
  const TensorOptions like(x.dtype(), x.device());
  Tensor at = arange(0, static_cast<double>(out), 1, like);
  if (linear && !align_corners) {
    at = raw::clamp(raw::sub(raw::mul(raw::add(at, 0.5), per_pixel), 0.5), 0);
  } else {
    at = raw::mul(at, per_pixel);
  }
  const Tensor low = raw::clamp(raw::floor(at), {}, last);
  const auto index = [](const Tensor& t) { return raw::to(t, DType::i64); };
  if (!linear) return {{index(low)}, {}, per_pixel};
  const Tensor high = raw::clamp(raw::add(low, 1), {}, last);
  Shape along = Shape::filled(x.dim(), 1);
  along[dim] = out;
  const Tensor share = raw::reshape(raw::clamp(raw::sub(at, low), 0, 1), along);
  return {{index(low), index(high)}, {raw::sub(1, share), share}, per_pixel, align_corners};
}

void check(const Tensor& x, const InterpolateOptions& options, int sides) {
  const char* op = kInterpolate;
  WEFT_CHECK(is_floating(x.dtype()) || x.dtype() == DType::u8, Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype or u8");
  bool pixels = sides == 1 || sides == 2;
  for (int i = 0; i < sides; ++i) pixels = pixels && x.shape(2 + i) > 0;
  WEFT_CHECK(pixels, Shape, op, "x: got ", x.shape(),
             ", expected [N,C,H,W] or [N,C,L] with pixels");
  const std::string linear = sides == 1 ? "linear" : "bilinear";
  WEFT_CHECK(options.mode == linear || options.mode == "nearest", InvalidArgument, op,
             "mode: got '", options.mode, "', expected 'nearest' or '", linear, "' for x ",
             x.shape());
  WEFT_CHECK(options.mode == linear || !options.align_corners, InvalidArgument, op,
             "align_corners belongs to mode '", linear, "'");
  const std::size_t sizes = static_cast<std::size_t>(options.size.size());
  const std::size_t scales = options.scale_factor.size();
  WEFT_CHECK((sizes == 0) != (scales == 0) &&
                 (sizes + scales == 1 || sizes + scales == static_cast<std::size_t>(sides)),
             InvalidArgument, op, "needs size or scale_factor, ",
             sides == 1 ? "of one number" : "of one or two numbers");
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  const char* op = kInterpolate;
  check_defined(op, "x", x);
  if (autocasts(CastPolicy::f32_on_cuda, x)) {
    return interpolate(autocast(CastPolicy::f32_on_cuda, x), options);
  }
  const int sides = x.dim() - 2;
  check(x, options, sides);
  if (x.dtype() == DType::bf16) return interpolate(x.to(DType::f32), options).to(DType::bf16);

  const auto& scales = options.scale_factor;
  const bool linear = options.mode != "nearest";
  const bool bytes = x.dtype() == DType::u8;
  Tensor y = bytes ? x.to(DType::f32) : x;
  for (int axis = sides - 1; axis >= 0; --axis) {
    const int dim = 2 + axis;
    const std::int64_t in = x.shape(dim);
    const double scale = scales.empty() ? 0 : scales[scales.size() == 1 ? 0 : axis];
    const double length =
        scales.empty() ? static_cast<double>(options.size[options.size.size() == 1 ? 0 : axis])
                       : std::floor(static_cast<double>(in) * scale);
    WEFT_CHECK(length > 0 && length <= static_cast<double>(kMaxPixels), InvalidArgument, op,
               "a side of the result needs 1 to ", kMaxPixels, " pixels: size ", options.size,
               ", scale_factor ", scale, " of x ", x.shape());
    const auto out = static_cast<std::int64_t>(length);
    // The distance in x between neighbouring pixels of the result.
    double step = scales.empty() ? static_cast<double>(in) / static_cast<double>(out) : 1 / scale;
    if (options.align_corners) {
      step = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
    }
    const Taps taps = taps_of(y, dim, out, step, linear, options.align_corners);
    y = resampled(y, dim, taps);
    if (bytes) y = raw::floor(raw::add(y, 0.5));  // after each dimension, as PyTorch
  }
  return bytes ? y.to(DType::u8) : y;
}

}  // namespace weft
