// load and store: conversion of one element between its dtype and the type that it is computed in.
#pragma once

#include <cstdint>
#include <type_traits>

#include "weft/core/dtype.h"

// Tells the compiler that the iterations are independent, also if the output is an input (in
// place). It need not check for overlap, and it vectorises in-place loops, too.
#if defined(__clang__)
#define WEFT_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

namespace weft::cpu {

template <class T>
inline accumulate_t<T> load(T value) {
  if constexpr (std::is_same_v<T, bf16>)
    return static_cast<float>(value);
  else
    return static_cast<accumulate_t<T>>(value);
}

template <class T, class C>
inline T store(C value) {
  if constexpr (std::is_same_v<T, bool>)
    return value != C(0);
  else if constexpr (std::is_same_v<T, bf16>)
    return bf16(static_cast<float>(value));
  // Via i64: a float below 0 or above 255 wraps, where a direct conversion would be undefined.
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return static_cast<T>(static_cast<std::int64_t>(value));
  else
    return static_cast<T>(value);
}

}  // namespace weft::cpu
