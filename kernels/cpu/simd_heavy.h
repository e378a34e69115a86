// The inner loops of the plain matrix products and convolutions, once per instruction set.
#pragma once

#include <cstdint>

namespace weft::cpu {

/// The work of one tile: for i < rows and j < the tile's columns
///   c[i * ldc + j] = or += start[j] + sum over segments g and steps p of
///       a[a_rows[i] + a_segments[g] + p * a_step] * b[b_segments[g] + p * b_step + j]
/// So either operand may be a packed panel, a strided matrix, or the windows of an image.
template <class T>
struct TileArgs {
  std::int64_t rows = 0;  ///< at most the tile's
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

/// For operands without segments.
inline constexpr std::int64_t kOneSegment[] = {0};

/// rows x cols sums in registers.
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
  /// In ascending order of columns; unused ones at the end have run == nullptr.
  MicroTile<T> tiles[kMostTiles];
  /// Which of them computes fastest per product: for large matrices.
  int best_tile;
  /// Elements of a vector.
  int lanes;
  /// to[j * to_step + i] = from[i * from_step + j] for i < rows, j < n. Fast where rows is a
  /// multiple of half the lanes.
  void (*transpose)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                    std::int64_t from_step);
  /// to[i * to_step + j] = from[i * from_step + j] for i < rows, j < n.
  void (*copy_rows)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                    std::int64_t from_step);
  /// to[i * to_step + j] += from[i * from_step + j] for i < rows, j < n.
  void (*add_rows)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                   std::int64_t from_step);
  /// sums[i][j][lane] += a[i * a_step + p] * b[j * b_step + p] over p < n, lane by lane over whole
  /// vectors, what remains of n into lane 0; i < rows <= 8, j < cols <= 3.
  void (*dot)(std::int64_t rows, std::int64_t cols, std::int64_t n, const T* a, std::int64_t a_step,
              const T* b, std::int64_t b_step, T* sums);
  /// sums[j] += sum over rows of from[i * step + j], j < n.
  void (*sum_rows)(std::int64_t rows, std::int64_t n, const T* from, std::int64_t step, T* sums);
};

struct HeavySimd {
  HeavyLoops<float> f32;
  HeavyLoops<double> f64;
};

namespace baseline {
extern const HeavySimd heavy_functions;
}
namespace avx2 {
extern const HeavySimd heavy_functions;
}
namespace avx512 {
extern const HeavySimd heavy_functions;
}

/// The table of simd_level(). A plan keeps the one it was made with: tiles and lanes differ.
const HeavySimd& heavy_simd();

template <class T>
const HeavyLoops<T>& heavy_loops() {
  if constexpr (sizeof(T) == 8)
    return heavy_simd().f64;
  else
    return heavy_simd().f32;
}

}  // namespace weft::cpu
