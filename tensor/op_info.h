// The names and domains of the element-wise operations, from the lists in kernels/elementwise.h.
// Private to tensor/.
#pragma once

#include "weft/kernels/elementwise.h"
#include "weft/tensor/tensor.h"

namespace weft::raw::internal {

struct OpInfo {
  const char* name;
  const char* in_place;
  bool integers;                 // closed over the integers
  Saves saves = Saves::nothing;  // what backward of a unary one needs
};

inline const OpInfo& info(UnaryOp op) {
  static constexpr OpInfo table[] = {
#define X(value, name, F, integers, ...) {#name, #name "_", integers, functor::F::saves},
      WEFT_UNARY_OPS(X)
#undef X
#define X(value, F, integers) {#value, #value "_", integers, functor::F::saves},
          WEFT_SCALAR_OPS(X)
#undef X
  };
  return table[static_cast<int>(op)];
}

inline const OpInfo& info(BinaryOp op) {
  static constexpr OpInfo table[] = {
#define X(value, name, functor, integers, ...) {#name, #name "_", integers},
      WEFT_BINARY_OPS(X)
#undef X
  };
  return table[static_cast<int>(op)];
}

inline const char* name_of(CompareOp op) {
  static constexpr const char* table[] = {
#define X(value, name, ...) #name,
      WEFT_COMPARE_OPS(X)
#undef X
  };
  return table[static_cast<int>(op)];
}

/// Of integers, remainder and floor_divide have no value at 0. CUDA is waited for to see.
void check_divisor(BinaryOp op, const char* name, const Tensor& b);

/// What an operation on `dtype` computes in: f32 for integers that it leads out of.
inline DType compute_dtype(const OpInfo& op, DType dtype) {
  return op.integers || is_floating(dtype) ? dtype : DType::f32;
}

}  // namespace weft::raw::internal
