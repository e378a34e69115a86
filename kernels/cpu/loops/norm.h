// The inner loops of batch norm and group norm.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// The coefficients of grad_x = of_grad g + of_x (x - center) + offset.
struct NormGradient {
  double center, of_grad, of_x, offset;
};
/// The inner loops of batch norm and group norm; kernels/norm.h has the formulas. "each": x is a
/// dense matrix with rows of n elements, and each column has its own constants and sums. Constants
/// have the type that is computed in. A null weight means 1, a null bias 0.
struct NormLoops {
  /// acc[0] += sum (x - shift), acc[1] += sum (x - shift)^2
  void (*moments)(std::int64_t n, const void* x, double shift, double* acc);
  /// The same per column. Here rows may be `step` elements apart.
  void (*moments_each)(std::int64_t rows, std::int64_t step, std::int64_t n, const void* x,
                       const void* shift, double* sum, double* squares);
  /// The same without the first sum, and with shift 0.
  void (*squares)(std::int64_t n, const void* x, double, double* acc);
  void (*squares_each)(std::int64_t rows, std::int64_t step, std::int64_t n, const void* x,
                       const void*, double* sum, double* squares);
  /// acc[0] += sum g, acc[1] += sum g (x - center), g = grad weight
  void (*products)(std::int64_t n, const void* grad, const void* x, const void* weight,
                   double center, double* acc);
  void (*products_each)(std::int64_t rows, std::int64_t n, const void* grad, const void* x,
                        const void* center, double* sum, double* product);
  /// sum[i] += grad, product[i] += grad (x - center) scale
  void (*products_row)(std::int64_t n, const void* grad, const void* x, double center, double scale,
                       double* sum, double* product);
  /// y = (x - center) scale + offset
  void (*affine)(std::int64_t n, const void* x, double center, double scale, double offset,
                 void* y);
  void (*affine_each)(std::int64_t rows, std::int64_t n, const void* x, const void* center,
                      const void* scale, const void* offset, void* y);
  /// out = grad times the slope of relu or leaky_relu (functor::) at the result of affine, after
  /// this is rounded to the dtype.
  struct Masked {
    void (*run)(std::int64_t n, const void* grad, const void* x, double center, double scale,
                double offset, double negative_slope, void* out);
    void (*each)(std::int64_t rows, std::int64_t n, const void* grad, const void* x,
                 const void* center, const void* scale, const void* offset, double negative_slope,
                 void* out);
  };
  Masked relu_masked, leaky_relu_masked;
  /// y = (x - center) scale weight + bias
  void (*affine_row)(std::int64_t n, const void* x, double center, double scale, const void* weight,
                     const void* bias, void* y);
  /// With g = grad weight.
  void (*gradient)(std::int64_t n, const void* grad, const void* x, const void* weight,
                   const NormGradient& by, void* grad_x);
  void (*gradient_each)(std::int64_t rows, std::int64_t n, const void* grad, const void* x,
                        const void* center, const void* of_grad, const void* of_x,
                        const void* offset, void* grad_x);
};
WEFT_LOOPS(ByDType<NormLoops>, norm_loops)

}  // namespace weft::cpu
