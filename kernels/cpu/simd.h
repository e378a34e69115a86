// The tables of vector kernels, one per instruction set, and the choice of one. Tables rather than
// ifuncs: the resolvers of ifuncs run before ThreadSanitizer is ready and crash under it.
#pragma once

#include <cstdint>

#include "weft/core/base/simd_level.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/elementwise.h"

namespace weft::cpu {

using weft::best_simd_level;
using weft::set_simd_level;
using weft::simd_level;
using weft::SimdLevel;

#define WEFT_COUNT(...) +1
inline constexpr int kUnaryOps = 0 WEFT_UNARY_OPS(WEFT_COUNT) WEFT_SCALAR_OPS(WEFT_COUNT);
inline constexpr int kBinaryOps = 0 WEFT_BINARY_OPS(WEFT_COUNT);
#undef WEFT_COUNT

/// Element-wise kernels of one dtype; null if the operation does not exist for it. The comments
/// list the elements of `data`.
struct ElementwiseRows {
  RowFn unary[kUnaryOps]{};                // y, x; params: UnaryParams
  RowFn unary_backward[kUnaryOps]{};       // grad_x, grad_y, saved; params: UnaryParams
  RowFn binary[kBinaryOps]{};              // y, a, b
  RowFn binary_backward[kBinaryOps][2]{};  // grad, grad_y, a, b; [1]: dL/db
  RowFn add_scaled = nullptr;              // y, y, x; params: double alpha
};

/// Reduces n elements into *acc. Accumulators have 8 bytes: double for floating dtypes, else
/// std::int64_t.
using ReduceRun = void (*)(std::int64_t n, const void* x, void* acc);
/// acc[c] = op(acc[c], x[r * row_step + c]) for all r < rows and c < cols.
using ReduceColumns = void (*)(std::int64_t rows, std::int64_t row_step, std::int64_t cols,
                               const void* x, void* acc);
struct ReduceFns {
  ReduceRun run = nullptr;
  ReduceColumns columns = nullptr;
};
struct ReduceRows {
  ReduceFns sum, max, min;
  ReduceRun sum_of_squares = nullptr;
  RowFn scaled_deviation = nullptr;  // y, x, center, factor; the last two f64
};

/// The scalars of an update, computed once per step; kernels/optim.h has the formulas.
struct AdamScalars {
  double beta1, beta2;
  double step_size;            // lr / (1 - beta1^t)
  double inverse_correction2;  // 1 / sqrt(1 - beta2^t)
  double eps;
  double weight_decay;  // added to the gradient; 0 for AdamW
  double decay;         // factor on the parameter; 1 without AdamW
  bool amsgrad, maximize;
};
struct SgdScalars {
  double lr, weight_decay, momentum, dampening;
  bool nesterov;
  bool first;  // the first step: the momentum buffer becomes the gradient
  bool maximize;
};
struct RmspropScalars {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered, maximize;
};
struct OptimRows {
  void (*adam)(std::int64_t n, void* p, const void* g, void* m, void* v, void* largest,
               const AdamScalars&);
  void (*sgd)(std::int64_t n, void* p, const void* g, void* buffer, const SgdScalars&);
  void (*rmsprop)(std::int64_t n, void* p, const void* g, void* square, void* buffer, void* mean,
                  const RmspropScalars&);
  void (*scale)(std::int64_t n, void* x, double factor);
  void (*clamp)(std::int64_t n, void* x, double most);  // to [-most, most]
};

/// Rows of n elements; kernels/softmax.h has the formulas.
struct SoftmaxRows {
  void (*log_softmax)(std::int64_t rows, std::int64_t n, const void* x, void* y) = nullptr;
  void (*softmax)(std::int64_t rows, std::int64_t n, const void* x, void* y) = nullptr;
  void (*log_softmax_grad)(std::int64_t rows, std::int64_t n, const void* grad_y, const void* y,
                           void* grad_x) = nullptr;
  void (*softmax_grad)(std::int64_t rows, std::int64_t n, const void* grad_y, const void* y,
                       void* grad_x) = nullptr;
};

struct LossRows {
  /// grad = scale * exp(log_probs) + shift over one row: the part without the target's own term.
  void (*softmax_grad)(std::int64_t classes, const void* log_probs, double scale, double shift,
                       void* grad) = nullptr;
  /// acc += sum (x - t)^2
  void (*squared_error)(std::int64_t n, const void* x, const void* t, double* acc) = nullptr;
  RowFn squared_error_grad = nullptr;  // grad, x, t; params: double[2] = {2 or 2/n, grad_loss}
};

/// One position of the windows of a max pooling, for n neighbouring windows i. If x[i * step] is
/// larger than best[i] or NaN, or if winner[i] is still -1, then best[i] becomes x[i * step] and
/// winner[i] becomes position + i * position_step.
using PoolStep = void (*)(std::int64_t n, const void* x, std::int64_t step, std::int32_t position,
                          std::int32_t position_step, void* best, std::int32_t* winner);

/// The coefficients of grad_x = of_grad g + of_x (x - center) + offset.
struct NormGradient {
  double center, of_grad, of_x, offset;
};
/// The inner loops of batch norm and layer norm; kernels/norm.h has the formulas. "each": x is a
/// dense matrix with rows of n elements, and each column has its own constants and sums. Constants
/// have the type that is computed in. A null weight means 1, a null bias 0.
struct NormRows {
  /// acc[0] += sum (x - shift), acc[1] += sum (x - shift)^2
  void (*moments)(std::int64_t n, const void* x, double shift, double* acc) = nullptr;
  /// Here rows may lie further apart, by `step` elements.
  void (*moments_each)(std::int64_t rows, std::int64_t step, std::int64_t n, const void* x,
                       const void* shift, double* sum, double* squares) = nullptr;
  /// The same without the first sum, and with shift 0.
  void (*squares)(std::int64_t n, const void* x, double, double* acc) = nullptr;
  void (*squares_each)(std::int64_t rows, std::int64_t step, std::int64_t n, const void* x,
                       const void*, double* sum, double* squares) = nullptr;
  /// acc[0] += sum g, acc[1] += sum g (x - center), g = grad weight
  void (*products)(std::int64_t n, const void* grad, const void* x, const void* weight,
                   double center, double* acc) = nullptr;
  void (*products_each)(std::int64_t rows, std::int64_t n, const void* grad, const void* x,
                        const void* center, double* sum, double* product) = nullptr;
  /// sum[i] += grad, product[i] += grad (x - center) scale
  void (*products_row)(std::int64_t n, const void* grad, const void* x, double center, double scale,
                       double* sum, double* product) = nullptr;
  /// y = (x - center) scale + offset
  void (*affine)(std::int64_t n, const void* x, double center, double scale, double offset,
                 void* y) = nullptr;
  void (*affine_each)(std::int64_t rows, std::int64_t n, const void* x, const void* center,
                      const void* scale, const void* offset, void* y) = nullptr;
  /// out = grad times the slope of relu or leaky_relu (functor::) at the result of affine, rounded
  /// to the dtype.
  struct Masked {
    void (*run)(std::int64_t n, const void* grad, const void* x, double center, double scale,
                double offset, double negative_slope, void* out) = nullptr;
    void (*each)(std::int64_t rows, std::int64_t n, const void* grad, const void* x,
                 const void* center, const void* scale, const void* offset, double negative_slope,
                 void* out) = nullptr;
  };
  Masked relu_masked, leaky_relu_masked;
  /// y = (x - center) scale weight + bias
  void (*affine_row)(std::int64_t n, const void* x, double center, double scale, const void* weight,
                     const void* bias, void* y) = nullptr;
  /// With g = grad weight.
  void (*gradient)(std::int64_t n, const void* grad, const void* x, const void* weight,
                   const NormGradient& by, void* grad_x) = nullptr;
  void (*gradient_each)(std::int64_t rows, std::int64_t n, const void* grad, const void* x,
                        const void* center, const void* of_grad, const void* of_x,
                        const void* offset, void* grad_x) = nullptr;
};

/// sum[i] += scale x[i * step], i < n.
using AddScaledStep = void (*)(std::int64_t n, const void* x, std::int64_t step, double scale,
                               double* sum);

struct FloatKernels {
  ElementwiseRows elementwise;
  ReduceRows reduce;
  OptimRows optim{};
  SoftmaxRows softmax;
  LossRows loss;
  PoolStep pool_step = nullptr;
  AddScaledStep add_scaled_step = nullptr;  // for average pooling
  NormRows norm;
};

/// All kernels of an instruction set. It may contain only function pointers: tables are merged
/// pointer by pointer.
struct SimdKernels {
  FloatKernels f32, f64, bf16;
  /// The conversions with vector code. data: y, x.
  RowFn u8_to_f32 = nullptr;
  RowFn f32_to_bf16 = nullptr;
  RowFn bf16_to_f32 = nullptr;
  /// y[j][i] = x[i][j] for 4-byte elements. x is [rows, cols]; its rows are x_step elements apart,
  /// those of y y_step.
  void (*transpose4)(std::int64_t rows, std::int64_t cols, const void* x, std::int64_t x_step,
                     void* y, std::int64_t y_step) = nullptr;

  const FloatKernels& of(DType dtype) const {
    return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f64 : bf16;
  }
};

/// The table of simd_level().
const SimdKernels& simd();

// The kernels of each instruction set; null if it has none of its own. They are data, not functions
// that fill a table: such a function could use instructions that the processor does not have.
#define WEFT_DECLARE_SIMD(level)                  \
  namespace level {                               \
  extern const SimdKernels copy_functions;        \
  extern const SimdKernels elementwise_functions; \
  extern const SimdKernels loss_functions;        \
  extern const SimdKernels norm_functions;        \
  extern const SimdKernels optim_functions;       \
  extern const SimdKernels reduce_functions;      \
  }
WEFT_DECLARE_SIMD(baseline)
WEFT_DECLARE_SIMD(avx2)
WEFT_DECLARE_SIMD(avx512)
#undef WEFT_DECLARE_SIMD

}  // namespace weft::cpu
