// Copies of strided rows, transposing copies, selection, fills, and conversions with vector code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// Copies rows x n elements. A step goes from one element to the next, a row step from one row to
/// the next, both in elements; they may be 0 or negative.
using CopyTile = void (*)(std::int64_t rows, std::int64_t n, const void* x, std::int64_t x_step,
                          std::int64_t x_row_step, void* y, std::int64_t y_step,
                          std::int64_t y_row_step);

struct CopyLoops {
  struct Moves {
    CopyTile tile;
    RowFn where;  // data: y, condition, a, b
    RowFn fill;   // data: y; params: an element
  };
  Moves moves1, moves2, moves4, moves8;  // by the size of an element
  /// Whether all n numbers are in [0, bound).
  bool (*in_range)(std::int64_t n, const std::int64_t* x, std::int64_t bound);

  const Moves& moves(std::size_t bytes) const {
    return bytes == 1 ? moves1 : bytes == 2 ? moves2 : bytes == 4 ? moves4 : moves8;
  }
  RowFn u8_to_f32;  // data: y, x
  RowFn f32_to_bf16;
  RowFn bf16_to_f32;
  /// y[j][i] = x[i][j] for 4-byte elements. x is [rows, cols]; its rows are x_step elements apart,
  /// those of y y_step.
  void (*transpose4)(std::int64_t rows, std::int64_t cols, const void* x, std::int64_t x_step,
                     void* y, std::int64_t y_step);
};
WEFT_LOOPS(CopyLoops, copy_loops)

}  // namespace weft::cpu
