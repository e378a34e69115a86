// Short vectors for the loops a compiler does not vectorise by itself: sums, whose order it must
// keep, and maxima, where NaN counts. 64 bytes wide at every level; a narrower machine uses several
// registers. Only for the sources built by weft_simd_library.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "weft/core/dtype.h"

namespace weft::cpu {
namespace {

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  static constexpr int kCount = 16;
  using Scalar = float;
  typedef float Vector __attribute__((vector_size(64)));
  static void load(const float* p, Vector& v) { std::memcpy(&v, p, sizeof v); }
};

template <>
struct Lanes<double> {
  static constexpr int kCount = 8;
  using Scalar = double;
  typedef double Vector __attribute__((vector_size(64)));
  static void load(const double* p, Vector& v) { std::memcpy(&v, p, sizeof v); }
};

template <>
struct Lanes<bf16> {
  static constexpr int kCount = 16;
  using Scalar = float;
  using Vector = Lanes<float>::Vector;
  static void load(const bf16* p, Vector& v) {
    typedef std::uint16_t Half __attribute__((vector_size(32)));
    typedef std::uint32_t Word __attribute__((vector_size(64)));
    Half h;
    std::memcpy(&h, p, sizeof h);
    const Word w = __builtin_convertvector(h, Word) << 16;
    std::memcpy(&v, &w, sizeof v);
  }
};

// What a reduction does with two values; V is a scalar or a vector of them.
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
// A NaN on either side wins: b's by the second comparison, a's because all comparisons with it fail.
struct MaxOp {
  template <class C>
  static constexpr C identity() {
    return -std::numeric_limits<C>::infinity();
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a = (b > a) | (b != b) ? b : a;
  }
};
struct MinOp {
  template <class C>
  static constexpr C identity() {
    return std::numeric_limits<C>::infinity();
  }
  template <class V>
  static void combine(V& a, const V& b) {
    a = (b < a) | (b != b) ? b : a;
  }
};

}  // namespace
}  // namespace weft::cpu
