// load and store: conversion of one element between its dtype and the type that it is computed in.
#pragma once

#include <cstdint>
#include <type_traits>

#include "weft/core/base/dtype.h"

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
  return element_cast<accumulate_t<T>>(value);
}

template <class T, class C>
inline T store(C value) {
  return element_cast<T>(value);
}

}  // namespace weft::cpu
