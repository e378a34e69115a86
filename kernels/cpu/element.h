// Reading and writing one element of each dtype in the type it is computed in.
#pragma once

#include <cstdint>
#include <type_traits>

#include "weft/core/dtype.h"

// The iterations are independent even where the output is an input (in place): the compiler need
// not check for overlap, and in-place loops are vectorised too.
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
  // By way of i64, so that a float below 0 or above 255 wraps instead of being undefined.
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return static_cast<T>(static_cast<std::int64_t>(value));
  else
    return static_cast<T>(value);
}

}  // namespace weft::cpu
