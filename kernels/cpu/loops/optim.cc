// The optimisers' updates of consecutive parameters, in PyTorch's order of operations.
#include <cmath>
#include <initializer_list>
#include <limits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/optim.h"

namespace weft::cpu {
namespace {

// Each combination of options that adds work per element has its own loop.

template <bool maximize, class T>
inline accumulate_t<T> load_grad(T value) {
  return maximize ? -load(value) : load(value);
}

/// torch.lerp(from, to, weight) = from + weight (to - from). From weight 1/2 on it starts at `to`:
/// with a large `from`, the sum would lose the digits of `to`, which is the result for weight 1.
template <class C>
struct Lerp {
  bool near;  // starts at `from`
  C slope;
  explicit Lerp(C weight) : near(weight < C(0.5)), slope(near ? weight : weight - C(1)) {}
  C operator()(C from, C to) const { return (near ? from : to) + slope * (to - from); }
};

/// x, or 0 if it is too small for a normal number. A mean of gradients that have become 0, as those
/// of a relu that no input reaches, would shrink until rounding keeps it at a denormal number (0.9
/// times 4 of the smallest ones is 4 of them again), with which some processors compute 20 times as
/// long.
template <class C>
C normal_or_zero(C x) {
  return std::abs(x) < std::numeric_limits<C>::min() ? C(0) : x;
}

/// Calls loop(begin, end) for the parts of [0, n). Before each it asks for the arrays' memory 2 KiB
/// further on: the processor by itself follows so many arrays less far.
template <class T, class Loop>
void run_ahead(std::int64_t n, std::initializer_list<const T*> arrays, const Loop& loop) {
  constexpr std::int64_t kLine = 64 / sizeof(T), kPart = 4 * kLine, kAhead = 32 * kLine;
  std::int64_t i = 0;
  for (; i + kAhead + kPart <= n; i += kPart) {
    for (const T* array : arrays) {
      for (std::int64_t j = 0; j < kPart; j += kLine) __builtin_prefetch(array + i + kAhead + j);
    }
    loop(i, i + kPart);
  }
  loop(i, n);
}

template <class T, bool amsgrad, bool maximize>
void adam_loop(std::int64_t n, T* p, const T* g, T* m, T* v, T* largest, const AdamScalars& s) {
  using C = accumulate_t<T>;
  const Lerp<C> mean(C(1 - s.beta1));
  const C keep2 = C(s.beta2), take2 = C(1 - s.beta2);
  // Multiplies by the inverse of PyTorch's divisor sqrt(1 - beta2^t): half the divisions.
  const C step = C(-s.step_size), inverse = C(s.inverse_correction2), eps = C(s.eps);
  const C weight_decay = C(s.weight_decay), decay = C(s.decay);
  run_ahead<T>(n, {p, g, m, v}, [=, &s](std::int64_t begin, std::int64_t end) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = begin; i < end; ++i) {
      C pi = load(p[i]);
      pi *= decay;
      const C g0 = load_grad<maximize>(g[i]);
      const C gi = s.weight_decay != 0 ? g0 + weight_decay * pi : g0;
      C mi = load(m[i]), vi = load(v[i]);
      mi = normal_or_zero(mean(mi, gi));
      vi = vi * keep2 + take2 * gi * gi;
      C spread = vi;
      if constexpr (amsgrad) {
        const C before = load(largest[i]);
        spread = before >= vi || before != before ? before : vi;
        largest[i] = store<T>(spread);
      }
      const C denominator = std::sqrt(spread) * inverse + eps;
      m[i] = store<T>(mi);
      v[i] = store<T>(vi);
      p[i] = store<T>(pi + step * mi / denominator);
    }
  });
}

template <class T>
void adam_run(std::int64_t n, void* p, const void* g, void* m, void* v, void* largest,
              const AdamScalars& s) {
  const auto f = s.amsgrad ? (s.maximize ? adam_loop<T, true, true> : adam_loop<T, true, false>)
                           : (s.maximize ? adam_loop<T, false, true> : adam_loop<T, false, false>);
  f(n, static_cast<T*>(p), static_cast<const T*>(g), static_cast<T*>(m), static_cast<T*>(v),
    static_cast<T*>(largest), s);
}

template <class T, bool momentum, bool maximize>
void sgd_loop(std::int64_t n, T* p, const T* g, T* buffer, const SgdScalars& s) {
  using C = accumulate_t<T>;
  const C step = C(-s.lr), weight_decay = C(s.weight_decay);
  const C keep = s.first ? C(0) : C(s.momentum), take = s.first ? C(1) : C(1 - s.dampening);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const C pi = load(p[i]);
    const C g0 = load_grad<maximize>(g[i]);
    C gi = s.weight_decay != 0 ? g0 + weight_decay * pi : g0;
    if constexpr (momentum) {
      // The first step does not read the buffer, which is uninitialised and may hold NaN.
      const C before = s.first ? C(0) : load(buffer[i]);
      const C bi = normal_or_zero(before * keep + take * gi);
      buffer[i] = store<T>(bi);
      gi = s.nesterov ? gi + C(s.momentum) * bi : bi;
    }
    p[i] = store<T>(pi + step * gi);
  }
}

template <class T>
void sgd_run(std::int64_t n, void* p, const void* g, void* buffer, const SgdScalars& s) {
  const auto f = s.momentum != 0
                     ? (s.maximize ? sgd_loop<T, true, true> : sgd_loop<T, true, false>)
                     : (s.maximize ? sgd_loop<T, false, true> : sgd_loop<T, false, false>);
  f(n, static_cast<T*>(p), static_cast<const T*>(g), static_cast<T*>(buffer), s);
}

template <class T, bool momentum, bool centered, bool maximize>
void rmsprop_loop(std::int64_t n, T* p, const T* g, T* square, T* buffer, T* mean,
                  const RmspropScalars& s) {
  using C = accumulate_t<T>;
  const C step = C(-s.lr), keep = C(s.alpha), take = C(1 - s.alpha), eps = C(s.eps);
  const C weight_decay = C(s.weight_decay);
  const Lerp<C> mean_of(take);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const C pi = load(p[i]);
    const C g0 = load_grad<maximize>(g[i]);
    const C gi = s.weight_decay != 0 ? g0 + weight_decay * pi : g0;
    const C si = load(square[i]) * keep + take * gi * gi;
    square[i] = store<T>(si);
    C spread = si;
    if constexpr (centered) {
      const C mi = normal_or_zero(mean_of(load(mean[i]), gi));
      mean[i] = store<T>(mi);
      spread -= mi * mi;
      spread = spread < C(0) ? C(0) : spread;
    }
    C update = gi / (std::sqrt(spread) + eps);
    if constexpr (momentum) {
      update = normal_or_zero(load(buffer[i]) * C(s.momentum) + update);
      buffer[i] = store<T>(update);
    }
    p[i] = store<T>(pi + step * update);
  }
}

template <class T, bool maximize>
constexpr auto rmsprop_of(bool momentum, bool centered) {
  return momentum ? (centered ? rmsprop_loop<T, true, true, maximize>
                              : rmsprop_loop<T, true, false, maximize>)
                  : (centered ? rmsprop_loop<T, false, true, maximize>
                              : rmsprop_loop<T, false, false, maximize>);
}

template <class T>
void rmsprop_run(std::int64_t n, void* p, const void* g, void* square, void* buffer, void* mean,
                 const RmspropScalars& s) {
  const auto f =
      (s.maximize ? rmsprop_of<T, true> : rmsprop_of<T, false>)(s.momentum != 0, s.centered);
  f(n, static_cast<T*>(p), static_cast<const T*>(g), static_cast<T*>(square),
    static_cast<T*>(buffer), static_cast<T*>(mean), s);
}

template <class T, bool maximize>
void adadelta_loop(std::int64_t n, T* p, const T* g, T* square, T* updates,
                   const AdadeltaScalars& s) {
  using C = accumulate_t<T>;
  const C step = C(-s.lr), keep = C(s.rho), take = C(1 - s.rho), eps = C(s.eps);
  const C weight_decay = C(s.weight_decay);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const C pi = load(p[i]);
    const C g0 = load_grad<maximize>(g[i]);
    const C gi = s.weight_decay != 0 ? g0 + weight_decay * pi : g0;
    const C si = load(square[i]) * keep + take * gi * gi;
    square[i] = store<T>(si);
    const C ui = load(updates[i]);
    const C delta = std::sqrt(ui + eps) / std::sqrt(si + eps) * gi;
    updates[i] = store<T>(ui * keep + take * delta * delta);
    p[i] = store<T>(pi + step * delta);
  }
}

template <class T>
void adadelta_run(std::int64_t n, void* p, const void* g, void* square, void* updates,
                  const AdadeltaScalars& s) {
  const auto f = s.maximize ? adadelta_loop<T, true> : adadelta_loop<T, false>;
  f(n, static_cast<T*>(p), static_cast<const T*>(g), static_cast<T*>(square),
    static_cast<T*>(updates), s);
}

template <class T>
void scale_run(std::int64_t n, void* data, double factor) {
  T* x = static_cast<T*>(data);
  const auto f = static_cast<accumulate_t<T>>(factor);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) x[i] = store<T>(load(x[i]) * f);
}

template <class T>
void clamp_run(std::int64_t n, void* data, double most) {
  T* x = static_cast<T*>(data);
  const auto high = static_cast<accumulate_t<T>>(most);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const auto v = load(x[i]);
    const auto below = v > high ? high : v;
    x[i] = store<T>(below < -high ? -high : below);
  }
}

template <class T>
constexpr OptimLoops loops() {
  return {adam_run<T>, sgd_run<T>, rmsprop_run<T>, adadelta_run<T>, scale_run<T>, clamp_run<T>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<OptimLoops> optim_loops = {loops<float>(), loops<double>(), loops<bf16>()};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
