#include "weft/autograd/named_padding.h"

#include <array>
#include <cstdint>

#include "weft/autograd/copies.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"

namespace weft {

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, std::string_view padding,
              Conv2dParams params, Activation then) {
  const char* op = "conv2d";
  WEFT_CHECK(padding == "same" || padding == "valid", InvalidArgument, op, "padding: got '",
             padding, "', expected a number, 'same' or 'valid'");
  WEFT_CHECK(!params.transposed, InvalidArgument, op,
             "a transposed convolution has its padding in numbers");
  WEFT_CHECK((params.padding == std::array<std::int64_t, 2>{0, 0}), InvalidArgument, op,
             "padding is given as '", padding, "' and in numbers");
  if (padding == "valid") return conv2d(x, w, bias, params, then);
  autograd::check_defined(op, "x", x);
  autograd::check_defined(op, "w", w);
  WEFT_CHECK(w.dim() == 4 && w.shape(2) > 0 && w.shape(3) > 0, Shape, op, "weight: got ", w.shape(),
             ", expected four dimensions and a window");
  std::array<std::int64_t, 2> odd{};
  for (int i = 0; i < 2; ++i) {
    WEFT_CHECK(params.stride[i] == 1, InvalidArgument, op, "padding 'same' needs stride 1, got ",
               params.stride[i]);
    WEFT_CHECK(params.dilation[i] > 0, InvalidArgument, op, "dilation: got ", params.dilation[i],
               ", expected 1 or more");
    const std::int64_t zeros = checked_mul(params.dilation[i], w.shape(2 + i) - 1, op);
    params.padding[i] = zeros / 2;
    odd[i] = zeros % 2;
  }
  if (odd[0] + odd[1] == 0) return conv2d(x, w, bias, params, then);
  return conv2d(pad(x, {0, odd[1], 0, odd[0]}), w, bias, params, then);
}

Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, std::string_view padding,
              const Conv1dParams& params) {
  autograd::check_defined("conv1d", "x", x);
  autograd::check_defined("conv1d", "w", w);
  WEFT_CHECK((x.dim() == 3 || x.dim() == 2) && w.dim() == 3, Shape, "conv1d",
             "needs x [N,C,L] or [C,L] and w [K,C/groups,R], got ", x.shape(), " and ", w.shape());
  const Conv2dParams of_rows{.stride = {1, params.stride},
                             .padding = {0, params.padding},
                             .dilation = {1, params.dilation},
                             .groups = params.groups};
  return conv2d(x.unsqueeze(-2), w.unsqueeze(2), bias, padding, of_rows).squeeze(-2);
}

}  // namespace weft
