// Tables of loops that are compiled once per level of vector instructions, and the choice of a
// level. Tables rather than ifuncs: the resolvers of ifuncs run before ThreadSanitizer is ready and
// crash under it.
#pragma once

#ifdef __FAST_MATH__
#error "weft keeps NaN, infinities and the order of sums: compile it without -ffast-math"
#endif

#include <cstdint>

#include "weft/core/base/dtype.h"
#include "weft/core/base/simd_level.h"

namespace weft::cpu {

/// A loop over n contiguous elements; data[0] is the output, the others are inputs.
using RowFn = void (*)(std::int64_t n, char* const* data, const void* params);

/// A table for each floating dtype.
template <class Loops>
struct ByDType {
  Loops f32, f64, bf16;

  const Loops& of(DType dtype) const {
    return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f64 : bf16;
  }
};

/// The table of simd_level(). All loops are chosen here.
template <class Table>
const Table& at_level(const Table& baseline, const Table& avx2, const Table& avx512) {
  switch (simd_level()) {
    case SimdLevel::baseline: return baseline;
    case SimdLevel::avx2: return avx2;
    case SimdLevel::avx512: break;
  }
  return avx512;
}

/// Declares the tables NAME, one per level, which loops/FAMILY.cc defines in the namespace
/// WEFT_SIMD, and NAME(), which returns that of simd_level(). The tables are data, not functions
/// that fill one: such a function could use instructions that the processor does not have.
#define WEFT_LOOPS(Table, name) \
  namespace baseline {          \
  extern const Table name;      \
  }                             \
  namespace avx2 {              \
  extern const Table name;      \
  }                             \
  namespace avx512 {            \
  extern const Table name;      \
  }                             \
  inline const Table& name() { return at_level(baseline::name, avx2::name, avx512::name); }

}  // namespace weft::cpu
