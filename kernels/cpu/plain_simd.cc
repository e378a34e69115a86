#include "weft/kernels/cpu/simd_heavy.h"

namespace weft::cpu {

const HeavySimd& heavy_simd() {
  static const HeavySimd& chosen = [&]() -> const HeavySimd& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return avx512::heavy_functions;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      return avx2::heavy_functions;
    }
    return baseline::heavy_functions;
  }();
  return chosen;
}

}  // namespace weft::cpu
