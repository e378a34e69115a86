// The names and domains of the element-wise operations, from the lists in
// kernels/elementwise_list.h. Private to tensor/.
#pragma once

#include <type_traits>

#include "weft/core/base/error.h"
#include "weft/kernels/functors.h"
#include "weft/tensor/tensor.h"

namespace weft::raw::internal {

struct OpInfo {
  const char* name;
  const char* in_place;
  bool integers;                 // integers give integers
  Saves saves = Saves::nothing;  // what backward of a unary operation needs
};

inline const OpInfo& info(UnaryOp op) {
  static constexpr OpInfo table[] = {
#define WEFT_INFO(value, name, F, integers, ...) {#name, #name "_", integers, functor::F::saves},
      WEFT_UNARY_OPS(WEFT_INFO)
#undef WEFT_INFO
#define WEFT_INFO(value, F, integers) {#value, #value "_", integers, functor::F::saves},
          WEFT_SCALAR_OPS(WEFT_INFO)
#undef WEFT_INFO
  };
  return table[static_cast<int>(op)];
}

inline const OpInfo& info(BinaryOp op) {
  static constexpr OpInfo table[] = {
#define WEFT_INFO(value, name, functor, integers, ...) {#name, #name "_", integers},
      WEFT_BINARY_OPS(WEFT_INFO)
#undef WEFT_INFO
  };
  return table[static_cast<int>(op)];
}

inline const char* name_of(CompareOp op) {
  static constexpr const char* table[] = {
#define WEFT_NAME(value, name, ...) #name,
      WEFT_COMPARE_OPS(WEFT_NAME)
#undef WEFT_NAME
  };
  return table[static_cast<int>(op)];
}

/// remainder and floor_divide of integers have no value for a divisor of 0. To check this, waits
/// for CUDA.
void check_divisor(BinaryOp op, const char* name, const Tensor& a, const Tensor& b);

/// Parameters of an operation on integers become i64 in the kernel.
inline void check_params(const char* name, UnaryParams params, DType dtype) {
  if (is_floating(dtype)) return;
  for (const double number : {params.a, params.b}) {
    WEFT_CHECK(number >= -0x1p63 && number < 0x1p63, InvalidArgument, name, "got the number ",
               number, " for a tensor of ", dtype, ", expected one that i64 holds");
  }
}

// PyTorch refuses these too: true - true has no boolean meaning.
inline bool undefined_for_bool(UnaryOp op) {
  return op == UnaryOp::neg || op == UnaryOp::rsub_scalar || op == UnaryOp::floor ||
         op == UnaryOp::ceil || op == UnaryOp::round || op == UnaryOp::trunc;
}
inline bool undefined_for_bool(BinaryOp op) {
  return op == BinaryOp::sub || op == BinaryOp::pow || op == BinaryOp::remainder ||
         op == BinaryOp::floor_divide;
}
/// `name` is the function that was called: neg or neg_.
template <class Op>
void check_not_boolean(Op op, const char* name, DType dtype) {
  WEFT_CHECK(dtype != DType::boolean || !undefined_for_bool(op), Dtype, name,
             "not defined for bool; convert with to(dtype), or use logical_not or logical_xor");
}

/// The dtype in which an operation on `dtype` computes: f32 for integers if their results are not
/// integers. A square counts as a power with the number 2, so a bool is squared as i64.
template <class Op>
DType compute_dtype(Op op, DType dtype) {
  if constexpr (std::is_same_v<Op, UnaryOp>) {
    if (op == UnaryOp::square && dtype == DType::boolean) return DType::i64;
  }
  return info(op).integers || is_floating(dtype) ? dtype : DType::f32;
}

}  // namespace weft::raw::internal
