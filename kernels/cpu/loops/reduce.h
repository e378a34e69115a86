// Sums, products, maxima and minima of the floating types, and sums of integers.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// acc[r] = op(acc[r], x[r * step + i]) for all r < count and i < n. Accumulators have 8 bytes:
/// double for floating dtypes, else std::int64_t.
using ReduceRuns = void (*)(std::int64_t count, std::int64_t step, std::int64_t n, const void* x,
                            void* acc);
/// acc[c] = op(acc[c], x[r * row_step + c]) for all r < rows and c < cols.
using ReduceColumns = void (*)(std::int64_t rows, std::int64_t row_step, std::int64_t cols,
                               const void* x, void* acc);
struct ReduceFns {
  ReduceRuns runs = nullptr;
  ReduceColumns columns = nullptr;
};
/// The first position of the extreme, of n elements or of each column. A NaN counts as the extreme.
struct ExtremeFns {
  std::int64_t (*run)(std::int64_t n, const void* x) = nullptr;
  void (*columns)(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* x,
                  std::int64_t* positions) = nullptr;
};
struct ReduceLoops {
  ReduceFns sum, prod, max, min;
  ExtremeFns argmax, argmin;
  void (*sum_of_squares)(std::int64_t n, const void* x, double* acc);
  RowFn scaled_deviation;  // y, x, center, factor; the last two f64
};
struct IntegerSums {
  ReduceFns i64, i32, u8, boolean;

  const ReduceFns& of(DType dtype) const {
    switch (dtype) {
      case DType::i32: return i32;
      case DType::u8: return u8;
      case DType::boolean: return boolean;
      default: return i64;
    }
  }
};
WEFT_LOOPS(IntegerSums, integer_sums)
WEFT_LOOPS(ByDType<ReduceLoops>, reduce_loops)

}  // namespace weft::cpu
