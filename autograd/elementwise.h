// Element-wise operations, recorded on the tape; tests of values. tensor/ops.h and
// tensor/elementwise.h have what is not said here; operators are in arithmetic.h.
#pragma once

#include <optional>

#include "weft/tensor/elementwise.h"

namespace weft {

#define WEFT_DECLARE(value, name, ...) Tensor name(const Tensor& x);
WEFT_UNARY_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE
/// Works in place if nobody else holds x and the tape does not need it: relu(conv(x)) needs no new
/// memory.
Tensor relu(Tensor&& x);
/// As raw::leaky_relu; the second form works in place as relu does.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
Tensor leaky_relu(Tensor&& x, double negative_slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
Tensor smooth_l1(const Tensor& x, double beta = 1);

#define WEFT_DECLARE(value, name, ...)           \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, double b);
WEFT_BINARY_OPS(WEFT_DECLARE)
// Comparisons: boolean results have no gradient.
WEFT_COMPARE_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE
Tensor logical_not(const Tensor& x);
Tensor sub(double a, const Tensor& b);
Tensor div(double a, const Tensor& b);

/// As raw::clamp. clamp(x, 0) has only a lower bound, clamp(x, {}, 1) only an upper one.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = {});
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// --- Tests of values: boolean, without a gradient. Integers are finite numbers. ------------------
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// Whether shapes and all values are equal, as torch.equal; NaN equals nothing. Waits for the
/// device.
bool equal(const Tensor& a, const Tensor& b);
/// |a - b| <= atol + rtol |b|, element by element, as torch.isclose. Infinities are close only if
/// they are equal; two NaNs only with equal_nan. Throws Dtype unless a and b have one dtype, and
/// InvalidArgument for a negative tolerance.
Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
               bool equal_nan = false);
/// Whether isclose() holds for all elements of a and b (broadcast). Waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

}  // namespace weft
