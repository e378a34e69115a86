// The inner loops of softmax and the losses, and of pooling.
#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/lanes.h"
#include "weft/kernels/cpu/simd.h"
#include "weft/kernels/cpu/vector_math.h"

namespace weft::cpu {
namespace {

inline float exponential(float x) { return WEFT_SIMD::exp_f32(x); }
inline double exponential(double x) { return std::exp(x); }
inline float logarithm(float x) { return WEFT_SIMD::log_f32(x); }
inline double logarithm(double x) { return std::log(x); }

/// Rows are short in classifiers: as many as fit go through a buffer together, so that the
/// exponentials run over one long vector.
constexpr std::int64_t kBuffer = 1024;

template <class T, bool log>
void softmax_rows(std::int64_t rows, std::int64_t classes, const void* in, void* out) {
  using C = accumulate_t<T>;
  const T* logits = static_cast<const T*>(in);
  T* result = static_cast<T*>(out);
  alignas(64) C shifted[kBuffer];  // x - max, of as many whole rows as fit
  alignas(64) C power[kBuffer];
  C of_sum[kBuffer];  // the sum's logarithm, or its inverse
  const std::int64_t group = std::clamp<std::int64_t>(kBuffer / classes, 1, rows);
  for (std::int64_t r = 0; r < rows; r += group) {
    const std::int64_t here = std::min(group, rows - r);
    const T* x = logits + r * classes;
    T* y = result + r * classes;
    if (classes <= kBuffer) {
      const std::int64_t n = here * classes;
      for (std::int64_t i = 0; i < here; ++i) {
        C largest = load(x[i * classes]);
        for (std::int64_t c = 1; c < classes; ++c)
          MaxOp::combine(largest, load(x[i * classes + c]));
        for (std::int64_t c = 0; c < classes; ++c) {
          shifted[i * classes + c] = load(x[i * classes + c]) - largest;
        }
      }
      WEFT_VECTOR_LOOP
      for (std::int64_t i = 0; i < n; ++i) power[i] = exponential(shifted[i]);
      for (std::int64_t i = 0; i < here; ++i) {
        double sum = 0;
        for (std::int64_t c = 0; c < classes; ++c) sum += power[i * classes + c];
        of_sum[i] = log ? static_cast<C>(sum) : static_cast<C>(1 / sum);
      }
      if constexpr (log) {
        WEFT_VECTOR_LOOP
        for (std::int64_t i = 0; i < here; ++i) of_sum[i] = logarithm(of_sum[i]);
      }
      for (std::int64_t i = 0; i < here; ++i) {
        for (std::int64_t c = 0; c < classes; ++c) {
          const std::int64_t at = i * classes + c;
          y[at] = store<T>(log ? shifted[at] - of_sum[i] : power[at] * of_sum[i]);
        }
      }
      continue;
    }
    // One long row, in pieces.
    C largest = load(x[0]);
    for (std::int64_t c = 1; c < classes; ++c) MaxOp::combine(largest, load(x[c]));
    double sum = 0;
    for (std::int64_t c = 0; c < classes; c += kBuffer) {
      const std::int64_t n = std::min(kBuffer, classes - c);
      WEFT_VECTOR_LOOP
      for (std::int64_t i = 0; i < n; ++i) power[i] = exponential(load(x[c + i]) - largest);
      for (std::int64_t i = 0; i < n; ++i) sum += power[i];
    }
    const C shift = static_cast<C>(std::log(sum)), factor = static_cast<C>(1 / sum);
    WEFT_VECTOR_LOOP
    for (std::int64_t c = 0; c < classes; ++c) {
      const C v = load(x[c]) - largest;
      y[c] = store<T>(log ? v - shift : exponential(v) * factor);
    }
  }
}

/// The sum of term(0), ..., term(n - 1), in an order that the compiler can vectorise.
template <class Term>
double row_sum(std::int64_t n, const Term& term) {
  constexpr int kLanes = 8;
  double part[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) part[k] += static_cast<double>(term(i + k));
  }
  double total = 0;
  for (int k = 0; k < kLanes; ++k) total += part[k];
  for (; i < n; ++i) total += static_cast<double>(term(i));
  return total;
}

template <class T, bool log>
void softmax_grad_rows(std::int64_t rows, std::int64_t n, const void* grad_out, const void* out,
                       void* grad_in) {
  using C = accumulate_t<T>;
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* g = static_cast<const T*>(grad_out) + r * n;
    const T* y = static_cast<const T*>(out) + r * n;
    T* grad = static_cast<T*>(grad_in) + r * n;
    const auto sum = static_cast<C>(
        row_sum(n, [&](std::int64_t i) { return log ? load(g[i]) : load(g[i]) * load(y[i]); }));
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) {
      grad[i] = store<T>(log ? load(g[i]) - exponential(load(y[i])) * sum
                             : load(y[i]) * (load(g[i]) - sum));
    }
  }
}

template <class T>
void softmax_grad_row(std::int64_t classes, const void* in, double scale, double shift, void* out) {
  using C = accumulate_t<T>;
  const T* log_probs = static_cast<const T*>(in);
  T* grad = static_cast<T*>(out);
  const C factor = C(scale), offset = C(shift);
  WEFT_VECTOR_LOOP
  for (std::int64_t c = 0; c < classes; ++c) {
    grad[c] = store<T>(factor * exponential(load(log_probs[c])) + offset);
  }
}

template <class T>
void squared_error_run(std::int64_t n, const void* a, const void* b, double* acc) {
  using C = accumulate_t<T>;
  // Each lane adds 16 terms in C, then all go on in f64.
  constexpr int kLanes = 32;
  constexpr std::int64_t kBlock = 16 * kLanes;
  const T* x = static_cast<const T*>(a);
  const T* t = static_cast<const T*>(b);
  double total = *acc;
  std::int64_t i = 0;
  while (n - i >= kLanes) {
    const std::int64_t end = i + std::min(kBlock, (n - i) / kLanes * kLanes);
    C part[kLanes] = {};
    for (; i < end; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) {
        const C d = load(x[i + k]) - load(t[i + k]);
        part[k] += d * d;
      }
    }
    for (int k = 0; k < kLanes; ++k) total += static_cast<double>(part[k]);
  }
  for (; i < n; ++i) {
    const C d = load(x[i]) - load(t[i]);
    total += static_cast<double>(d * d);
  }
  // Squares of f32 may leave its range where their mean does not.
  if (!std::is_same_v<C, double> && total - total != 0) {
    total = *acc;
    for (i = 0; i < n; ++i) {
      const double d = static_cast<double>(load(x[i])) - static_cast<double>(load(t[i]));
      total += d * d;
    }
  }
  *acc = total;
}

template <class T>
void squared_error_grad_row(std::int64_t n, char* const* data, const void* params) {
  using C = accumulate_t<T>;
  const double* p = static_cast<const double*>(params);
  const C norm = C(p[0]), grad_loss = C(p[1]);
  T* grad = reinterpret_cast<T*>(data[0]);
  const T* x = reinterpret_cast<const T*>(data[1]);
  const T* t = reinterpret_cast<const T*>(data[2]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    grad[i] = store<T>(norm * (load(x[i]) - load(t[i])) * grad_loss);
  }
}

/// condition ? a : b without a branch, which random data would make cost more than all the rest.
template <class U>
U choose(bool condition, U a, U b) {
  return static_cast<U>(b ^ ((a ^ b) & static_cast<U>(-static_cast<std::int64_t>(condition))));
}

template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

template <class T>
void pool_step(std::int64_t n, const T* x, std::int64_t step, std::int32_t position,
               std::int32_t position_step, T* best, std::int32_t* winner) {
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const T candidate = x[i * step];
    const auto v = load(candidate);
    // The last NaN stays: later values compare false.
    const bool takes = (v > load(best[i])) | (v != v) | (winner[i] < 0);
    best[i] = std::bit_cast<T>(
        choose(takes, std::bit_cast<Bits<T>>(candidate), std::bit_cast<Bits<T>>(best[i])));
    winner[i] = choose(takes, position + static_cast<std::int32_t>(i) * position_step, winner[i]);
  }
}

template <class T>
void pool_step_row(std::int64_t n, const void* in, std::int64_t step, std::int32_t position,
                   std::int32_t position_step, void* largest, std::int32_t* winner) {
  const T* x = static_cast<const T*>(in);
  T* best = static_cast<T*>(largest);
  // Constants let the compiler use vector loads: channels or stride 1, and stride 2.
  if (step == 1) return pool_step(n, x, 1, position, position_step, best, winner);
  if (step == 2) return pool_step(n, x, 2, position, position_step, best, winner);
  pool_step(n, x, step, position, position_step, best, winner);
}

template <class T>
void add_scaled_step(std::int64_t n, const void* in, std::int64_t step, double scale, double* sum) {
  const T* x = static_cast<const T*>(in);
  if (step == 1) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) sum[i] += scale * static_cast<double>(load(x[i]));
    return;
  }
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) sum[i] += scale * static_cast<double>(load(x[i * step]));
}

template <class T>
constexpr void fill(FloatKernels& kernels) {
  kernels.softmax = {softmax_rows<T, true>, softmax_rows<T, false>, softmax_grad_rows<T, true>,
                     softmax_grad_rows<T, false>};
  kernels.loss.softmax_grad = softmax_grad_row<T>;
  kernels.loss.squared_error = squared_error_run<T>;
  kernels.loss.squared_error_grad = squared_error_grad_row<T>;
  kernels.pool_step = pool_step_row<T>;
  kernels.add_scaled_step = add_scaled_step<T>;
}

constexpr SimdKernels functions() {
  SimdKernels table;
  fill<float>(table.f32);
  fill<double>(table.f64);
  fill<bf16>(table.bf16);
  return table;
}

}  // namespace

namespace WEFT_SIMD {

constinit const SimdKernels loss_functions = functions();

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
