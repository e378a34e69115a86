#include "weft/autograd/named_padding.h"

#include <array>
#include <cstdint>

#include "weft/autograd/copies.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"

namespace weft {
namespace {

/// Whether the padding is "same"; else it is "valid", which means no padding.
bool is_same(const char* op, std::string_view padding, bool has_numbers) {
  WEFT_CHECK(padding == "same" || padding == "valid", InvalidArgument, op, "padding: got '",
             padding, "', expected a number, 'same' or 'valid'");
  WEFT_CHECK(!has_numbers, InvalidArgument, op, "padding is given as '", padding,
             "' and in numbers");
  return padding == "same";
}

/// The zeros that keep the size of a dimension: as many at each end, and perhaps one more.
struct Zeros {
  std::int64_t each, more;
};
Zeros zeros_of(const char* op, const Tensor& w, int dim, std::int64_t stride,
               std::int64_t dilation) {
  WEFT_CHECK(w.shape(dim) > 0, Shape, op, "weight: got ", w.shape(), ", expected a window");
  WEFT_CHECK(stride == 1, InvalidArgument, op, "padding 'same' needs stride 1, got ", stride);
  WEFT_CHECK(dilation > 0, InvalidArgument, op, "dilation: got ", dilation, ", expected 1 or more");
  const std::int64_t zeros = checked_mul(dilation, w.shape(dim) - 1, op);
  return {zeros / 2, zeros % 2};
}

void check_weight(const char* op, const Tensor& x, const Tensor& w, std::int64_t dims) {
  autograd::check_defined(op, "x", x);
  autograd::check_defined(op, "w", w);
  WEFT_CHECK(w.dim() == dims, Shape, op, "weight: got ", w.shape(), ", expected ", dims,
             " dimensions");
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, std::string_view padding,
              Conv2dParams params, Activation then) {
  const char* op = "conv2d";
  WEFT_CHECK(!params.transposed, InvalidArgument, op,
             "a transposed convolution has its padding in numbers");
  const bool has_numbers = params.padding != std::array<std::int64_t, 2>{0, 0};
  if (!is_same(op, padding, has_numbers)) return conv2d(x, w, bias, params, then);
  check_weight(op, x, w, 4);
  const Zeros rows = zeros_of(op, w, 2, params.stride[0], params.dilation[0]);
  const Zeros columns = zeros_of(op, w, 3, params.stride[1], params.dilation[1]);
  params.padding = {rows.each, columns.each};
  if (rows.more + columns.more == 0) return conv2d(x, w, bias, params, then);
  return conv2d(pad(x, {0, columns.more, 0, rows.more}), w, bias, params, then);
}

Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, std::string_view padding,
              Conv1dParams params) {
  const char* op = "conv1d";
  if (!is_same(op, padding, params.padding != 0)) return conv1d(x, w, bias, params);
  check_weight(op, x, w, 3);
  const Zeros zeros = zeros_of(op, w, 2, params.stride, params.dilation);
  params.padding = zeros.each;
  return conv1d(zeros.more == 0 ? x : pad(x, {0, zeros.more}), w, bias, params);
}

}  // namespace weft
