// Compiled three times, see weft_simd_library. Everything but the table is local to the object: an
// inline function compiled for AVX-512 must not end up in a program that runs without it.
#include "weft/kernels/cpu/simd_heavy.h"

#include <utility>

namespace weft::cpu::WEFT_SIMD {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int kBytes = kVectorBytes>
struct Simd {
  static constexpr int kLanes = kBytes / sizeof(T);
  typedef T Vector __attribute__((vector_size(kBytes)));
  // For loads and stores at any address.
  typedef T Loose __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
};

// kRows x kVectors sums stay in registers, beside kVectors of b and one broadcast of a.
template <class T, int kRows, int kVectors, int kBytes = kVectorBytes>
void tile(const TileArgs<T>& t) {
  using Vector = typename Simd<T, kBytes>::Vector;
  using Loose = typename Simd<T, kBytes>::Loose;
  constexpr int kLanes = Simd<T, kBytes>::kLanes;
  static_assert(kRows <= kMostTileRows);
  const T* rows[kRows];
  // Beyond the edge the last row is computed again and dropped.
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) rows[i] = t.a + t.a_rows[i < t.rows ? i : t.rows - 1];
  Vector sum[kRows][kVectors] = {};
  const T* b = t.b;
  const std::int64_t a_step = t.a_step, b_step = t.b_step, steps = t.steps;
  for (std::int64_t g = 0; g < t.segments; ++g) {
    std::int64_t at = t.a_segments[g];
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

// 4 x 4 dot products: 16 sums, 8 loads per step.
constexpr int kDot = 4;

template <class T>
void dot_tile(std::int64_t k, const T* const* a, const T* const* b, T* const* out) {
  using Vector = typename Simd<T>::Vector;
  using Loose = typename Simd<T>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  Vector sum[kDot][kDot];
#pragma GCC unroll 4
  for (int i = 0; i < kDot; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kDot; ++j) {
      sum[i][j] = *reinterpret_cast<const Loose*>(out[i * kDot + j]);
    }
  }
  std::int64_t p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    Vector bv[kDot];
#pragma GCC unroll 4
    for (int j = 0; j < kDot; ++j) bv[j] = *reinterpret_cast<const Loose*>(b[j] + p);
#pragma GCC unroll 4
    for (int i = 0; i < kDot; ++i) {
      const Vector av = *reinterpret_cast<const Loose*>(a[i] + p);
#pragma GCC unroll 4
      for (int j = 0; j < kDot; ++j) sum[i][j] += av * bv[j];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kDot; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kDot; ++j) {
      *reinterpret_cast<Loose*>(out[i * kDot + j]) = sum[i][j];
    }
  }
  for (; p < k; ++p) {
    for (int i = 0; i < kDot; ++i) {
      for (int j = 0; j < kDot; ++j) out[i * kDot + j][0] += a[i][p] * b[j][p];
    }
  }
}

template <class T>
void dot(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
         std::int64_t ldb, T* sums) {
  constexpr int kLanes = Simd<T>::kLanes;
  // 4 rows of b stay in the first-level cache while those of a pass by.
  constexpr std::int64_t kBlock = 1024 / std::int64_t{sizeof(T)};
  T dropped[kDot * kDot][kLanes] = {};
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlock) {
    const std::int64_t kc = k - k0 < kBlock ? k - k0 : kBlock;
    for (std::int64_t j0 = 0; j0 < n; j0 += kDot) {
      const T* b_rows[kDot];
      for (int j = 0; j < kDot; ++j) b_rows[j] = b + (j0 + j < n ? j0 + j : n - 1) * ldb + k0;
      for (std::int64_t i0 = 0; i0 < m; i0 += kDot) {
        const T* a_rows[kDot];
        T* out[kDot * kDot];
        for (int i = 0; i < kDot; ++i) {
          a_rows[i] = a + (i0 + i < m ? i0 + i : m - 1) * lda + k0;
          for (int j = 0; j < kDot; ++j) {
            const bool inside = i0 + i < m && j0 + j < n;
            out[i * kDot + j] =
                inside ? sums + ((i0 + i) * n + j0 + j) * kLanes : dropped[i * kDot + j];
          }
        }
        dot_tile(kc, a_rows, b_rows, out);
      }
    }
  }
}

// One stage of transposing a square of vectors: a and b, kHalf rows apart, swap their off-diagonal
// pieces of kHalf lanes.
template <int kHalf, class V, int... kLane>
inline __attribute__((always_inline)) void swap_pieces(V& a, V& b,
                                                       std::integer_sequence<int, kLane...>) {
  constexpr int n = sizeof...(kLane);
  const V x = a, y = b;
  a = __builtin_shufflevector(x, y, ((kLane & kHalf) == 0 ? kLane : n + kLane - kHalf)...);
  b = __builtin_shufflevector(x, y, ((kLane & kHalf) == 0 ? kLane + kHalf : n + kLane)...);
}

template <int kHalf, int kLanes, class V>
inline __attribute__((always_inline)) void transpose(V* v) {
  if constexpr (kHalf > 0) {
#pragma GCC unroll 16
    for (int q = 0; q < kLanes / 2; ++q) {
      const int i = q / kHalf * 2 * kHalf + q % kHalf;
      swap_pieces<kHalf>(v[i], v[i + kHalf], std::make_integer_sequence<int, kLanes>());
    }
    transpose<kHalf / 2, kLanes>(v);
  }
}

template <class T>
void pack_across(std::int64_t width, std::int64_t steps, const T* from, std::int64_t stride, T* to) {
  using Vector = typename Simd<T>::Vector;
  using Loose = typename Simd<T>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  std::int64_t p = 0;
  for (; p + kLanes <= steps; p += kLanes) {
    for (std::int64_t row = 0; row < width; row += kLanes) {
      Vector v[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        v[i] = *reinterpret_cast<const Loose*>(from + (row + i) * stride + p);
      }
      transpose<kLanes / 2, kLanes>(v);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        *reinterpret_cast<Loose*>(to + (p + i) * width + row) = v[i];
      }
    }
  }
  for (; p < steps; ++p) {
    for (std::int64_t row = 0; row < width; ++row) to[p * width + row] = from[row * stride + p];
  }
}

// y[0, n) += x[0, n), whole vectors first.
template <class T>
inline __attribute__((always_inline)) void add_row(std::int64_t n, T* y, const T* x) {
  using Loose = typename Simd<T>::Loose;
  using Half = typename Simd<T, kVectorBytes / 2>::Loose;
  constexpr int kLanes = Simd<T>::kLanes;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    *reinterpret_cast<Loose*>(y + j) += *reinterpret_cast<const Loose*>(x + j);
  }
  if (j + kLanes / 2 <= n) {
    *reinterpret_cast<Half*>(y + j) += *reinterpret_cast<const Half*>(x + j);
    j += kLanes / 2;
  }
  for (; j < n; ++j) y[j] += x[j];
}

template <class T>
void add_rows(std::int64_t rows, std::int64_t n, T* to, std::int64_t to_step, const T* from,
              std::int64_t from_step) {
  for (std::int64_t i = 0; i < rows; ++i) add_row(n, to + i * to_step, from + i * from_step);
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
  for (std::int64_t i = 0; i < rows && j < n; ++i) add_row(n - j, sums + j, from + i * step + j);
}

template <class T>
constexpr HeavyLoops<T> loops() {
  constexpr int kLanes = Simd<T>::kLanes;
  return {
#if defined(__AVX512F__)
      // 32 registers. The half vector serves 8 channels of f32, the commonest small number.
      {{8, kLanes / 2, tile<T, 8, 1, kVectorBytes / 2>},
       {8, kLanes, tile<T, 8, 1>},
       {8, 2 * kLanes, tile<T, 8, 2>},
       {8, 3 * kLanes, tile<T, 8, 3>},
       {6, 4 * kLanes, tile<T, 6, 4>},
       {5, 5 * kLanes, tile<T, 5, 5>}},
      3,
#elif defined(__AVX2__)
      // 16 registers.
      {{8, kLanes, tile<T, 8, 1>}, {6, 2 * kLanes, tile<T, 6, 2>}, {4, 3 * kLanes, tile<T, 4, 3>}},
      1,
#else
      {{8, kLanes, tile<T, 8, 1>}, {5, 2 * kLanes, tile<T, 5, 2>}},
      1,
#endif
      kLanes, dot<T>, pack_across<T>, add_rows<T>, sum_rows<T>,
  };
}

}  // namespace

const HeavySimd heavy_functions = {loops<float>(), loops<double>()};

}  // namespace weft::cpu::WEFT_SIMD
