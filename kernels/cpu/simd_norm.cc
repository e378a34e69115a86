// The inner loops of batch norm and layer norm. Sums run in f64; what is written is computed in the
// type of the elements (f32 for bf16). "each": element i has its own constants or sums, as the
// channels of channels-last images do.
#include <cstdint>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/simd.h"

namespace weft::cpu {
namespace {

/// acc[0] += first(i), acc[1] += second(i): enough independent sums to hide an addition's latency.
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

template <class T>
void moments(std::int64_t n, const void* in, double shift, double* acc) {
  const T* x = static_cast<const T*>(in);
  sum_pairs(n, acc, [=](std::int64_t i, double& sum, double& squares) {
    const double d = static_cast<double>(load(x[i])) - shift;
    sum += d;
    squares += d * d;
  });
}

template <class T>
void moments_each(std::int64_t n, const void* in, const double* shift, double* sum,
                  double* squares) {
  const T* x = static_cast<const T*>(in);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(load(x[i])) - shift[i];
    sum[i] += d;
    squares[i] += d * d;
  }
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
void products_each(std::int64_t n, const void* grad, const void* in, const double* center,
                   double* sum, double* product) {
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(load(g[i]));
    sum[i] += d;
    product[i] += d * (static_cast<double>(load(x[i])) - center[i]);
  }
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

template <class T>
void affine(std::int64_t n, const void* in, double center, double scale, double offset, void* out) {
  using C = accumulate_t<T>;
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  const C m = C(center), s = C(scale), o = C(offset);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<T>((load(x[i]) - m) * s + o);
}

template <class T>
void affine_each(std::int64_t n, const void* in, const double* center, const double* scale,
                 const double* offset, void* out) {
  using C = accumulate_t<T>;
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = store<T>((load(x[i]) - C(center[i])) * C(scale[i]) + C(offset[i]));
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
void gradient_each(std::int64_t n, const void* grad, const void* in, const double* center,
                   const double* of_grad, const double* of_x, const double* offset, void* out) {
  using C = accumulate_t<T>;
  const T* g = static_cast<const T*>(grad);
  const T* x = static_cast<const T*>(in);
  T* grad_x = static_cast<T*>(out);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    grad_x[i] = store<T>(C(of_grad[i]) * load(g[i]) + C(of_x[i]) * (load(x[i]) - C(center[i])) +
                         C(offset[i]));
  }
}

template <class T>
void fill(NormRows& rows) {
  rows = {.moments = moments<T>,
          .moments_each = moments_each<T>,
          .products = products<T>,
          .products_each = products_each<T>,
          .products_row = products_row<T>,
          .affine = affine<T>,
          .affine_each = affine_each<T>,
          .affine_row = affine_row<T>,
          .gradient = gradient<T>,
          .gradient_each = gradient_each<T>};
}

}  // namespace

namespace WEFT_SIMD {

void fill_norm(SimdKernels& table) {
  fill<float>(table.f32.norm);
  fill<double>(table.f64.norm);
  fill<bf16>(table.bf16.norm);
}

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
