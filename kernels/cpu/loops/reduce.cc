// Sums, products, maxima and minima. A term of an f32 partial sum takes part in at most about 20
// additions, then the partial sum is added in f64: the error does not grow with the length.
#include <algorithm>
#include <utility>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/lanes.h"
#include "weft/kernels/cpu/loops/reduce.h"

namespace weft::cpu {
namespace {

/// Combines the lanes of a vector, halves with halves.
template <class Op, class V>
auto fold(const V& v) {
  constexpr int kHalf = sizeof(V) / sizeof(v[0]) / 2;
  if constexpr (kHalf == 1) {
    auto total = v[0];
    Op::combine(total, +v[1]);
    return total;
  } else {
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      auto low = __builtin_shufflevector(v, v, i...);
      Op::combine(low, __builtin_shufflevector(v, v, (i + kHalf)...));
      return fold<Op>(low);
    }(std::make_integer_sequence<int, kHalf>());
  }
}

/// Partial sums in f32 may overflow although the total does not: then the sum is computed again in
/// f64. The same happens for infinite or NaN elements, with the same result.
template <class T, class Op>
constexpr bool kMayOverflow = std::is_same_v<Op, SumOp> && !std::is_same_v<T, double>;

bool is_finite(double x) { return x - x == 0; }

template <class T, class Op>
double reduce_run(std::int64_t n, const T* x, const double before) {
  using L = Lanes<T>;
  using Vector = typename L::Vector;
  constexpr std::int64_t kStep = kUnroll * L::kCount;
  constexpr std::int64_t kBlock = 16 * kStep;
  double total = before;
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
    Op::combine(total, static_cast<double>(fold<Op>(part[0])));
  }
  if (n - i >= L::kCount) {
    Vector part, v;
    L::load(x + i, part);
    for (i += L::kCount; i + L::kCount <= n; i += L::kCount) {
      L::load(x + i, v);
      Op::combine(part, v);
    }
    Op::combine(total, static_cast<double>(fold<Op>(part)));
  }
  for (; i < n; ++i) Op::combine(total, static_cast<double>(load(x[i])));
  if constexpr (kMayOverflow<T, Op>) {
    if (!is_finite(total)) {
      total = before;
      for (i = 0; i < n; ++i) total += static_cast<double>(load(x[i]));
    }
  }
  return total;
}

template <class T, class Op>
void reduce_runs(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
                 void* accumulators) {
  const T* x = static_cast<const T*>(data);
  double* acc = static_cast<double*>(accumulators);
  for (std::int64_t r = 0; r < count; ++r) acc[r] = reduce_run<T, Op>(n, x + r * step, acc[r]);
}

/// kVectors vectors of columns at a time, which hides the latency of an addition.
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

/// The columns in whole vectors, in strips of kVectors and, of what is left, of half as many.
/// Returns their number.
template <class T, class Op, int kVectors>
std::int64_t reduce_strips(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const T* x,
                           double* acc) {
  constexpr std::int64_t kStrip = kVectors * Lanes<T>::kCount;
  std::int64_t c = 0;
  for (; c + kStrip <= cols; c += kStrip) {
    reduce_strip<T, Op, kVectors>(rows, row_step, x + c, acc + c);
  }
  if constexpr (kVectors > 1) {
    c += reduce_strips<T, Op, kVectors / 2>(rows, row_step, cols - c, x + c, acc + c);
  }
  return c;
}

template <class T, class Op>
void reduce_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* data,
                    void* accumulators) {
  const T* x = static_cast<const T*>(data);
  double* acc = static_cast<double*>(accumulators);

  // Of narrow rows without gaps, 16 are treated as one wide row.
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

  std::int64_t c = reduce_strips<T, Op, 8>(rows, row_step, cols, x, acc);
  for (std::int64_t r = 0; r < rows && c < cols; ++r) {
    for (std::int64_t k = c; k < cols; ++k) {
      Op::combine(acc[k], static_cast<double>(load(x[r * row_step + k])));
    }
  }
}

// Products and squares of f32 would overflow where f64 does not, so that their lanes are f64.
struct ProdOp {
  static constexpr double kIdentity = 1;
  template <class V>
  static void add(V& acc, const V& v) {
    acc *= v;
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a *= b;
  }
};
struct SquaresOp {
  static constexpr double kIdentity = 0;
  template <class V>
  static void add(V& acc, const V& v) {
    acc += v * v;
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a += b;
  }
};
struct WrappingSumOp {
  static constexpr std::uint64_t kIdentity = 0;
  static void add(std::uint64_t& acc, std::uint64_t v) { acc += v; }
  static void combine(std::uint64_t& a, std::uint64_t b) { a += b; }
};

template <class T, class Op, class A>
void wide_run(std::int64_t n, const T* x, A* acc) {
  constexpr int kLanes = kUnroll * kVectorBytes / 8;  // they hide the latency of the operation
  A part[kLanes];
  for (A& p : part) p = Op::kIdentity;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) Op::add(part[k], static_cast<A>(load(x[i + k])));
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) Op::combine(part[k], part[k + half]);
  }
  Op::combine(*acc, part[0]);
  for (; i < n; ++i) Op::add(*acc, static_cast<A>(load(x[i])));
}

template <class T>
void prod_runs(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
               void* accumulators) {
  const T* x = static_cast<const T*>(data);
  double* acc = static_cast<double*>(accumulators);
  for (std::int64_t r = 0; r < count; ++r) wide_run<T, ProdOp>(n, x + r * step, acc + r);
}

template <class T>
void prod_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* data,
                  void* accumulators) {
  const T* x = static_cast<const T*>(data);
  double* acc = static_cast<double*>(accumulators);
  for (std::int64_t r = 0; r < rows; ++r, x += row_step) {
    WEFT_VECTOR_LOOP
    for (std::int64_t c = 0; c < cols; ++c) acc[c] *= static_cast<double>(load(x[c]));
  }
}

template <class T>
void sum_of_squares_run(std::int64_t n, const void* x, double* acc) {
  wide_run<T, SquaresOp>(n, static_cast<const T*>(x), acc);
}

template <class T>
void integer_sum_runs(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
                      void* accumulators) {
  const T* x = static_cast<const T*>(data);
  auto* acc = static_cast<std::uint64_t*>(accumulators);
  for (std::int64_t r = 0; r < count; ++r) wide_run<T, WrappingSumOp>(n, x + r * step, acc + r);
}

template <class T>
void integer_sum_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols,
                         const void* data, void* accumulators) {
  const T* x = static_cast<const T*>(data);
  auto* acc = static_cast<std::uint64_t*>(accumulators);
  for (std::int64_t r = 0; r < rows; ++r, x += row_step) {
    WEFT_VECTOR_LOOP
    for (std::int64_t c = 0; c < cols; ++c) acc[c] += static_cast<std::uint64_t>(load(x[c]));
  }
}

template <class T>
constexpr ReduceFns integer_sum{integer_sum_runs<T>, integer_sum_columns<T>};

/// Finds the extreme of each block, and then its position in the first block that has the extreme
/// of all.
template <class T, class Op>
std::int64_t extreme_run(std::int64_t n, const void* data) {
  constexpr std::int64_t kBlock = 4096;
  const T* x = static_cast<const T*>(data);
  std::int64_t at = 0;
  double best = Op::template identity<double>();
  for (std::int64_t i = 0; i < n && best == best; i += kBlock) {
    const double before = best;
    best = reduce_run<T, Op>(std::min(kBlock, n - i), x + i, best);
    if (!(best == before)) at = i;
  }
  const auto value = static_cast<accumulate_t<T>>(best);
  const auto is_extreme = [&](std::int64_t i) {
    const auto v = load(x[i]);
    return (v == value) | ((v != v) & (value != value));
  };
  constexpr std::int64_t kGroup = 64;  // tested at once
  for (; at + kGroup <= n; at += kGroup) {
    int hits = 0;
    for (std::int64_t i = 0; i < kGroup; ++i) hits |= is_extreme(at + i);
    if (hits) break;
  }
  while (!is_extreme(at)) ++at;
  return at;
}

template <class T, class Op>
void extreme_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* data,
                     std::int64_t* positions) {
  using C = accumulate_t<T>;
  // As wide as C, so that one mask serves both; positions count from the start of a block.
  using Position = std::conditional_t<sizeof(C) == 4, std::int32_t, std::int64_t>;
  constexpr std::int64_t kStrip = 256, kBlock = 1024;
  for (std::int64_t from = 0; from < cols; from += kStrip) {
    const std::int64_t n = std::min(kStrip, cols - from);
    const T* x = static_cast<const T*>(data) + from;
    C best[kStrip];
    for (std::int64_t c = 0; c < n; ++c) {
      best[c] = load(x[c]);
      positions[from + c] = 0;
    }
    for (std::int64_t start = 0; start < rows; start += kBlock) {
      Position found[kStrip];
      std::fill_n(found, n, Position(-1));
      for (std::int64_t r = start; r < std::min(start + kBlock, rows); ++r, x += row_step) {
        const auto here = static_cast<Position>(r - start);
        WEFT_VECTOR_LOOP
        for (std::int64_t c = 0; c < n; ++c) {
          const C v = load(x[c]), b = best[c];
          const bool better = Op::better(v, b) | ((v != v) & (b == b));
          best[c] = better ? v : b;
          found[c] = better ? here : found[c];
        }
      }
      for (std::int64_t c = 0; c < n; ++c) {
        if (found[c] >= 0) positions[from + c] = start + found[c];
      }
    }
  }
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
constexpr ReduceLoops loops() {
  return {.sum = {reduce_runs<T, SumOp>, reduce_columns<T, SumOp>},
          .prod = {prod_runs<T>, prod_columns<T>},
          .max = {reduce_runs<T, MaxOp>, reduce_columns<T, MaxOp>},
          .min = {reduce_runs<T, MinOp>, reduce_columns<T, MinOp>},
          .argmax = {extreme_run<T, MaxOp>, extreme_columns<T, MaxOp>},
          .argmin = {extreme_run<T, MinOp>, extreme_columns<T, MinOp>},
          .sum_of_squares = sum_of_squares_run<T>,
          .scaled_deviation = scaled_deviation_row<T>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<ReduceLoops> reduce_loops = {loops<float>(), loops<double>(),
                                                     loops<bf16>()};
constinit const IntegerSums integer_sums = {integer_sum<std::int64_t>, integer_sum<std::int32_t>,
                                            integer_sum<std::uint8_t>, integer_sum<bool>};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
