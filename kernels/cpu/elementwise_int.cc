// Element-wise loops of the integer types, computed in i64. They serve indices, labels and masks:
// one instruction set is enough.
#include "weft/kernels/cpu/elementwise_rows.h"
#include "weft/kernels/cpu/families.h"

namespace weft::cpu {
namespace {

template <class T, class F, bool has_integers>
constexpr RowFn unary_entry() {
  if constexpr (has_integers)
    return unary_row<T, F>;
  else
    return nullptr;
}

template <class T, class F, bool has_integers>
constexpr RowFn binary_entry() {
  if constexpr (has_integers)
    return binary_row<T, F>;
  else
    return nullptr;
}

template <class T>
constexpr ElementwiseRows make_rows() {
  ElementwiseRows rows;
#define X(value, name, F, integers, ...) \
  rows.unary[static_cast<int>(UnaryOp::value)] = unary_entry<T, functor::F, integers>();
  WEFT_UNARY_OPS(X)
#undef X
#define X(value, F, integers) \
  rows.unary[static_cast<int>(UnaryOp::value)] = unary_entry<T, functor::F, integers>();
  WEFT_SCALAR_OPS(X)
#undef X
#define X(value, name, F, integers, ...) \
  rows.binary[static_cast<int>(BinaryOp::value)] = binary_entry<T, functor::F, integers>();
  WEFT_BINARY_OPS(X)
#undef X
  return rows;
}

template <class T>
constexpr ElementwiseRows rows = make_rows<T>();

}  // namespace

const ElementwiseRows& integer_rows(DType dtype) {
  switch (dtype) {
    case DType::i64: return rows<std::int64_t>;
    case DType::i32: return rows<std::int32_t>;
    case DType::u8: return rows<std::uint8_t>;
    default: return rows<bool>;
  }
}

}  // namespace weft::cpu
