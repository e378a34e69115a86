// Sums, maxima and minima of the floating types. Every f32 partial sum has at most some 20 terms
// per lane before it goes on in f64, so the error does not grow with the length at all.
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/lanes.h"
#include "weft/kernels/cpu/simd.h"

namespace weft::cpu {
namespace {

template <class Op, class T>
double fold(const typename Lanes<T>::Vector& v) {
  typename Lanes<T>::Scalar lane[Lanes<T>::kCount];
  std::memcpy(lane, &v, sizeof v);
  double total = lane[0];
  for (int i = 1; i < Lanes<T>::kCount; ++i) Op::combine(total, static_cast<double>(lane[i]));
  return total;
}

/// Partial sums in f32 may leave its range where the total does not; then the sum is made again in
/// f64. Also where numbers are infinite or NaN, which gives the same once more.
template <class T, class Op>
constexpr bool kMayOverflow = std::is_same_v<Op, SumOp> && !std::is_same_v<T, double>;

bool is_finite(double x) { return x - x == 0; }

template <class T, class Op>
void reduce_run(std::int64_t n, const void* data, void* acc) {
  using L = Lanes<T>;
  using Vector = typename L::Vector;
  constexpr std::int64_t kStep = kUnroll * L::kCount;
  constexpr std::int64_t kBlock = 16 * kStep;
  const T* x = static_cast<const T*>(data);
  double total = *static_cast<double*>(acc);
  std::int64_t i = 0;
  while (n - i >= kStep) {
    const std::int64_t end = i + std::min(kBlock, (n - i) / kStep * kStep);
    Vector part[kUnroll];
    for (int u = 0; u < kUnroll; ++u) L::load(x + i + u * L::kCount, part[u]);
    for (i += kStep; i < end; i += kStep) {
      for (int u = 0; u < kUnroll; ++u) {
        Vector v;
        L::load(x + i + u * L::kCount, v);
        Op::combine(part[u], v);
      }
    }
    for (int half = kUnroll / 2; half > 0; half /= 2) {
      for (int u = 0; u < half; ++u) Op::combine(part[u], part[u + half]);
    }
    Op::combine(total, fold<Op, T>(part[0]));
  }
  for (; i < n; ++i) Op::combine(total, static_cast<double>(load(x[i])));
  if constexpr (kMayOverflow<T, Op>) {
    if (!is_finite(total)) {
      total = *static_cast<double*>(acc);
      for (i = 0; i < n; ++i) total += static_cast<double>(load(x[i]));
    }
  }
  *static_cast<double*>(acc) = total;
}

/// kVectors vectors of columns, side by side to hide the latency of an addition.
template <class T, class Op, int kVectors>
void reduce_strip(std::int64_t rows, std::int64_t row_step, const T* x, double* acc) {
  using L = Lanes<T>;
  using Vector = typename L::Vector;
  constexpr std::int64_t kRows = 16;  // terms of a partial sum
  double before[kVectors * L::kCount];
  if constexpr (kMayOverflow<T, Op>) std::memcpy(before, acc, sizeof before);
  for (std::int64_t r = 0; r < rows; r += kRows) {
    const std::int64_t end = std::min(r + kRows, rows);
    Vector part[kVectors];
    for (int v = 0; v < kVectors; ++v) L::load(x + r * row_step + v * L::kCount, part[v]);
    for (std::int64_t i = r + 1; i < end; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        Vector next;
        L::load(x + i * row_step + v * L::kCount, next);
        Op::combine(part[v], next);
      }
    }
    typename L::Scalar lane[kVectors * L::kCount];
    std::memcpy(lane, part, sizeof part);
    for (int k = 0; k < kVectors * L::kCount; ++k) {
      Op::combine(acc[k], static_cast<double>(lane[k]));
    }
  }
  if constexpr (kMayOverflow<T, Op>) {
    for (int k = 0; k < kVectors * L::kCount; ++k) {
      if (is_finite(acc[k])) continue;
      acc[k] = before[k];
      for (std::int64_t r = 0; r < rows; ++r) {
        acc[k] += static_cast<double>(load(x[r * row_step + k]));
      }
    }
  }
}

template <class T, class Op>
void reduce_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* data,
                    void* accumulators) {
  using L = Lanes<T>;
  const T* x = static_cast<const T*>(data);
  double* acc = static_cast<double*>(accumulators);

  // Narrow rows that lie densely: 16 of them look like one wide row.
  constexpr std::int64_t kNarrow = 64;
  if (cols < kNarrow && row_step == cols && rows >= 2 * 16) {
    double wide[16 * kNarrow];
    const std::int64_t width = 16 * cols;
    for (std::int64_t i = 0; i < width; ++i) wide[i] = Op::template identity<double>();
    const std::int64_t wide_rows = rows / 16;
    reduce_columns<T, Op>(wide_rows, width, width, x, wide);
    for (std::int64_t i = 0, c = 0; i < width; ++i) {
      Op::combine(acc[c], wide[i]);
      if (++c == cols) c = 0;
    }
    x += wide_rows * width;
    rows -= wide_rows * 16;
  }

  std::int64_t c = 0;
  for (; c + kUnroll * L::kCount <= cols; c += kUnroll * L::kCount) {
    reduce_strip<T, Op, kUnroll>(rows, row_step, x + c, acc + c);
  }
  for (; c + L::kCount <= cols; c += L::kCount) {
    reduce_strip<T, Op, 1>(rows, row_step, x + c, acc + c);
  }
  for (std::int64_t r = 0; r < rows && c < cols; ++r) {
    for (std::int64_t k = c; k < cols; ++k) {
      Op::combine(acc[k], static_cast<double>(load(x[r * row_step + k])));
    }
  }
}

template <class T>
void sum_of_squares_run(std::int64_t n, const void* data, void* acc) {
  constexpr int kLanes = 32;  // enough independent sums to hide the latency of an addition
  const T* x = static_cast<const T*>(data);
  double part[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const double v = static_cast<double>(load(x[i + k]));
      part[k] += v * v;
    }
  }
  double total = *static_cast<double*>(acc);
  for (int k = 0; k < kLanes; ++k) total += part[k];
  for (; i < n; ++i) {
    const double v = static_cast<double>(load(x[i]));
    total += v * v;
  }
  *static_cast<double*>(acc) = total;
}

template <class T>
void scaled_deviation_row(std::int64_t n, char* const* data, const void*) {
  T* y = reinterpret_cast<T*>(data[0]);
  const T* x = reinterpret_cast<const T*>(data[1]);
  const double* center = reinterpret_cast<const double*>(data[2]);
  const double* factor = reinterpret_cast<const double*>(data[3]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = store<T>((static_cast<double>(load(x[i])) - center[i]) * factor[i]);
  }
}

template <class T>
constexpr void fill(ReduceRows& rows) {
  rows.sum = {reduce_run<T, SumOp>, reduce_columns<T, SumOp>};
  rows.max = {reduce_run<T, MaxOp>, reduce_columns<T, MaxOp>};
  rows.min = {reduce_run<T, MinOp>, reduce_columns<T, MinOp>};
  rows.sum_of_squares = sum_of_squares_run<T>;
  rows.scaled_deviation = scaled_deviation_row<T>;
}

constexpr SimdKernels functions() {
  SimdKernels table;
  fill<float>(table.f32.reduce);
  fill<double>(table.f64.reduce);
  fill<bf16>(table.bf16.reduce);
  return table;
}

}  // namespace

namespace WEFT_SIMD {

constinit const SimdKernels reduce_functions = functions();

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
