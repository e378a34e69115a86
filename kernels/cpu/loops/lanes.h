// Short vectors for loops that a compiler does not vectorise by itself: sums, because it must keep
// their order, and maxima, because of NaN. They are as wide as the processor's registers: gcc
// splits wider ones into single elements in comparisons. Only for sources built by
// weft_simd_library.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

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

}  // namespace
}  // namespace weft::cpu
