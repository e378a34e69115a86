// A matrix product as both backends see it.
#pragma once

#include <string>

#include "weft/core/base/error.h"
#include "weft/kernels/matmul.h"

namespace weft {

/// y = a b (+ bias), or y += a b.
struct MatmulProblem {
  DType dtype;    ///< of a and b
  DType y_dtype;  ///< the same, or f32 if dtype is bf16
  std::int64_t batch, m, n, k;
  std::int64_t a_batch, a_m, a_k;  ///< strides in elements
  std::int64_t b_batch, b_k, b_n;
  bool bias, accumulate;

  explicit MatmulProblem(const MatmulArgs& args)
      : dtype(args.a.dtype),
        y_dtype(args.y.dtype),
        batch(args.y.shape[0]),
        m(args.y.shape[1]),
        n(args.y.shape[2]),
        k(args.a.shape[2]),
        a_batch(args.a.strides[0]),
        a_m(args.a.strides[1]),
        a_k(args.a.strides[2]),
        b_batch(args.b.strides[0]),
        b_k(args.b.strides[1]),
        b_n(args.b.strides[2]),
        bias(bool(args.bias)),
        accumulate(args.accumulate) {}

  /// "a [1,32,64] strides [0,64,1], b [1,64,8] strides [0,8,1], f32", or ", bf16 to f32"
  std::string text() const {
    return detail::concat("a [", batch, ",", m, ",", k, "] strides [", a_batch, ",", a_m, ",", a_k,
                          "], b [", batch, ",", k, ",", n, "] strides [", b_batch, ",", b_k, ",",
                          b_n, "], ", to_string(dtype),
                          y_dtype == dtype ? "" : detail::concat(" to ", to_string(y_dtype)));
  }
};

}  // namespace weft
