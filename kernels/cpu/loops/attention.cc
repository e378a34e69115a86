// The inner loops of attention.
#include "weft/kernels/cpu/loops/attention.h"

#include <cmath>
#include <limits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/lanes.h"
#include "weft/kernels/cpu/loops/vector_math.h"

namespace weft::cpu {
namespace {

template <class C>
constexpr C kHidden = -std::numeric_limits<C>::infinity();

template <class C>
bool add_mask(std::int64_t n, const C* mask, C* scores) {
  int sees = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    sees |= mask[j] != kHidden<C>;
    scores[j] += mask[j];
  }
  return sees != 0;
}

template <class C>
bool hide(std::int64_t n, const bool* mask, C* scores) {
  int sees = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    sees |= mask[j];
    scores[j] += mask[j] ? C(0) : kHidden<C>;
  }
  return sees != 0;
}

/// A NaN does not count.
struct LargerOp {
  template <class V>
  static void combine(V& a, const V& b) {
    a = b > a ? b : a;
  }
};

/// Combines `first` and n elements, a multiple of the lanes, in two vectors.
template <class Op, class C>
C fold_row(std::int64_t n, const C* x, C first) {
  using L = Lanes<C>;
  constexpr int kLanes = L::kCount;
  typename L::Vector even, odd, next;
  for (int k = 0; k < kLanes; ++k) even[k] = odd[k] = first;
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    L::load(x + j, next);
    Op::combine(even, next);
    L::load(x + j + kLanes, next);
    Op::combine(odd, next);
  }
  if (j < n) {
    L::load(x + j, next);
    Op::combine(even, next);
  }
  Op::combine(even, odd);
  fold_vector<Op, kLanes / 2>(even, std::make_integer_sequence<int, kLanes>());
  return even[0];
}

/// Sets the elements of the last vector beyond n to -infinity; returns where it ends. One store:
/// smaller ones would delay the next load of the vector.
template <class C>
std::int64_t hide_rest(std::int64_t n, C* scores) {
  using L = Lanes<C>;
  const std::int64_t rest = n % L::kCount;
  if (rest == 0) return n;
  typename L::Vector last, lane;
  for (int k = 0; k < L::kCount; ++k) lane[k] = static_cast<C>(k);
  L::load(scores + n - rest, last);
  last = lane < static_cast<C>(rest) ? last : typename L::Vector{} + kHidden<C>;
  std::memcpy(scores + n - rest, &last, sizeof last);
  return n - rest + L::kCount;
}

template <class C>
C exponentials(std::int64_t keys, C* scores, C& most, double& sum) {
  const std::int64_t n = hide_rest(keys, scores);
  const C before = most;
  most = fold_row<LargerOp>(n, scores, before);
  // While all scores are -infinity, all exponentials are 0.
  const C shift = most == kHidden<C> ? C(0) : most;
  WEFT_VECTOR_LOOP
  for (std::int64_t j = 0; j < n; ++j) {
    scores[j] = WEFT_SIMD::exponential_negative(scores[j] - shift);
  }
  const C shrink = before == most ? C(1) : WEFT_SIMD::exponential_negative(before - shift);
  sum = sum * static_cast<double>(shrink) + static_cast<double>(fold_row<SumOp>(n, scores, C(0)));
  return shrink;
}

template <class C>
void weights(std::int64_t n, C log_sum, C* scores) {
  WEFT_VECTOR_LOOP
  for (std::int64_t j = 0; j < n; ++j) {
    // Above 0 only by the rounding of large scores, which forward adds in another order.
    const C x = scores[j] - log_sum;
    scores[j] = WEFT_SIMD::exponential_negative(x > 0 ? C(0) : x);
  }
}

template <class C>
void score_grads(std::int64_t n, const C* weights, C common, C* grads) {
  WEFT_VECTOR_LOOP
  for (std::int64_t j = 0; j < n; ++j) grads[j] = weights[j] * (grads[j] - common);
}

template <class C>
void drop(std::int64_t n, const bool* kept, C scale, C* x) {
  WEFT_VECTOR_LOOP
  for (std::int64_t j = 0; j < n; ++j) x[j] *= kept[j] ? scale : C(0);
}

template <class C>
void multiply(std::int64_t n, C factor, C* x) {
  WEFT_VECTOR_LOOP
  for (std::int64_t j = 0; j < n; ++j) x[j] *= factor;
}

/// The sums of each vector's elements: lane i is that of v[i]. Halves the number of vectors, whose
/// neighbouring lanes it adds, until one is left.
template <class V, int... kLane>
V sums_of_lanes(V* v, std::integer_sequence<int, kLane...>) {
  constexpr int n = sizeof...(kLane);
#pragma GCC unroll 4
  for (int count = n / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const V a = v[2 * i], b = v[2 * i + 1];
      v[i] = __builtin_shufflevector(a, b, (2 * kLane)...) +
             __builtin_shufflevector(a, b, (2 * kLane + 1)...);
    }
  }
  return v[0];
}

template <class C>
void products(std::int64_t n, std::int64_t features, const C* x, const C* k, std::int64_t k_step,
              C* scores) {
  using L = Lanes<C>;
  constexpr int kLanes = L::kCount;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes, k += kLanes * k_step) {
    typename L::Vector sum[kLanes] = {}, xs, ks;
    std::int64_t e = 0;
    for (; e + kLanes <= features; e += kLanes) {
      L::load(x + e, xs);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        L::load(k + i * k_step + e, ks);
        sum[i] += xs * ks;
      }
    }
    typename L::Vector total = sums_of_lanes(sum, std::make_integer_sequence<int, kLanes>());
    for (; e < features; ++e) {
      for (int i = 0; i < kLanes; ++i) total[i] += x[e] * k[i * k_step + e];
    }
    std::memcpy(scores + j, &total, sizeof total);
  }
  for (; j < n; ++j, k += k_step) {
    C sum = 0;
    for (std::int64_t e = 0; e < features; ++e) sum += x[e] * k[e];
    scores[j] = sum;
  }
}

/// The columns of kVectors vectors; two rows at a time have sums of their own.
template <class C, int kVectors>
void weigh_columns(std::int64_t n, const C* weights, const C* v, std::int64_t v_step, C* sums) {
  using L = Lanes<C>;
  typename L::Vector even[kVectors] = {}, odd[kVectors] = {}, next;
  std::int64_t j = 0;
  for (; j + 2 <= n; j += 2, v += 2 * v_step) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      L::load(v + k * L::kCount, next);
      even[k] += weights[j] * next;
      L::load(v + v_step + k * L::kCount, next);
      odd[k] += weights[j + 1] * next;
    }
  }
  for (int k = 0; k < kVectors; ++k) {
    if (j < n) {
      L::load(v + k * L::kCount, next);
      even[k] += weights[j] * next;
    }
    L::load(sums + k * L::kCount, next);
    next += even[k] + odd[k];
    std::memcpy(sums + k * L::kCount, &next, sizeof next);
  }
}

template <class C>
void weigh(std::int64_t n, std::int64_t values, const C* weights, const C* v, std::int64_t v_step,
           C* sums) {
  constexpr int kLanes = Lanes<C>::kCount;
  std::int64_t e = 0;
  for (; e + 4 * kLanes <= values; e += 4 * kLanes) {
    weigh_columns<C, 4>(n, weights, v + e, v_step, sums + e);
  }
  for (; e + kLanes <= values; e += kLanes) {
    weigh_columns<C, 1>(n, weights, v + e, v_step, sums + e);
  }
  for (; e < values; ++e) {
    C sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += weights[j] * v[j * v_step + e];
    sums[e] += sum;
  }
}

template <class T>
void load_rows(std::int64_t rows, std::int64_t n, const void* from, std::int64_t step,
               double factor, void* to, std::int64_t width) {
  using C = accumulate_t<T>;
  const C f = static_cast<C>(factor);
  const T* x = static_cast<const T*>(from);
  C* y = static_cast<C*>(to);
  for (std::int64_t i = 0; i < rows; ++i, x += step, y += width) {
    WEFT_VECTOR_LOOP
    for (std::int64_t j = 0; j < n; ++j) y[j] = load(x[j]) * f;
    for (std::int64_t j = n; j < width; ++j) y[j] = 0;
  }
}

template <class T>
void store_row(std::int64_t n, const void* from, double factor, void* to) {
  using C = accumulate_t<T>;
  const C f = static_cast<C>(factor);
  const C* x = static_cast<const C*>(from);
  T* y = static_cast<T*>(to);
  WEFT_VECTOR_LOOP
  for (std::int64_t j = 0; j < n; ++j) y[j] = store<T>(x[j] * f);
}

template <class T>
double dot(std::int64_t n, const void* a, const void* b) {
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  return row_sum(n, [&](std::int64_t j) {
    return static_cast<double>(load(x[j])) * static_cast<double>(load(y[j]));
  });
}

template <class C>
constexpr ScoreLoops<C> score_loops_of() {
  return {add_mask<C>, hide<C>,     exponentials<C>, weights<C>, score_grads<C>,
          drop<C>,     multiply<C>, products<C>,     weigh<C>};
}

template <class T>
constexpr AttentionLoops rows_of() {
  return {load_rows<T>, store_row<T>, dot<T>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const AttentionTable attention_table = {
    score_loops_of<float>(),
    score_loops_of<double>(),
    {rows_of<float>(), rows_of<double>(), rows_of<bf16>()}};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
