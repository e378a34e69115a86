// The inner loops of the losses.
#include <algorithm>
#include <type_traits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/loss.h"
#include "weft/kernels/cpu/loops/vector_math.h"

namespace weft::cpu {
namespace {

template <class T>
void softmax_grad_row(std::int64_t classes, const void* in, double scale, double shift, void* out) {
  using C = accumulate_t<T>;
  const T* log_probs = static_cast<const T*>(in);
  T* grad = static_cast<T*>(out);
  const C factor = C(scale), offset = C(shift);
  WEFT_VECTOR_LOOP
  for (std::int64_t c = 0; c < classes; ++c) {
    grad[c] = store<T>(factor * WEFT_SIMD::exponential_negative(load(log_probs[c])) + offset);
  }
}

template <class T>
void squared_error_run(std::int64_t n, const void* a, const void* b, double* acc) {
  using C = accumulate_t<T>;
  // Each lane sums 16 terms in C; these sums are then added in f64.
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
  // In f32 squares may overflow although their mean does not: then sums again in f64.
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

template <class T>
constexpr LossLoops loops() {
  return {softmax_grad_row<T>, squared_error_run<T>, squared_error_grad_row<T>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<LossLoops> loss_loops = {loops<float>(), loops<double>(), loops<bf16>()};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
