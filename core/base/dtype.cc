#include "weft/core/base/dtype.h"

#include <algorithm>
#include <array>
#include <ostream>

namespace weft {
namespace {

// In the order of promotion: the result is the later of the two types.
constexpr std::array kByRank = {DType::boolean, DType::u8,  DType::i32, DType::i64,
                                DType::bf16,    DType::f32, DType::f64};

int rank(DType dtype) {
  int i = 0;
  while (kByRank[i] != dtype) ++i;
  return i;
}

}  // namespace

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << to_string(dtype); }

DType parse_dtype(std::string_view text) {
  for (DType dtype : kByRank) {
    if (text == to_string(dtype)) return dtype;
  }
  WEFT_THROW(InvalidArgument, "dtype", "got '", text,
             "', expected f32, f64, bf16, i64, i32, u8 or bool");
}

DType promote(DType a, DType b) { return kByRank[std::max(rank(a), rank(b))]; }

}  // namespace weft
