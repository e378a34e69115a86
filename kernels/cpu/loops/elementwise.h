// Element-wise loops over contiguous elements: the table, and the loops as templates of operation
// and type.
#pragma once

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/table.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/functors.h"

namespace weft::cpu {

#define WEFT_COUNT(...) +1
inline constexpr int kUnaryOps = 0 WEFT_UNARY_OPS(WEFT_COUNT) WEFT_SCALAR_OPS(WEFT_COUNT);
inline constexpr int kBinaryOps = 0 WEFT_BINARY_OPS(WEFT_COUNT);
#undef WEFT_COUNT

/// Element-wise loops of one dtype; null if the operation does not exist for it, or, at the wider
/// levels, if the baseline's loop serves. The comments list the elements of `data`.
struct ElementwiseLoops {
  RowFn unary[kUnaryOps]{};                // y, x; params: UnaryParams
  RowFn unary_backward[kUnaryOps]{};       // grad_x, grad_y, saved; params: UnaryParams
  RowFn binary[kBinaryOps]{};              // y, a, b
  RowFn binary_single[kBinaryOps][2]{};    // the same with one element of a ([1]: of b) for all
  RowFn binary_backward[kBinaryOps][2]{};  // grad, grad_y, a, b; [1]: dL/db
  RowFn add_scaled = nullptr;              // y, y, x; params: double alpha
};
WEFT_LOOPS(ByDType<ElementwiseLoops>, elementwise_loops)

namespace {  // internal: each instruction set compiles a copy

/// Computes the functor F in type C. Specialised for operations that can be faster than in libm;
/// with has(x), only where has(x) is true.
template <class F, class C>
struct Forward {
  static C call(const F& f, C x) { return f.fwd(x); }
};

/// The same for the backward rule of F; has(saved).
template <class F, class C>
struct Backward {
  static C call(const F& f, C g, C saved) { return f.bwd(g, saved); }
};

/// The same for F of two operands, without has().
template <class F, class C>
struct BinaryForward {
  static C call(C a, C b) { return F{}.fwd(a, b); }
};

/// Calls fast(i) for i < n if has(i), else slow(i). The blocks without a slow element vectorise.
template <class Has, class Fast, class Slow>
void run_where(std::int64_t n, const Has& has, const Fast& fast, const Slow& slow) {
  constexpr std::int64_t kBlock = 512;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t end = n - first < kBlock ? n : first + kBlock;
    std::int32_t without = 0;
    for (std::int64_t i = first; i < end; ++i) without += !has(i);
    if (without == 0) {
      WEFT_VECTOR_LOOP
      for (std::int64_t i = first; i < end; ++i) fast(i);
      continue;
    }
    for (std::int64_t i = first; i < end; ++i) has(i) ? fast(i) : slow(i);
  }
}

template <class T, class F>
void unary_row(std::int64_t n, char* const* data, const void* params) {
  const F f{*static_cast<const UnaryParams*>(params)};
  T* y = reinterpret_cast<T*>(data[0]);
  const T* x = reinterpret_cast<const T*>(data[1]);
  using Fast = Forward<F, accumulate_t<T>>;
  const auto fast = [=](std::int64_t i) { y[i] = store<T>(Fast::call(f, load(x[i]))); };
  if constexpr (requires { Fast::has(load(*x)); }) {
    run_where(
        n, [=](std::int64_t i) { return Fast::has(load(x[i])); }, fast,
        [=](std::int64_t i) { y[i] = store<T>(f.fwd(load(x[i]))); });
  } else {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) fast(i);
  }
}

template <class T, class F>
void unary_backward_row(std::int64_t n, char* const* data, const void* params) {
  const F f{*static_cast<const UnaryParams*>(params)};
  T* grad_x = reinterpret_cast<T*>(data[0]);
  const T* grad_y = reinterpret_cast<const T*>(data[1]);
  const T* saved = reinterpret_cast<const T*>(data[2]);
  using Fast = Backward<F, accumulate_t<T>>;
  const auto fast = [=](std::int64_t i) {
    grad_x[i] = store<T>(Fast::call(f, load(grad_y[i]), load(saved[i])));
  };
  if constexpr (requires { Fast::has(load(*saved)); }) {
    run_where(
        n, [=](std::int64_t i) { return Fast::has(load(saved[i])); }, fast,
        [=](std::int64_t i) { grad_x[i] = store<T>(f.bwd(load(grad_y[i]), load(saved[i]))); });
  } else {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) fast(i);
  }
}

template <class T, class F>
void binary_row(std::int64_t n, char* const* data, const void*) {
  T* y = reinterpret_cast<T*>(data[0]);
  const T* a = reinterpret_cast<const T*>(data[1]);
  const T* b = reinterpret_cast<const T*>(data[2]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = store<T>(BinaryForward<F, accumulate_t<T>>::call(load(a[i]), load(b[i])));
  }
}

template <class T, class F, bool is_b>
void binary_single_row(std::int64_t n, char* const* data, const void*) {
  using Forward = BinaryForward<F, accumulate_t<T>>;  // as binary_row: the same bits
  T* y = reinterpret_cast<T*>(data[0]);
  const T* x = reinterpret_cast<const T*>(data[is_b ? 1 : 2]);
  const auto value = load(*reinterpret_cast<const T*>(data[is_b ? 2 : 1]));
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = store<T>(is_b ? Forward::call(load(x[i]), value) : Forward::call(value, load(x[i])));
  }
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
