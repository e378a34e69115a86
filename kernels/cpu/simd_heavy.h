// The inner loops of the plain matrix products and convolutions, once per instruction set.
#pragma once

#include <cstdint>

namespace weft::cpu {

/// The work of one tile: for i < rows and j < the tile's columns
///   c[i * ldc + j] = or += sum over segments g and steps p of
///                    a[a_rows[i] + a_segments[g] + p * a_step] * b[(g * steps + p) * b_step + j]
/// So a may be a packed panel, a strided matrix, or the windows of an image.
template <class T>
struct TileArgs {
  std::int64_t rows = 0;  ///< at most the tile's
  std::int64_t segments = 1, steps = 0;
  const T* a = nullptr;
  const std::int64_t* a_rows = nullptr;
  const std::int64_t* a_segments = nullptr;
  std::int64_t a_step = 0;
  const T* b = nullptr;
  std::int64_t b_step = 0;
  T* c = nullptr;
  std::int64_t ldc = 0;
  bool accumulate = false;
};

/// rows x cols sums in registers.
template <class T>
struct Tile {
  int rows = 0;
  int cols = 0;
  void (*run)(const TileArgs<T>&) = nullptr;
};

inline constexpr int kMostTiles = 6;
inline constexpr int kMostTileRows = 8;

template <class T>
struct HeavyLoops {
  /// In ascending order of columns; unused ones at the end have run == nullptr.
  Tile<T> tiles[kMostTiles];
  /// Which of them computes fastest per product: for large matrices.
  int best_tile;
  /// Elements of a vector.
  int lanes;
  /// sums[m][n][lanes] += a[m * lda + k] b[n * ldb + k] lane by lane over whole vectors of k, the
  /// rest of k into lane 0: both operands lie along k, as in x W^T, and nothing is packed.
  void (*dot)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
              const T* b, std::int64_t ldb, T* sums);
  /// to[step * width + row] = from[row * stride + step] for row < width, step < steps, width a
  /// multiple of the lanes.
  void (*pack_across)(std::int64_t width, std::int64_t steps, const T* from, std::int64_t stride,
                      T* to);
  /// to[i * to_step + j] += from[i * from_step + j] for i < rows, j < n.
  void (*add_rows)(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
                   std::int64_t from_step);
  /// sums[j] += sum over rows of from[i * step + j], j < n.
  void (*sum_rows)(std::int64_t rows, std::int64_t n, const T* from, std::int64_t step, T* sums);
};

struct HeavySimd {
  HeavyLoops<float> f32;
  HeavyLoops<double> f64;
};

namespace baseline { extern const HeavySimd heavy_functions; }
namespace avx2 { extern const HeavySimd heavy_functions; }
namespace avx512 { extern const HeavySimd heavy_functions; }

/// The table for this processor.
const HeavySimd& heavy_simd();

template <class T>
const HeavyLoops<T>& heavy_loops() {
  if constexpr (sizeof(T) == 8) return heavy_simd().f64;
  else return heavy_simd().f32;
}

}  // namespace weft::cpu
