// Compiled three times, see weft_simd_library. Everything except the table is local to the object:
// an inline function compiled for AVX-512 must not be linked for all levels.
#include "weft/kernels/cpu/loops/tiles.h"

#include <utility>

#include "weft/kernels/cpu/loops/vector_bytes.h"

namespace weft::cpu::WEFT_SIMD {
namespace {

template <class T, int kBytes = kVectorBytes>
struct Simd {
  static constexpr int kLanes = kBytes / sizeof(T);
  typedef T Vector __attribute__((vector_size(kBytes)));
  // For loads and stores at any address.
  typedef T Loose __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
};

// kRows x kVectors sums stay in registers, with kVectors vectors of b and one broadcast of a.
template <class T, int kRows, int kVectors, int kBytes = kVectorBytes>
void tile(const TileArgs<T>& t) {
  using Vector = typename Simd<T, kBytes>::Vector;
  using Loose = typename Simd<T, kBytes>::Loose;
  constexpr int kLanes = Simd<T, kBytes>::kLanes;
  static_assert(kRows <= kMostTileRows && kRows * kVectors * kLanes <= kMostTileElements);
  const T* rows[kRows];
  // Beyond the edge the last row is computed again, and the result dropped.
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) rows[i] = t.a + t.a_rows[i < t.rows ? i : t.rows - 1];
  Vector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    const Vector first =
        t.start ? Vector(*reinterpret_cast<const Loose*>(t.start + j * kLanes)) : Vector{};
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sum[i][j] = first;
  }
  const std::int64_t a_step = t.a_step, b_step = t.b_step, steps = t.steps;
  for (std::int64_t g = 0; g < t.segments; ++g) {
    std::int64_t at = t.a_segments[g];
    const T* b = t.b + t.b_segments[g];
    for (std::int64_t p = 0; p < steps; ++p) {
      Vector bv[kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) bv[j] = *reinterpret_cast<const Loose*>(b + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) sum[i][j] += rows[i][at] * bv[j];
      }
      at += a_step;
      b += b_step;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    if (i >= t.rows) break;
    T* const c = t.c + i * t.ldc;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      Loose* to = reinterpret_cast<Loose*>(c + j * kLanes);
      *to = t.accumulate ? *to + sum[i][j] : Vector(sum[i][j]);
    }
  }
}

// One stage of transposing a square of vectors: a and b, which are kHalf rows apart, exchange their
// off-diagonal pieces of kHalf lanes.
template <int kHalf, class V, int... kLane>
inline __attribute__((always_inline)) void swap_pieces(V& a, V& b,
                                                       std::integer_sequence<int, kLane...>) {
  constexpr int n = sizeof...(kLane);
  const V x = a, y = b;
  a = __builtin_shufflevector(x, y, ((kLane & kHalf) == 0 ? kLane : n + kLane - kHalf)...);
  b = __builtin_shufflevector(x, y, ((kLane & kHalf) == 0 ? kLane + kHalf : n + kLane)...);
}

template <int kHalf, int kLanes, class V>
inline __attribute__((always_inline)) void transpose_square(V* v) {
  if constexpr (kHalf > 0) {
#pragma GCC unroll 16
    for (int q = 0; q < kLanes / 2; ++q) {
      const int i = q / kHalf * 2 * kHalf + q % kHalf;
      swap_pieces<kHalf>(v[i], v[i + kHalf], std::make_integer_sequence<int, kLanes>());
    }
    transpose_square<kHalf / 2, kLanes>(v);
  }
}

template <class T, int kBytes>
void transpose_squares(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step,
                       const T* from, std::int64_t from_step) {
  using Vector = typename Simd<T, kBytes>::Vector;
  using Loose = typename Simd<T, kBytes>::Loose;
  constexpr int kLanes = Simd<T, kBytes>::kLanes;
  const std::int64_t whole = rows - rows % kLanes;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (std::int64_t row = 0; row < whole; row += kLanes) {
      Vector v[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        v[i] = *reinterpret_cast<const Loose*>(from + (row + i) * from_step + j);
      }
      transpose_square<kLanes / 2, kLanes>(v);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        *reinterpret_cast<Loose*>(to + (j + i) * to_step + row) = v[i];
      }
    }
    for (std::int64_t row = whole; row < rows; ++row) {
      for (int i = 0; i < kLanes; ++i) to[(j + i) * to_step + row] = from[row * from_step + j + i];
    }
  }
  for (; j < n; ++j) {
    for (std::int64_t row = 0; row < rows; ++row) to[j * to_step + row] = from[row * from_step + j];
  }
}

template <class T>
void transpose(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
               std::int64_t from_step) {
  constexpr int kLanes = Simd<T>::kLanes;
  // Squares of half vectors if whole vectors would leave rows over or n is too small.
  if (rows % kLanes == 0 && n >= kLanes) {
    transpose_squares<T, kVectorBytes>(rows, n, to, to_step, from, from_step);
  } else {
    transpose_squares<T, kVectorBytes / 2>(rows, n, to, to_step, from, from_step);
  }
}

// 24 sums for 32 registers. Narrower machines spill some, and are still faster than scalar code.
constexpr int kDotRows = 8, kDotCols = 3;

template <class T>
void dot(std::int64_t rows, std::int64_t cols, std::int64_t n, const T* a, std::int64_t a_step,
         const T* b, std::int64_t b_step, T* sums) {
  using Vector = typename Simd<T>::Vector;
  using Loose = typename Simd<T>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  const T* as[kDotRows];
  const T* bs[kDotCols];
  // Beyond the edge the last row or column is computed again, and the result dropped.
  for (int i = 0; i < kDotRows; ++i) as[i] = a + (i < rows ? i : rows - 1) * a_step;
  for (int j = 0; j < kDotCols; ++j) bs[j] = b + (j < cols ? j : cols - 1) * b_step;
  Vector sum[kDotRows][kDotCols] = {};
  std::int64_t p = 0;
  for (; p + kLanes <= n; p += kLanes) {
    Vector bv[kDotCols];
#pragma GCC unroll 3
    for (int j = 0; j < kDotCols; ++j) bv[j] = *reinterpret_cast<const Loose*>(bs[j] + p);
#pragma GCC unroll 8
    for (int i = 0; i < kDotRows; ++i) {
      const Vector av = *reinterpret_cast<const Loose*>(as[i] + p);
#pragma GCC unroll 3
      for (int j = 0; j < kDotCols; ++j) sum[i][j] += av * bv[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kDotRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kDotCols; ++j) {
      if (i >= rows || j >= cols) continue;
      T* const to = sums + (i * cols + j) * kLanes;
      *reinterpret_cast<Loose*>(to) += sum[i][j];
      for (std::int64_t q = p; q < n; ++q) to[0] += as[i][q] * bs[j][q];
    }
  }
}

// y[0, n) = or += x[0, n), in whole vectors first.
template <bool kAdd, class T>
inline __attribute__((always_inline)) void take_row(std::int64_t n, T* y, const T* x) {
  using Loose = typename Simd<T>::Loose;
  using Half = typename Simd<T, kVectorBytes / 2>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    Loose& to = *reinterpret_cast<Loose*>(y + j);
    const Loose from = *reinterpret_cast<const Loose*>(x + j);
    to = kAdd ? to + from : from;
  }
  if (j + kLanes / 2 <= n) {
    Half& to = *reinterpret_cast<Half*>(y + j);
    const Half from = *reinterpret_cast<const Half*>(x + j);
    to = kAdd ? to + from : from;
    j += kLanes / 2;
  }
  if (!kAdd && j < n && n >= kLanes / 2) {  // copies some elements again
    j = n - kLanes / 2;
    *reinterpret_cast<Half*>(y + j) = *reinterpret_cast<const Half*>(x + j);
    return;
  }
  for (; j < n; ++j) y[j] = kAdd ? y[j] + x[j] : x[j];
}

template <class T>
void copy_rows(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
               std::int64_t from_step) {
  for (std::int64_t i = 0; i < rows; ++i)
    take_row<false>(n, to + i * to_step, from + i * from_step);
}

template <class T, int kBytes>
void add_vectors(std::int64_t rows, T* to, std::int64_t to_step, const T* from,
                 std::int64_t from_step) {
  using Loose = typename Simd<T, kBytes>::Loose;
  for (std::int64_t i = 0; i < rows; ++i) {
    *reinterpret_cast<Loose*>(to) += *reinterpret_cast<const Loose*>(from);
    to += to_step;
    from += from_step;
  }
}

template <class T>
void add_rows(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
              std::int64_t from_step) {
  constexpr int kLanes = Simd<T>::kLanes;
  // One vector per row if there are as many channels as lanes.
  if (n == kLanes) return add_vectors<T, kVectorBytes>(rows, to, to_step, from, from_step);
  if (n == kLanes / 2) return add_vectors<T, kVectorBytes / 2>(rows, to, to_step, from, from_step);
  for (std::int64_t i = 0; i < rows; ++i) take_row<true>(n, to + i * to_step, from + i * from_step);
}

template <class T, int kVectors>
inline __attribute__((always_inline)) void weigh_block(T* to, T start, std::int64_t taps,
                                                       const T* w, const T* from,
                                                       const std::int64_t* at) {
  using Loose = typename Simd<T>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  typename Simd<T>::Vector sum[kVectors];
#pragma GCC unroll 8
  for (int k = 0; k < kVectors; ++k) sum[k] = typename Simd<T>::Vector{} + start;
  for (std::int64_t t = 0; t < taps; ++t) {
    const T* const x = from + at[t];
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      sum[k] += w[t] * *reinterpret_cast<const Loose*>(x + k * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kVectors; ++k) *reinterpret_cast<Loose*>(to + k * kLanes) = sum[k];
}

template <class T>
void weigh(std::int64_t n, T* to, T start, std::int64_t taps, const T* w, const T* from,
           const std::int64_t* at) {
  constexpr int kLanes = Simd<T>::kLanes, kVectors = 8;
  std::int64_t j = 0;
  for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) {
    weigh_block<T, kVectors>(to + j, start, taps, w, from + j, at);
  }
  for (; j < n; j += kLanes) weigh_block<T, 1>(to + j, start, taps, w, from + j, at);
}

// kRows rows of kVectors vectors, the last of which is `last` elements from the first.
template <class T, int kRows, int kVectors>
void weigh_rows_block(std::int64_t last, T* to, std::int64_t to_step, T start, std::int64_t rows,
                      std::int64_t taps, const T* w, const T* from, std::int64_t from_step,
                      const std::int64_t* at) {
  using Loose = typename Simd<T>::Loose;
  using Vector = typename Simd<T>::Vector;
  const auto offset = [&](int k) { return k < kVectors - 1 ? k * Simd<T>::kLanes : last; };
  Vector sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) sum[r][k] = Vector{} + start;
  }
  // What row i of `from` adds to rows [kFirst, kLast) of the result: to row r by row i - r of w.
  const auto add = [&]<int kFirst, int kLast>(std::int64_t i) __attribute__((always_inline)) {
    for (std::int64_t s = 0; s < taps; ++s) {
      const T* const x = from + i * from_step + at[s];
      Vector v[kVectors];
#pragma GCC unroll 4
      for (int k = 0; k < kVectors; ++k) v[k] = *reinterpret_cast<const Loose*>(x + offset(k));
#pragma GCC unroll 4
      for (int r = kFirst; r < kLast; ++r) {
        const T by = w[(i - r) * taps + s];
#pragma GCC unroll 4
        for (int k = 0; k < kVectors; ++k) sum[r][k] += by * v[k];
      }
    }
  };
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) __attribute__((always_inline)) {
    (add.template operator()<0, kRow + 1>(kRow), ...);
    for (std::int64_t i = kRows - 1; i < rows; ++i) add.template operator()<0, kRows>(i);
    (add.template operator()<kRow + 1, kRows>(rows + kRow), ...);
  }(std::make_integer_sequence<int, kRows - 1>());
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      *reinterpret_cast<Loose*>(to + r * to_step + offset(k)) = sum[r][k];
    }
  }
}

template <class T, int kRows>
void weigh_some_rows(std::int64_t n, T* to, std::int64_t to_step, T start, std::int64_t rows,
                     std::int64_t taps, const T* w, const T* from, std::int64_t from_step,
                     const std::int64_t* at) {
  constexpr int kLanes = Simd<T>::kLanes;
  const std::int64_t vectors = (n + kLanes - 1) / kLanes;
  std::int64_t k = 0;
  const auto run = [&]<int kVectors>() {
    const std::int64_t j = k * kLanes,
                       last = (k += kVectors) < vectors ? (kVectors - 1) * kLanes : n - kLanes - j;
    weigh_rows_block<T, kRows, kVectors>(last, to + j, to_step, start, rows, taps, w, from + j,
                                         from_step, at);
  };
  constexpr int kMost = kRows < 4 || kVectorBytes == 64 ? 4 : 2;  // for 32 registers, or 16
  while (k + kMost <= vectors) run.template operator()<kMost>();
  if constexpr (kMost == 4) {
    if (k + 2 <= vectors) run.template operator()<2>();
  }
  if (k < vectors) run.template operator()<1>();
}

template <class T>
std::int64_t weigh_rows(std::int64_t count, std::int64_t n, T* to, std::int64_t to_step, T start,
                        std::int64_t rows, std::int64_t taps, const T* w, const T* from,
                        std::int64_t from_step, const std::int64_t* at) {
  if (count > rows) count = rows;
  if (count >= 4) {
    weigh_some_rows<T, 4>(n, to, to_step, start, rows, taps, w, from, from_step, at);
    return 4;
  }
  if (count >= 2) {
    weigh_some_rows<T, 2>(n, to, to_step, start, rows, taps, w, from, from_step, at);
    return 2;
  }
  weigh_some_rows<T, 1>(n, to, to_step, start, rows, taps, w, from, from_step, at);
  return 1;
}

// So many sums, with a vector of g and one of `from`, fit into 16 registers.
constexpr int kMostTaps = 12;

template <class T, int kTaps = kMostTaps>
inline void correlate_block(std::int64_t n, const T* g, std::int64_t taps, const T* from,
                            const std::int64_t* at, T* sums) {
  if constexpr (kTaps > 1) {
    if (taps < kTaps) return correlate_block<T, kTaps - 1>(n, g, taps, from, at, sums);
  }
  using Loose = typename Simd<T>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  typename Simd<T>::Vector sum[kTaps] = {};
  for (std::int64_t j = 0; j < n; j += kLanes) {
    const typename Simd<T>::Vector v = *reinterpret_cast<const Loose*>(g + j);
#pragma GCC unroll 12
    for (int t = 0; t < kTaps; ++t) sum[t] += v * *reinterpret_cast<const Loose*>(from + at[t] + j);
  }
#pragma GCC unroll 12
  for (int t = 0; t < kTaps; ++t) *reinterpret_cast<Loose*>(sums + t * kLanes) += sum[t];
}

template <class T>
void correlate(std::int64_t n, const T* g, std::int64_t taps, const T* from, const std::int64_t* at,
               T* sums) {
  // Blocks of equal size: few sums at a time would wait for each other's additions.
  const std::int64_t blocks = (taps + kMostTaps - 1) / kMostTaps;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t t = taps * b / blocks, end = taps * (b + 1) / blocks;
    correlate_block(n, g, end - t, from, at + t, sums + t * Simd<T>::kLanes);
  }
}

template <class T>
void sum_rows(std::int64_t rows, std::int64_t n, const T* from, std::int64_t step, T* sums) {
  using Vector = typename Simd<T>::Vector;
  using Loose = typename Simd<T>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    Vector total = {};
    for (std::int64_t i = 0; i < rows; ++i) {
      total += *reinterpret_cast<const Loose*>(from + i * step + j);
    }
    *reinterpret_cast<Loose*>(sums + j) += total;
  }
  for (std::int64_t i = 0; i < rows && j < n; ++i)
    take_row<true>(n - j, sums + j, from + i * step + j);
}

template <class T>
constexpr HeavyLoops<T> loops() {
  constexpr int kLanes = Simd<T>::kLanes;
  return {
#if defined(__AVX512F__)
      // For 32 registers. The half vector is for 8 channels of f32, a frequent small number.
      {{8, kLanes / 2, tile<T, 8, 1, kVectorBytes / 2>},
       {8, kLanes, tile<T, 8, 1>},
       {8, 2 * kLanes, tile<T, 8, 2>},
       {8, 3 * kLanes, tile<T, 8, 3>},
       {6, 4 * kLanes, tile<T, 6, 4>},
       {5, 5 * kLanes, tile<T, 5, 5>}},
      3,
#elif defined(__AVX2__)
      // For 16 registers.
      {{8, kLanes, tile<T, 8, 1>}, {6, 2 * kLanes, tile<T, 6, 2>}, {4, 3 * kLanes, tile<T, 4, 3>}},
      1,
#else
      {{8, kLanes, tile<T, 8, 1>}, {5, 2 * kLanes, tile<T, 5, 2>}},
      1,
#endif
      kLanes,
      transpose<T>,
      copy_rows<T>,
      add_rows<T>,
      dot<T>,
      weigh<T>,
      weigh_rows<T>,
      correlate<T>,
      sum_rows<T>,
  };
}

}  // namespace

constinit const TileLoops tile_loops = {loops<float>(), loops<double>()};

}  // namespace weft::cpu::WEFT_SIMD
