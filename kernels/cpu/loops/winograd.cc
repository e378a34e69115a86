// Compiled three times, see weft_simd_library. Everything but the table is local to the object, as
// in tiles.cc.
#include "weft/kernels/cpu/loops/winograd.h"

#include <utility>

#include "weft/kernels/cpu/loops/vector_bytes.h"

namespace weft::cpu::WEFT_SIMD {
namespace {

constexpr int kLanes = kVectorBytes / sizeof(float);
typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef float Loose __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

template <int kRows, int kCols>
struct Matrix {
  double at[kRows][kCols] = {};

  constexpr Matrix<kCols, kRows> transposed() const {
    Matrix<kCols, kRows> t;
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kCols; ++j) t.at[j][i] = at[i][j];
    }
    return t;
  }
};

// The matrices of F(m, r) by Toom and Cook: polynomials of degree n - 1 are multiplied through
// their values at n - 1 points a_i and their leading coefficient, which is the value at infinity.
template <int kOutputs, int kTaps>
struct ToomCook {
  static constexpr int n = kOutputs + kTaps - 1;
  Matrix<n, n> bt;
  Matrix<n, kTaps> g;
  Matrix<kTaps, n> gt;
  Matrix<kOutputs, n> at;
  Matrix<n, kOutputs> a;

  constexpr explicit ToomCook(const double (&points)[n - 1]) {
    for (int i = 0; i < n; ++i) {
      // The product of (x - a_j) over the finite points j != i.
      double product[n + 1] = {1};
      double scale = 1;
      int degree = 0;
      for (int j = 0; j < n - 1; ++j) {
        if (j == i) continue;
        ++degree;
        for (int d = degree; d >= 0; --d) {
          product[d] = (d > 0 ? product[d - 1] : 0) - points[j] * product[d];
        }
        if (i < n - 1) scale *= points[i] - points[j];
      }
      for (int d = 0; d < n; ++d) bt.at[i][d] = product[d];
      double power = 1;
      for (int k = 0; k < (kTaps > kOutputs ? kTaps : kOutputs); ++k) {
        const bool infinite = i == n - 1;
        if (k < kTaps) g.at[i][k] = infinite ? k == kTaps - 1 : power / scale;
        if (k < kOutputs) at.at[k][i] = infinite ? k == kOutputs - 1 : power;
        if (!infinite) power *= points[i];
      }
    }
    gt = g.transposed();
    a = at.transposed();
  }
};

// Fractions with powers of 2 as denominators, above and below 1, found by trials: the errors of
// random convolutions are half of those with the usual points 0, 1, -1, 2, -2 (3x3 over 128
// channels: 1.04e-6 of the result's root mean square instead of 2.3e-6; direct sums have 0.6e-6).
constexpr ToomCook<4, 3> kThree({0, 0.625, -0.625, 1.5, -1.5});
constexpr ToomCook<2, 5> kFive({0, 0.625, -0.625, 1.5, -1.5});
constexpr ToomCook<4, 2> kTwo({0.375, -0.375, 1.25, -1.25});

template <const auto& kMatrix, int kRow, int kCol>
inline __attribute__((always_inline)) void add_term(Vector& sum, const Vector& value) {
  constexpr double factor = kMatrix.at[kRow][kCol];
  if constexpr (factor == 1) {
    sum += value;
  } else if constexpr (factor == -1) {
    sum -= value;
  } else if constexpr (factor != 0) {
    sum += float(factor) * value;
  }
}

// out[i] = sum over j of matrix[i][j] in[j].
template <const auto& kMatrix, int kStep, int kRow, int... kCol>
inline __attribute__((always_inline)) Vector row_product(const Vector* in,
                                                         std::integer_sequence<int, kCol...>) {
  Vector sum = {};
  (add_term<kMatrix, kRow, kCol>(sum, in[kCol * kStep]), ...);
  return sum;
}

template <const auto& kMatrix, int kInStep, int kOutStep, int kCols, int... kRow>
inline __attribute__((always_inline)) void multiply(const Vector* in, Vector* out,
                                                    std::integer_sequence<int, kRow...>) {
  constexpr auto cols = std::make_integer_sequence<int, kCols>();
  ((out[kRow * kOutStep] = row_product<kMatrix, kInStep, kRow>(in, cols)), ...);
}

template <int kRows, int kCols, const Matrix<kRows, kCols>& kMatrix>
void transform(std::int64_t channels, const float* const* from, const float* start,
               float* const* to) {
  constexpr auto rows = std::make_integer_sequence<int, kRows>();
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    Vector half[kRows][kCols];  // M from
    for (int x = 0; x < kCols; ++x) {
      Vector column[kCols];
#pragma GCC unroll 8
      for (int y = 0; y < kCols; ++y) {
        column[y] = *reinterpret_cast<const Loose*>(from[y * kCols + x] + c);
      }
      multiply<kMatrix, 1, kCols, kCols>(column, &half[0][x], rows);
    }
    const Vector first = start ? Vector(*reinterpret_cast<const Loose*>(start + c)) : Vector{};
    for (int y = 0; y < kRows; ++y) {
      Vector out[kRows];
      multiply<kMatrix, 1, 1, kCols>(half[y], out, rows);
#pragma GCC unroll 8
      for (int x = 0; x < kRows; ++x) {
        *reinterpret_cast<Loose*>(to[y * kRows + x] + c) = out[x] + first;
      }
    }
  }
}

template <int kOutputs, int kTaps, const ToomCook<kOutputs, kTaps>& kForm>
constexpr WinogradForm form() {
  constexpr int n = kOutputs + kTaps - 1;
  static_assert(n <= kWinogradSide);
  return {n,
          kOutputs,
          kTaps,
          transform<n, n, kForm.bt>,
          transform<n, kTaps, kForm.g>,
          transform<kOutputs, n, kForm.at>,
          transform<n, kOutputs, kForm.a>,
          transform<kTaps, n, kForm.gt>};
}

}  // namespace

constinit const WinogradLoops winograd_loops = {
    {form<4, 3, kThree>(), form<2, 5, kFive>(), form<4, 2, kTwo>()}};

}  // namespace weft::cpu::WEFT_SIMD
