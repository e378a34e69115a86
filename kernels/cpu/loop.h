// How the CPU's element-wise loops walk strided operands. Two dimensions are merged if every
// operand walks them like one. So the common cases (contiguous, channels last, any dense layout)
// become one flat run. Kernels take only contiguous runs: if an operand is strided or broadcast,
// short blocks of it are gathered into a buffer first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/loops/table.h"
#include "weft/kernels/view.h"

namespace weft::cpu {

/// A loop of at most this many elements stays in the calling thread: a fork and join costs as much
/// as about ten thousand additions or a few thousand exponentials.
inline constexpr std::int64_t kCheapGrain = 32768;
inline constexpr std::int64_t kCostlyGrain = 8192;

/// Rows of n elements of each operand; strides in elements.
template <int N>
struct Tile {
  std::int64_t n = 0;
  std::int64_t rows = 1;
  std::array<std::int64_t, N> step{};      // from one element of a row to the next
  std::array<std::int64_t, N> row_step{};  // from one row to the next
  std::array<char*, N> data{};
};

template <int N>
class Loop {
 public:
  /// All operands have one shape. Operand 0, the output, decides the order of the dimensions.
  explicit Loop(const std::array<const View*, N>& views) {
    const Shape& shape = views[0]->shape;
    std::array<const Strides*, N> strides;
    for (int k = 0; k < N; ++k) {
      strides[k] = &views[k]->strides;
      data_[k] = views[k]->template as<char>();
      bytes_[k] = static_cast<std::int64_t>(size_of(views[k]->dtype));
    }
    for (int d = shape.size() - 1; d >= 0; --d) add(shape[d], strides, d);
    merge();
  }
  Loop() = default;

  std::int64_t numel() const { return numel_; }
  int ndim() const { return ndim_; }
  std::int64_t size(int d) const { return size_[d]; }
  std::int64_t stride(int operand, int d) const { return stride_[d][operand]; }
  std::int64_t bytes(int operand) const { return bytes_[operand]; }
  char* data(int operand) const { return data_[operand]; }
  /// Whether the loop is one run with stride 1 in every operand.
  bool contiguous() const {
    if (ndim_ != 1) return false;
    for (int k = 0; k < N; ++k) {
      if (stride_[0][k] != 1) return false;
    }
    return true;
  }

  /// Calls f(tile) for tiles that together cover the elements [begin, end), in loop order.
  template <class F>
  void walk(std::int64_t begin, std::int64_t end, F&& f) const {
    if (begin >= end) return;
    Tile<N> tile;
    tile.step = stride_[0];
    if (ndim_ > 1) tile.row_step = stride_[1];
    std::array<std::int64_t, kMaxDims> at{};
    std::int64_t rest = begin;
    for (int d = 0; d < ndim_; ++d) {
      at[d] = rest % size_[d];
      rest /= size_[d];
    }
    while (begin < end) {
      for (int k = 0; k < N; ++k) {
        std::int64_t offset = 0;
        for (int d = 0; d < ndim_; ++d) offset += at[d] * stride_[d][k];
        tile.data[k] = data_[k] + offset * bytes_[k];
      }
      if (at[0] != 0 || end - begin < size_[0]) {  // a part of a row, at an end of the range
        tile.n = std::min(size_[0] - at[0], end - begin);
        tile.rows = 1;
      } else {
        tile.n = size_[0];
        tile.rows = ndim_ > 1 ? std::min(size_[1] - at[1], (end - begin) / size_[0]) : 1;
      }
      f(tile);
      begin += tile.n * tile.rows;
      at[0] += tile.n;
      if (at[0] < size_[0]) continue;
      at[0] = 0;
      at[1] += tile.rows;
      for (int d = 1; d < ndim_ - 1 && at[d] >= size_[d]; ++d) {
        at[d] = 0;
        ++at[d + 1];
      }
    }
  }

 private:
  void add(std::int64_t size, const std::array<const Strides*, N>& strides, int d) {
    numel_ *= size;
    if (size == 1) return;
    std::array<std::int64_t, N> s;
    for (int k = 0; k < N; ++k) s[k] = (*strides[k])[d];
    // Inserts so that the innermost dimension is first: by the output's stride, then the others'.
    int at = ndim_++;
    for (; at > 0 && inside(s, stride_[at - 1]); --at) {
      size_[at] = size_[at - 1];
      stride_[at] = stride_[at - 1];
    }
    size_[at] = size;
    stride_[at] = s;
  }

  static bool inside(const std::array<std::int64_t, N>& a, const std::array<std::int64_t, N>& b) {
    for (int k = 0; k < N; ++k) {
      if (a[k] != 0 && b[k] != 0 && a[k] != b[k]) return a[k] < b[k];
    }
    return false;
  }

  void merge() {
    if (ndim_ == 0) {  // a single element: every operand counts as contiguous
      ndim_ = 1;
      size_[0] = 1;
      stride_[0].fill(1);
      return;
    }
    int last = 0;
    for (int d = 1; d < ndim_; ++d) {
      bool joins = true;
      for (int k = 0; k < N; ++k) joins &= stride_[d][k] == stride_[last][k] * size_[last];
      if (joins) {
        size_[last] *= size_[d];
      } else if (++last != d) {
        size_[last] = size_[d];
        stride_[last] = stride_[d];
      }
    }
    ndim_ = last + 1;
  }

  int ndim_ = 0;
  std::int64_t numel_ = 1;
  std::array<std::int64_t, kMaxDims + 1> size_{};
  std::array<std::array<std::int64_t, N>, kMaxDims + 1> stride_{};  // [dimension][operand]
  std::array<char*, N> data_{};
  std::array<std::int64_t, N> bytes_{};
};

/// Copy rows x n elements of `bytes` bytes each from strided memory to a dense buffer (gather), or
/// back (scatter). Steps count elements. With step > 1 and row_step 1, a gather of four-byte
/// elements is a transposition and runs in blocks of 8 x 8.
void gather(std::int64_t bytes, std::int64_t rows, std::int64_t n, const char* from,
            std::int64_t step, std::int64_t row_step, char* to);
void scatter(std::int64_t bytes, std::int64_t rows, std::int64_t n, const char* from, char* to,
             std::int64_t step, std::int64_t row_step);

/// The loops of an operation. single[k], if there is one, takes one element of operand k.
template <int N>
struct RowFns {
  RowFn all;
  std::array<RowFn, N> single{};

  RowFns(RowFn f) : all(f) {}
  RowFns(RowFn f, const std::array<RowFn, N>& one) : all(f), single(one) {}
};

/// The loop for whole rows of a tile whose operand k is one element per row, if the others are
/// contiguous and a row is long enough for a call of its own. Else null.
template <int N>
RowFn single_loop(const Tile<N>& tile, const RowFns<N>& fns) {
  constexpr std::int64_t kLong = 64;
  RowFn found = nullptr;
  for (int k = 0; k < N; ++k) {
    if (tile.step[k] == 1) continue;
    if (found || tile.step[k] != 0 || tile.n < kLong) return nullptr;
    found = fns.single[k];
    if (!found) return nullptr;
  }
  return found;
}

/// Runs an operation over a tile, in blocks that may contain several short rows. Operands that are
/// not contiguous over a block go through a buffer.
template <int N>
void run_tile(const Tile<N>& tile, const std::array<std::int64_t, N>& bytes, const RowFns<N>& fns,
              const void* params) {
  constexpr std::int64_t kBlock = 1024;
  const RowFn f = fns.all;
  bool flat = true;
  for (int k = 0; k < N; ++k) {
    flat &= tile.step[k] == 1 && (tile.rows == 1 || tile.row_step[k] == tile.n);
  }
  if (flat) {
    f(tile.n * tile.rows, tile.data.data(), params);
    return;
  }
  if (const RowFn single = single_loop<N>(tile, fns)) {
    std::array<char*, N> data = tile.data;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      single(tile.n, data.data(), params);
      for (int k = 0; k < N; ++k) data[k] += tile.row_step[k] * bytes[k];
    }
    return;
  }
  // Blocks are wide. But if neighbouring rows of an operand are neighbours in memory, blocks are
  // tall enough to use whole cache lines of it (for four-byte elements, the most common ones).
  constexpr std::int64_t kTall = 16;
  bool turned = false;
  for (int k = 1; k < N; ++k) turned |= tile.step[k] > 1 && tile.row_step[k] == 1;
  const std::int64_t n = std::min(tile.n, turned ? kBlock / kTall : kBlock);
  const std::int64_t rows = std::min(tile.rows, std::max<std::int64_t>(kBlock / n, 1));
  alignas(64) char buffer[N][kBlock * 8];
  std::array<bool, N> direct;
  std::array<bool, N> same;  // the first block's buffer content serves all blocks
  for (int k = 0; k < N; ++k) {
    direct[k] = tile.step[k] == 1 && (rows == 1 || (n == tile.n && tile.row_step[k] == n));
    same[k] = (tile.step[k] == 0 || n == tile.n) && (tile.row_step[k] == 0 || tile.rows == 1);
  }
  for (std::int64_t r = 0; r < tile.rows; r += rows) {
    for (std::int64_t i = 0; i < tile.n; i += n) {
      const std::int64_t rows_here = std::min(rows, tile.rows - r);
      const std::int64_t n_here = std::min(n, tile.n - i);
      std::array<char*, N> data;
      for (int k = 0; k < N; ++k) {
        data[k] = tile.data[k] + (r * tile.row_step[k] + i * tile.step[k]) * bytes[k];
        if (direct[k]) continue;
        if (k > 0 && !(same[k] && r + i > 0)) {
          gather(bytes[k], rows_here, n_here, data[k], tile.step[k], tile.row_step[k], buffer[k]);
        }
        if (k > 0) data[k] = buffer[k];
      }
      char* const out = data[0];
      if (!direct[0]) data[0] = buffer[0];
      f(rows_here * n_here, data.data(), params);
      if (!direct[0]) {
        scatter(bytes[0], rows_here, n_here, buffer[0], out, tile.step[0], tile.row_step[0]);
      }
    }
  }
}

/// Applies an operation to whole operands. Above `grain` elements, the team shares the work.
template <int N>
void run_loop(const std::array<const View*, N>& views, std::int64_t grain, const RowFns<N>& fns,
              const void* params) {
  const Loop<N> loop(views);
  if (loop.numel() <= grain && loop.contiguous()) {
    if (loop.numel() == 0) return;
    std::array<char*, N> data;
    for (int k = 0; k < N; ++k) data[k] = loop.data(k);
    fns.all(loop.numel(), data.data(), params);
    return;
  }
  std::array<std::int64_t, N> bytes;
  for (int k = 0; k < N; ++k) bytes[k] = loop.bytes(k);
  parallel_for(loop.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    loop.walk(begin, end, [&](const Tile<N>& tile) { run_tile<N>(tile, bytes, fns, params); });
  });
}

}  // namespace weft::cpu
