// The inner loops of softmax.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/lanes.h"
#include "weft/kernels/cpu/loops/softmax.h"
#include "weft/kernels/cpu/loops/vector_math.h"

namespace weft::cpu {
namespace {

/// The largest of n > 0 elements; a NaN wins.
template <class T>
accumulate_t<T> row_max(std::int64_t n, const T* x) {
  using L = Lanes<T>;
  constexpr int kVectors = 4, kStep = kVectors * L::kCount;
  accumulate_t<T> most = load(x[0]);
  std::int64_t i = 0;
  if (n >= kStep) {
    typename L::Vector part[kVectors], next;
    for (int k = 0; k < kVectors; ++k) L::load(x + k * L::kCount, part[k]);
    for (i = kStep; i + kStep <= n; i += kStep) {
#pragma GCC unroll 4
      for (int k = 0; k < kVectors; ++k) {
        L::load(x + i + k * L::kCount, next);
        MaxOp::combine(part[k], next);
      }
    }
    for (int k = 1; k < kVectors; ++k) MaxOp::combine(part[0], part[k]);
    for (int k = 0; k < L::kCount; ++k) MaxOp::combine(most, part[0][k]);
  }
  for (; i < n; ++i) MaxOp::combine(most, load(x[i]));
  return most;
}

/// Classifiers have short rows: as many rows as fit share a buffer, so that the exponentials run
/// over one long vector.
constexpr std::int64_t kBuffer = 1024;

template <class T, bool log>
void softmax_rows(std::int64_t rows, std::int64_t classes, const void* in, void* out) {
  using C = accumulate_t<T>;
  const T* logits = static_cast<const T*>(in);
  T* result = static_cast<T*>(out);
  alignas(64) C shifted[kBuffer];  // x - max, of as many whole rows as fit
  alignas(64) C power[kBuffer];
  C of_sum[kBuffer];  // the logarithm or the inverse of the sum
  const std::int64_t group = std::clamp<std::int64_t>(kBuffer / classes, 1, rows);
  for (std::int64_t r = 0; r < rows; r += group) {
    const std::int64_t here = std::min(group, rows - r);
    const T* x = logits + r * classes;
    T* y = result + r * classes;
    if (classes <= kBuffer) {
      const std::int64_t n = here * classes;
      for (std::int64_t i = 0; i < here; ++i) {
        const C largest = row_max(classes, x + i * classes);
        for (std::int64_t c = 0; c < classes; ++c) {
          shifted[i * classes + c] = load(x[i * classes + c]) - largest;
        }
      }
      WEFT_VECTOR_LOOP
      for (std::int64_t i = 0; i < n; ++i) power[i] = WEFT_SIMD::exponential_negative(shifted[i]);
      for (std::int64_t i = 0; i < here; ++i) {
        const double sum = row_sum(classes, [&](std::int64_t c) { return power[i * classes + c]; });
        of_sum[i] = log ? static_cast<C>(sum) : static_cast<C>(1 / sum);
      }
      if constexpr (log) {
        WEFT_VECTOR_LOOP
        for (std::int64_t i = 0; i < here; ++i) of_sum[i] = WEFT_SIMD::logarithm(of_sum[i]);
      }
      for (std::int64_t i = 0; i < here; ++i) {
        for (std::int64_t c = 0; c < classes; ++c) {
          const std::int64_t at = i * classes + c;
          y[at] = store<T>(log ? shifted[at] - of_sum[i] : power[at] * of_sum[i]);
        }
      }
      continue;
    }
    // One long row, in blocks. Powers are kept in y if it has their type.
    constexpr bool kept = !log && std::is_same_v<T, C>;
    const C largest = row_max(classes, x);
    double sum = 0;
    for (std::int64_t c = 0; c < classes; c += kBuffer) {
      const std::int64_t n = std::min(kBuffer, classes - c);
      C* const to = kept ? reinterpret_cast<C*>(y + c) : power;
      WEFT_VECTOR_LOOP
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = WEFT_SIMD::exponential_negative(load(x[c + i]) - largest);
      }
      sum += row_sum(n, [=](std::int64_t i) { return to[i]; });
    }
    const C shift = static_cast<C>(std::log(sum)), factor = static_cast<C>(1 / sum);
    WEFT_VECTOR_LOOP
    for (std::int64_t c = 0; c < classes; ++c) {
      if constexpr (kept) {
        y[c] *= factor;
      } else {
        const C v = load(x[c]) - largest;
        y[c] = store<T>(log ? v - shift : WEFT_SIMD::exponential_negative(v) * factor);
      }
    }
  }
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
      grad[i] = store<T>(log ? load(g[i]) - WEFT_SIMD::exponential_negative(load(y[i])) * sum
                             : load(y[i]) * (load(g[i]) - sum));
    }
  }
}

template <class T>
constexpr SoftmaxLoops loops() {
  return {softmax_rows<T, true>, softmax_rows<T, false>, softmax_grad_rows<T, true>,
          softmax_grad_rows<T, false>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<SoftmaxLoops> softmax_loops = {loops<float>(), loops<double>(),
                                                       loops<bf16>()};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
