// Short vectors for loops that a compiler does not vectorise by itself: sums, because it must keep
// their order, and maxima, because of NaN. They are as wide as the processor's registers: gcc
// splits wider ones into single elements in comparisons. Only for sources built by
// weft_simd_library.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "weft/core/base/dtype.h"
#include "weft/kernels/cpu/loops/vector_bytes.h"

namespace weft::cpu {
namespace {

template <class T>
struct Lanes {  // float and double
  static constexpr int kCount = kVectorBytes / sizeof(T);
  using Scalar = T;
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  static void load(const T* p, Vector& v) { std::memcpy(&v, p, sizeof v); }
};

template <>
struct Lanes<bf16> {
  static constexpr int kCount = Lanes<float>::kCount;
  using Scalar = float;
  using Vector = Lanes<float>::Vector;
  static void load(const bf16* p, Vector& v) {
    typedef std::uint16_t Half __attribute__((vector_size(kVectorBytes / 2)));
    typedef std::uint32_t Word __attribute__((vector_size(kVectorBytes)));
    Half h;
    std::memcpy(&h, p, sizeof h);
    const Word w = __builtin_convertvector(h, Word) << 16;
    std::memcpy(&v, &w, sizeof v);
  }
};

/// So many independent vectors hide the latency of an addition; baseline has only 16 registers.
constexpr int kUnroll = kVectorBytes == 64 ? 4 : 8;

// How a reduction combines two values. V is a scalar or a vector.
struct SumOp {
  template <class C>
  static constexpr C identity() {
    return C(0);
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a += b;
  }
};
// A NaN on either side wins: b's through b != b, a's because both comparisons are then false.
struct MaxOp {
  template <class C>
  static constexpr C identity() {
    return -std::numeric_limits<C>::infinity();
  }
  template <class C>
  static bool better(C a, C b) {
    return a > b;
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a = ((b > a) | (b != b)) ? b : a;
  }
};
struct MinOp {
  template <class C>
  static constexpr C identity() {
    return std::numeric_limits<C>::infinity();
  }
  template <class C>
  static bool better(C a, C b) {
    return a < b;
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a = ((b < a) | (b != b)) ? b : a;
  }
};

/// Combines all lanes of a vector, as a tree; every lane gets the result.
template <class Op, int kHalf, class V, int... kLane>
void fold_vector(V& v, std::integer_sequence<int, kLane...> lanes) {
  if constexpr (kHalf > 0) {
    Op::combine(v, V(__builtin_shufflevector(v, v, (kLane ^ kHalf)...)));
    fold_vector<Op, kHalf / 2>(v, lanes);
  }
}

/// The sum of term(0), ..., term(n - 1), in an order that the compiler can vectorise.
template <class Term>
double row_sum(std::int64_t n, const Term& term) {
  constexpr int kLanes = 8;
  double part[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) part[k] += static_cast<double>(term(i + k));
  }
  double total = 0;
  for (int k = 0; k < kLanes; ++k) total += part[k];
  for (; i < n; ++i) total += static_cast<double>(term(i));
  return total;
}

}  // namespace
}  // namespace weft::cpu
