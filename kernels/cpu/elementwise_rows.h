// The element-wise loops over contiguous elements, one instantiation per operation and type.
#pragma once

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/simd.h"
#include "weft/kernels/functors.h"

namespace weft::cpu {
namespace {  // internal: each instruction set compiles a copy

/// Computes the functor F in type C. Specialised where something is faster than libm.
template <class F, class C>
struct Forward {
  static C call(const F& f, C x) { return f.fwd(x); }
};

/// The same for the backward rule of F.
template <class F, class C>
struct Backward {
  static C call(const F& f, C g, C saved) { return f.bwd(g, saved); }
};

template <class T, class F>
void unary_row(std::int64_t n, char* const* data, const void* params) {
  const F f{*static_cast<const UnaryParams*>(params)};
  T* y = reinterpret_cast<T*>(data[0]);
  const T* x = reinterpret_cast<const T*>(data[1]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = store<T>(Forward<F, accumulate_t<T>>::call(f, load(x[i])));
  }
}

template <class T, class F>
void unary_backward_row(std::int64_t n, char* const* data, const void* params) {
  const F f{*static_cast<const UnaryParams*>(params)};
  T* grad_x = reinterpret_cast<T*>(data[0]);
  const T* grad_y = reinterpret_cast<const T*>(data[1]);
  const T* saved = reinterpret_cast<const T*>(data[2]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    grad_x[i] = store<T>(Backward<F, accumulate_t<T>>::call(f, load(grad_y[i]), load(saved[i])));
  }
}

template <class T, class F>
void binary_row(std::int64_t n, char* const* data, const void*) {
  T* y = reinterpret_cast<T*>(data[0]);
  const T* a = reinterpret_cast<const T*>(data[1]);
  const T* b = reinterpret_cast<const T*>(data[2]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<T>(F{}.fwd(load(a[i]), load(b[i])));
}

template <class T, class F, bool of_b>
void binary_backward_row(std::int64_t n, char* const* data, const void*) {
  T* grad = reinterpret_cast<T*>(data[0]);
  const T* grad_y = reinterpret_cast<const T*>(data[1]);
  const T* a = reinterpret_cast<const T*>(data[2]);
  const T* b = reinterpret_cast<const T*>(data[3]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const auto g = load(grad_y[i]), u = load(a[i]), v = load(b[i]);
    if constexpr (of_b)
      grad[i] = store<T>(F{}.bwd_b(g, u, v));
    else
      grad[i] = store<T>(F{}.bwd_a(g, u, v));
  }
}

}  // namespace
}  // namespace weft::cpu
