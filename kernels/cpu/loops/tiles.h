// The inner loops of weft's own matrix products and convolutions, once per instruction set.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// The work of one tile: for i < rows and j < the tile's columns
///   c[i * ldc + j] = (with accumulate: +=) start[j] + sum over segments g and steps p of
///       a[a_rows[i] + a_segments[g] + p * a_step] * b[b_segments[g] + p * b_step + j]
/// So a and b may each be a packed panel, a strided matrix, or the windows of an image.
template <class T>
struct TileArgs {
  std::int64_t rows = 0;  ///< at most MicroTile::rows
  std::int64_t segments = 1, steps = 0;
  const T* a = nullptr;
  const std::int64_t* a_rows = nullptr;
  const std::int64_t* a_segments = nullptr;
  std::int64_t a_step = 0;
  const T* b = nullptr;
  const std::int64_t* b_segments = nullptr;
  std::int64_t b_step = 0;
  const T* start = nullptr;  ///< null: 0
  T* c = nullptr;
  std::int64_t ldc = 0;
  bool accumulate = false;
};

/// a_segments or b_segments of an operand without segments.
inline constexpr std::int64_t kOneSegment[] = {0};

/// A loop that keeps rows x cols sums in registers.
template <class T>
struct MicroTile {
  int rows = 0;
  int cols = 0;
  void (*run)(const TileArgs<T>&) = nullptr;
};

inline constexpr int kMostTiles = 6;
inline constexpr int kMostTileRows = 8;
inline constexpr int kMostTileElements = 512;

template <class T>
struct HeavyLoops {
  /// In ascending order of columns. Unused entries at the end have run == nullptr.
  MicroTile<T> tiles[kMostTiles];
  /// The index of the tile with the fastest multiplication, for large matrices.
  int best_tile;
  /// The number of elements of a vector register.
  int lanes;
  /// to[j * to_step + i] = from[i * from_step + j] for i < rows, j < n. Fast if rows is a multiple
  /// of lanes / 2.
  void (*transpose)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                    std::int64_t from_step);
  /// to[i * to_step + j] = from[i * from_step + j] for i < rows, j < n.
  void (*copy_rows)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                    std::int64_t from_step);
  /// to[i * to_step + j] += from[i * from_step + j] for i < rows, j < n.
  void (*add_rows)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                   std::int64_t from_step);
  /// sums[i][j][lane] += a[i * a_step + p] * b[j * b_step + p] over p < n, for i < rows <= 8 and
  /// j < cols <= 3. p goes to lane p % lanes in whole vectors; the rest of n goes to lane 0.
  void (*dot)(std::int64_t rows, std::int64_t cols, std::int64_t n, const T* a, std::int64_t a_step,
              const T* b, std::int64_t b_step, T* sums);
  /// to[j] = start + sum over t < taps of w[t] * from[at[t] + j], j < n; n is a multiple of lanes.
  void (*weigh)(std::int64_t n, T* to, T start, std::int64_t taps, const T* w, const T* from,
                const std::int64_t* at);
  /// The same for up to `count` rows of n >= lanes elements, at to + r * to_step, which share what
  /// they load: row r is the sum over i < rows and s < taps of
  ///   w[i * taps + s] * from[(r + i) * from_step + at[s] + j].
  /// Returns how many rows it has computed, at least one.
  std::int64_t (*weigh_rows)(std::int64_t count, std::int64_t n, T* to, std::int64_t to_step,
                             T start, std::int64_t rows, std::int64_t taps, const T* w,
                             const T* from, std::int64_t from_step, const std::int64_t* at);
  /// The gradient of weigh()'s w, with one sum per lane: for t < taps,
  /// sums[t * lanes + j % lanes] += g[j] * from[at[t] + j], j < n; n is a multiple of lanes.
  void (*correlate)(std::int64_t n, const T* g, std::int64_t taps, const T* from,
                    const std::int64_t* at, T* sums);
  /// sums[j] += sum over rows of from[i * step + j], j < n.
  void (*sum_rows)(std::int64_t rows, std::int64_t n, const T* from, std::int64_t step, T* sums);
};

struct TileLoops {
  HeavyLoops<float> f32;
  HeavyLoops<double> f64;
};

/// A plan keeps the table that it was made with, because tiles and lanes differ between tables.
WEFT_LOOPS(TileLoops, tile_loops)

template <class T>
const HeavyLoops<T>& heavy_loops() {
  if constexpr (sizeof(T) == 8)
    return tile_loops().f64;
  else
    return tile_loops().f32;
}

}  // namespace weft::cpu
