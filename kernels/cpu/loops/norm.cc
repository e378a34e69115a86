// The inner loops of batch norm and group norm. Sums run in f64; outputs are computed in the type
// of the elements (f32 for bf16). "each": each column has its own constants and sums, like the
// channels of channels-last images.
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/norm.h"
#include "weft/kernels/cpu/loops/vector_bytes.h"
#include "weft/kernels/functors.h"

namespace weft::cpu {
namespace {

/// acc[0] += first(i), acc[1] += second(i), with enough independent sums to hide latencies.
template <class Terms>
void sum_pairs(std::int64_t n, double* acc, const Terms& terms) {
  constexpr int kLanes = 16;
  double first[kLanes] = {}, second[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) terms(i + k, first[k], second[k]);
  }
  for (; i < n; ++i) terms(i, first[0], second[0]);
  for (int k = 0; k < kLanes; ++k) {
    acc[0] += first[k];
    acc[1] += second[k];
  }
}

// As many doubles as fit into a register.
constexpr int kWide = kVectorBytes / sizeof(double);

template <class T>
struct Vector {
  typedef T Type __attribute__((vector_size(sizeof(T) * kWide)));
  // For loads and stores at any address.
  typedef T Loose __attribute__((vector_size(sizeof(T) * kWide), aligned(alignof(T)), may_alias));
};
using Doubles = Vector<double>::Type;

using Floats = Vector<float>::Type;

// For the plain conversion gcc 12 converts two halves and joins them.
inline Doubles widen(Floats x) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtps_pd(0xff, x);
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(x);
#else
  return __builtin_convertvector(x, Doubles);
#endif
}

/// The elements at p in f64: one element, or as many as fit into Doubles.
template <class V, class T>
inline V widen(const T* p) {
  using Loose =
      typename Vector<std::conditional_t<std::is_same_v<T, bf16>, std::uint16_t, T>>::Loose;
  if constexpr (std::is_same_v<V, double>) {
    return static_cast<double>(load(*p));
  } else if constexpr (std::is_same_v<T, bf16>) {
    using Words = Vector<std::uint32_t>::Type;
    const Words bits = __builtin_convertvector(*reinterpret_cast<const Loose*>(p), Words) << 16;
    return widen(std::bit_cast<Floats>(bits));
  } else if constexpr (std::is_same_v<T, float>) {
    return widen(*reinterpret_cast<const Loose*>(p));
  } else {
    return *reinterpret_cast<const Loose*>(p);
  }
}

/// If not centred, only the squares of x itself.
template <class T, bool centred>
void moments(std::int64_t n, const void* in, double shift, double* acc) {
  constexpr int kLanes = 16;  // independent sums that hide an addition's latency
  constexpr int kVectors = kLanes / kWide;
  const T* x = static_cast<const T*>(in);
  Doubles a[kVectors] = {}, b[kVectors] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      Doubles d = widen<Doubles>(x + i + k * kWide);
      if constexpr (centred) {
        d -= shift;
        a[k] += d;
      }
      b[k] += d * d;
    }
  }
  double sum[kLanes], squares[kLanes];
  std::memcpy(sum, a, sizeof sum);
  std::memcpy(squares, b, sizeof squares);
  for (; i < n; ++i) {
    const double d = static_cast<double>(load(x[i])) - (centred ? shift : 0);
    sum[0] += d;
    squares[0] += d * d;
  }
  for (int k = 0; k < kLanes; ++k) {
    if (centred) acc[0] += sum[k];
    acc[1] += squares[k];
  }
}

/// Sums of the columns in kVectors registers, over rows `step` apart. add(at, column, first,
/// second) adds the terms of an element or register, `at` elements from the first row's column 0.
template <class V, int kVectors, class Terms>
inline void sum_block(std::int64_t rows, std::int64_t step, std::int64_t column, double* first,
                      double* second, const Terms& add) {
  constexpr int kLanes = sizeof(V) / sizeof(double);
  V a[kVectors], b[kVectors];
#pragma GCC unroll 4
  for (int k = 0; k < kVectors; ++k) {
    a[k] = widen<V>(first + column + k * kLanes);
    b[k] = widen<V>(second + column + k * kLanes);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      add(r * step + column + k * kLanes, column + k * kLanes, a[k], b[k]);
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < kVectors; ++k) {
    std::memcpy(first + column + k * kLanes, &a[k], sizeof(V));
    std::memcpy(second + column + k * kLanes, &b[k], sizeof(V));
  }
}

constexpr std::int64_t kRows = 8;

/// Two sums per column of rows x n elements; rows are `step` elements apart. The sums stay in
/// registers for kRows rows at a time.
template <class Terms>
void sum_columns(std::int64_t rows, std::int64_t step, std::int64_t n, double* first,
                 double* second, const Terms& add) {
  for (std::int64_t top = 0; top < rows; top += kRows) {
    const std::int64_t here = rows - top < kRows ? rows - top : kRows;
    const auto from_top = [&](std::int64_t at, std::int64_t column, auto& a, auto& b) {
      add(top * step + at, column, a, b);
    };
    std::int64_t c = 0;
    for (; c + 4 * kWide <= n; c += 4 * kWide) {
      sum_block<Doubles, 4>(here, step, c, first, second, from_top);
    }
    for (; c + kWide <= n; c += kWide) {
      sum_block<Doubles, 1>(here, step, c, first, second, from_top);
    }
    for (; c < n; ++c) sum_block<double, 1>(here, step, c, first, second, from_top);
  }
}

/// How far ahead the terms of sum_columns prefetch. In short rows the processor does not predict
/// the next accesses of a column; in long rows it does.
template <class T>
std::int64_t lookahead(std::int64_t step, std::int64_t n) {
  constexpr std::int64_t kLong = 2048 / sizeof(T);
  return n <= kLong ? kRows * step : 0;
}

template <class T, bool centred>
void moments_each(std::int64_t rows, std::int64_t step, std::int64_t n, const void* in,
                  const void* shifts, double* sum, double* squares) {
  const T* x = static_cast<const T*>(in);
  const auto* shift = static_cast<const accumulate_t<T>*>(shifts);
  const std::int64_t ahead = lookahead<T>(step, n);
  sum_columns(rows, step, n, sum, squares,
              [=]<class V>(std::int64_t i, std::int64_t c, V& a, V& b) {
                __builtin_prefetch(x + i + ahead);
                const V d = widen<V>(x + i) - widen<V>(shift + c);
                a += d;
                b += d * d;
              });
}

template <class T>
void products(std::int64_t n, const void* grad, const void* in, const void* factors, double center,
              double* acc) {
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  const T* weight = static_cast<const T*>(factors);
  if (!weight) {
    sum_pairs(n, acc, [=](std::int64_t i, double& sum, double& product) {
      const double d = static_cast<double>(load(g[i]));
      sum += d;
      product += d * (static_cast<double>(load(x[i])) - center);
    });
    return;
  }
  sum_pairs(n, acc, [=](std::int64_t i, double& sum, double& product) {
    const double d = static_cast<double>(load(g[i])) * static_cast<double>(load(weight[i]));
    sum += d;
    product += d * (static_cast<double>(load(x[i])) - center);
  });
}

template <class T>
void products_each(std::int64_t rows, std::int64_t n, const void* grad, const void* in,
                   const void* centers, double* sum, double* product) {
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  const auto* center = static_cast<const accumulate_t<T>*>(centers);
  const std::int64_t ahead = lookahead<T>(n, n);
  sum_columns(rows, n, n, sum, product, [=]<class V>(std::int64_t i, std::int64_t c, V& a, V& b) {
    __builtin_prefetch(g + i + ahead);
    __builtin_prefetch(x + i + ahead);
    const V d = widen<V>(g + i);
    a += d;
    b += d * (widen<V>(x + i) - widen<V>(center + c));
  });
}

template <class T>
void products_row(std::int64_t n, const void* grad, const void* in, double center, double scale,
                  double* sum, double* product) {
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(load(g[i]));
    sum[i] += d;
    product[i] += d * ((static_cast<double>(load(x[i])) - center) * scale);
  }
}

// The output of forward; backward needs its sign.
template <class T, class C>
inline T normalised(T x, C center, C scale, C offset) {
  return store<T>((load(x) - center) * scale + offset);
}

template <class T>
void affine(std::int64_t n, const void* in, double center, double scale, double offset, void* out) {
  using C = accumulate_t<T>;
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  const C m = C(center), s = C(scale), o = C(offset);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = normalised(x[i], m, s, o);
}

template <class T>
void affine_each(std::int64_t rows, std::int64_t n, const void* in, const void* centers,
                 const void* scales, const void* offsets, void* out) {
  using C = accumulate_t<T>;
  const auto *center = static_cast<const C*>(centers), *scale = static_cast<const C*>(scales),
             *offset = static_cast<const C*>(offsets);
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(in) + r * n;
    T* y = static_cast<T*>(out) + r * n;
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = normalised(x[i], center[i], scale[i], offset[i]);
    }
  }
}

template <class T, class F>
void masked(std::int64_t n, const void* grad, const void* in, double center, double scale,
            double offset, double negative_slope, void* to) {
  using C = accumulate_t<T>;
  const F f{{negative_slope}};
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  T* out = static_cast<T*>(to);
  const C m = C(center), s = C(scale), o = C(offset);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = store<T>(f.bwd(load(g[i]), load(normalised(x[i], m, s, o))));
  }
}

template <class T, class F>
void masked_each(std::int64_t rows, std::int64_t n, const void* grad, const void* in,
                 const void* centers, const void* scales, const void* offsets,
                 double negative_slope, void* to) {
  using C = accumulate_t<T>;
  const F f{{negative_slope}};
  const auto *center = static_cast<const C*>(centers), *scale = static_cast<const C*>(scales),
             *offset = static_cast<const C*>(offsets);
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* g = static_cast<const T*>(grad) + r * n;
    const T* x = static_cast<const T*>(in) + r * n;
    T* out = static_cast<T*>(to) + r * n;
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) {
      const T v = normalised(x[i], center[i], scale[i], offset[i]);
      out[i] = store<T>(f.bwd(load(g[i]), load(v)));
    }
  }
}

template <class T>
void affine_row(std::int64_t n, const void* in, double center, double scale, const void* factors,
                const void* offsets, void* out) {
  using C = accumulate_t<T>;
  const T* x = static_cast<const T*>(in);
  const T* weight = static_cast<const T*>(factors);
  const T* bias = static_cast<const T*>(offsets);
  T* y = static_cast<T*>(out);
  const C m = C(center), s = C(scale);
  if (!weight && !bias) return affine<T>(n, in, center, scale, 0, out);
  if (!bias) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) y[i] = store<T>((load(x[i]) - m) * s * load(weight[i]));
  } else if (!weight) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) y[i] = store<T>((load(x[i]) - m) * s + load(bias[i]));
  } else {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = store<T>((load(x[i]) - m) * s * load(weight[i]) + load(bias[i]));
    }
  }
}

template <class T>
void gradient(std::int64_t n, const void* grad, const void* in, const void* factors,
              const NormGradient& by, void* out) {
  using C = accumulate_t<T>;
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  const T* weight = static_cast<const T*>(factors);
  T* grad_x = static_cast<T*>(out);
  const C m = C(by.center), a = C(by.of_grad), b = C(by.of_x), c = C(by.offset);
  if (!weight) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) {
      grad_x[i] = store<T>(a * load(g[i]) + b * (load(x[i]) - m) + c);
    }
    return;
  }
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    grad_x[i] = store<T>(a * load(g[i]) * load(weight[i]) + b * (load(x[i]) - m) + c);
  }
}

template <class T>
void gradient_each(std::int64_t rows, std::int64_t n, const void* grad, const void* in,
                   const void* centers, const void* of_grads, const void* of_xs,
                   const void* offsets, void* out) {
  using C = accumulate_t<T>;
  const auto *center = static_cast<const C*>(centers), *of_grad = static_cast<const C*>(of_grads),
             *of_x = static_cast<const C*>(of_xs), *offset = static_cast<const C*>(offsets);
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* g = static_cast<const T*>(grad) + r * n;
    const T* x = static_cast<const T*>(in) + r * n;
    T* grad_x = static_cast<T*>(out) + r * n;
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) {
      grad_x[i] =
          store<T>(of_grad[i] * load(g[i]) + of_x[i] * (load(x[i]) - center[i]) + offset[i]);
    }
  }
}

template <class T>
constexpr NormLoops loops() {
  return {.moments = moments<T, true>,
          .moments_each = moments_each<T, true>,
          .squares = moments<T, false>,
          .squares_each = moments_each<T, false>,
          .products = products<T>,
          .products_each = products_each<T>,
          .products_row = products_row<T>,
          .affine = affine<T>,
          .affine_each = affine_each<T>,
          .relu_masked = {masked<T, functor::Relu>, masked_each<T, functor::Relu>},
          .leaky_relu_masked = {masked<T, functor::LeakyRelu>, masked_each<T, functor::LeakyRelu>},
          .affine_row = affine_row<T>,
          .gradient = gradient<T>,
          .gradient_each = gradient_each<T>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<NormLoops> norm_loops = {loops<float>(), loops<double>(), loops<bf16>()};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
