// The optimisers' updates of one run of parameters, in PyTorch's order of operations.
#include <cmath>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/simd.h"

namespace weft::cpu {
namespace {

template <class T>
void adam_run(std::int64_t n, void* param, const void* grad, void* state1, void* state2,
              const AdamScalars& s) {
  using C = accumulate_t<T>;
  T* p = static_cast<T*>(param);
  const T* g = static_cast<const T*>(grad);
  T* m = static_cast<T*>(state1);
  T* v = static_cast<T*>(state2);
  const C take1 = C(1 - s.beta1), keep2 = C(s.beta2), take2 = C(1 - s.beta2);
  // Where PyTorch divides by sqrt(1 - beta2^t) this multiplies by its inverse: half the divisions.
  const C step = C(-s.step_size), inverse = C(s.inverse_correction2), eps = C(s.eps);
  const C weight_decay = C(s.weight_decay), decay = C(s.decay);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    C pi = load(p[i]);
    pi *= decay;
    const C gi = s.weight_decay != 0 ? load(g[i]) + weight_decay * pi : load(g[i]);
    C mi = load(m[i]), vi = load(v[i]);
    mi += take1 * (gi - mi);
    vi = vi * keep2 + take2 * gi * gi;
    const C denominator = std::sqrt(vi) * inverse + eps;
    m[i] = store<T>(mi);
    v[i] = store<T>(vi);
    p[i] = store<T>(pi + step * mi / denominator);
  }
}

template <class T, bool momentum>
void sgd_loop(std::int64_t n, T* p, const T* g, T* buffer, const SgdScalars& s) {
  using C = accumulate_t<T>;
  const C step = C(-s.lr), weight_decay = C(s.weight_decay);
  const C keep = s.first ? C(0) : C(s.momentum), take = s.first ? C(1) : C(1 - s.dampening);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const C pi = load(p[i]);
    C gi = s.weight_decay != 0 ? load(g[i]) + weight_decay * pi : load(g[i]);
    if constexpr (momentum) {
      // In the first step the buffer is not read: its memory may hold anything, also NaN.
      const C before = s.first ? C(0) : load(buffer[i]);
      const C bi = before * keep + take * gi;
      buffer[i] = store<T>(bi);
      gi = s.nesterov ? gi + C(s.momentum) * bi : bi;
    }
    p[i] = store<T>(pi + step * gi);
  }
}

template <class T>
void sgd_run(std::int64_t n, void* p, const void* g, void* buffer, const SgdScalars& s) {
  T* const param = static_cast<T*>(p);
  const T* const grad = static_cast<const T*>(g);
  if (s.momentum != 0)
    sgd_loop<T, true>(n, param, grad, static_cast<T*>(buffer), s);
  else
    sgd_loop<T, false>(n, param, grad, nullptr, s);
}

template <class T, bool momentum, bool centered>
void rmsprop_loop(std::int64_t n, T* p, const T* g, T* square, T* buffer, T* mean,
                  const RmspropScalars& s) {
  using C = accumulate_t<T>;
  const C step = C(-s.lr), keep = C(s.alpha), take = C(1 - s.alpha), eps = C(s.eps);
  const C weight_decay = C(s.weight_decay);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const C pi = load(p[i]);
    const C gi = s.weight_decay != 0 ? load(g[i]) + weight_decay * pi : load(g[i]);
    const C si = load(square[i]) * keep + take * gi * gi;
    square[i] = store<T>(si);
    C spread = si;
    if constexpr (centered) {
      const C before = load(mean[i]);
      const C mi = before + take * (gi - before);
      mean[i] = store<T>(mi);
      spread -= mi * mi;
      spread = spread < C(0) ? C(0) : spread;
    }
    C update = gi / (std::sqrt(spread) + eps);
    if constexpr (momentum) {
      update = load(buffer[i]) * C(s.momentum) + update;
      buffer[i] = store<T>(update);
    }
    p[i] = store<T>(pi + step * update);
  }
}

template <class T>
void rmsprop_run(std::int64_t n, void* p, const void* g, void* square, void* buffer, void* mean,
                 const RmspropScalars& s) {
  const auto f = s.momentum != 0
                     ? (s.centered ? rmsprop_loop<T, true, true> : rmsprop_loop<T, true, false>)
                     : (s.centered ? rmsprop_loop<T, false, true> : rmsprop_loop<T, false, false>);
  f(n, static_cast<T*>(p), static_cast<const T*>(g), static_cast<T*>(square),
    static_cast<T*>(buffer), static_cast<T*>(mean), s);
}

template <class T>
void scale_run(std::int64_t n, void* data, double factor) {
  T* x = static_cast<T*>(data);
  const auto f = static_cast<accumulate_t<T>>(factor);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) x[i] = store<T>(load(x[i]) * f);
}

template <class T>
constexpr void fill(OptimRows& rows) {
  rows = {adam_run<T>, sgd_run<T>, rmsprop_run<T>, scale_run<T>};
}

constexpr SimdKernels functions() {
  SimdKernels table;
  fill<float>(table.f32.optim);
  fill<double>(table.f64.optim);
  fill<bf16>(table.bf16.optim);
  return table;
}

}  // namespace

namespace WEFT_SIMD {

constinit const SimdKernels optim_functions = functions();

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
