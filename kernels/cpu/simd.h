// The tables of vector kernels, one per instruction set, and the choice among them. A table and no
// ifunc: resolvers run before the sanitizers are ready and crash under ThreadSanitizer.
#pragma once

#include <cstdint>

#include "weft/core/simd_level.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/elementwise.h"

namespace weft::cpu {

using weft::best_simd_level;
using weft::set_simd_level;
using weft::simd_level;
using weft::SimdLevel;

#define X(...) +1
inline constexpr int kUnaryOps = 0 WEFT_UNARY_OPS(X) WEFT_SCALAR_OPS(X);
inline constexpr int kBinaryOps = 0 WEFT_BINARY_OPS(X);
#undef X

/// Element-wise kernels of one dtype; null where the operation does not exist for it.
struct ElementwiseRows {
  RowFn unary[kUnaryOps]{};                // y, x; params: UnaryParams
  RowFn unary_backward[kUnaryOps]{};       // grad_x, grad_y, saved; params: UnaryParams
  RowFn binary[kBinaryOps]{};              // y, a, b
  RowFn binary_backward[kBinaryOps][2]{};  // grad, grad_y, a, b; [1]: dL/db
  RowFn add_scaled = nullptr;              // y, y, x; params: double alpha
};

/// Reductions add to accumulators of 8 bytes: double for the floating types, std::int64_t else.
using ReduceRun = void (*)(std::int64_t n, const void* x, void* acc);
/// acc[c] op= x[r * row_step + c] for all r: cols accumulators.
using ReduceColumns = void (*)(std::int64_t rows, std::int64_t row_step, std::int64_t cols,
                               const void* x, void* acc);
struct ReduceFns {
  ReduceRun run = nullptr;
  ReduceColumns columns = nullptr;
};
struct ReduceRows {
  ReduceFns sum, max, min;
  ReduceRun sum_of_squares = nullptr;
};

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
  bool first;  // the momentum buffer takes the gradient as it is
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

/// Rows of length n, as kernels/softmax.h has them.
struct SoftmaxRows {
  void (*log_softmax)(std::int64_t rows, std::int64_t n, const void* x, void* y) = nullptr;
  void (*softmax)(std::int64_t rows, std::int64_t n, const void* x, void* y) = nullptr;
  void (*log_softmax_grad)(std::int64_t rows, std::int64_t n, const void* grad_y, const void* y,
                           void* grad_x) = nullptr;
  void (*softmax_grad)(std::int64_t rows, std::int64_t n, const void* grad_y, const void* y,
                       void* grad_x) = nullptr;
};

struct LossRows {
  /// grad = scale * exp(log_probs) + shift over one row: the part that no target touches.
  void (*softmax_grad)(std::int64_t classes, const void* log_probs, double scale, double shift,
                       void* grad) = nullptr;
  /// acc += sum (x - t)^2
  void (*squared_error)(std::int64_t n, const void* x, const void* t, double* acc) = nullptr;
  RowFn squared_error_grad = nullptr;  // grad, x, t; params: double[2] = {2 or 2/n, grad_loss}
};

/// One position of the windows of a max pooling, for n windows side by side: where x[i * step] is
/// larger than best[i], is NaN, or winner[i] is still -1, it becomes best[i] and position + i *
/// position_step the winner.
using PoolStep = void (*)(std::int64_t n, const void* x, std::int64_t step, std::int32_t position,
                          std::int32_t position_step, void* best, std::int32_t* winner);

/// grad_x = of_grad g + of_x (x - center) + offset
struct NormGradient {
  double center, of_grad, of_x, offset;
};
/// The inner loops of batch norm and layer norm; kernels/norm.h has the formulas. "each": rows of n
/// elements lie one behind the other, and the elements of a column have constants (of the type that
/// is computed in) and sums of their own. A weight or bias may be null: 1, 0.
struct NormRows {
  /// acc[0] += sum (x - shift), acc[1] += sum (x - shift)^2
  void (*moments)(std::int64_t n, const void* x, double shift, double* acc) = nullptr;
  void (*moments_each)(std::int64_t rows, std::int64_t n, const void* x, const void* shift,
                       double* sum, double* squares) = nullptr;
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
  /// out = the gradient of relu or leaky_relu, as functor:: has it, at affine's result as it is
  /// stored
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

/// sum[i] += scale x[i * step]
using AddScaledStep = void (*)(std::int64_t n, const void* x, std::int64_t step, double scale,
                               double* sum);

struct FloatKernels {
  ElementwiseRows elementwise;
  ReduceRows reduce;
  OptimRows optim{};
  SoftmaxRows softmax;
  LossRows loss;
  PoolStep pool_step = nullptr;
  AddScaledStep add_scaled_step = nullptr;  // of average pooling
  NormRows norm;
};

/// Pointers to functions and nothing else: tables are merged pointer by pointer.
struct SimdKernels {
  FloatKernels f32, f64, bf16;
  /// Conversions worth vector code: y, x.
  RowFn u8_to_f32 = nullptr;
  RowFn f32_to_bf16 = nullptr;
  RowFn bf16_to_f32 = nullptr;
  /// y[j][i] = x[i][j] for 4-byte elements: x has `rows` rows, x_step and y_step apart.
  void (*transpose4)(std::int64_t rows, std::int64_t cols, const void* x, std::int64_t x_step,
                     void* y, std::int64_t y_step) = nullptr;

  const FloatKernels& of(DType dtype) const {
    return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f64 : bf16;
  }
};

/// The table of simd_level().
const SimdKernels& simd();

// What each instruction set's library has, null where it has none of its own. Data and no functions
// that fill a table: they would be compiled for instructions the processor may not have.
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
