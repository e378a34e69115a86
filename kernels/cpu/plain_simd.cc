#include "weft/kernels/cpu/simd.h"
#include "weft/kernels/cpu/simd_heavy.h"
#include "weft/kernels/cpu/simd_winograd.h"

namespace weft::cpu {

const HeavySimd& heavy_simd() {
  switch (simd_level()) {
    case SimdLevel::baseline: return baseline::heavy_functions;
    case SimdLevel::avx2: return avx2::heavy_functions;
    case SimdLevel::avx512: break;
  }
  return avx512::heavy_functions;
}

const WinogradSimd& winograd_simd() {
  switch (simd_level()) {
    case SimdLevel::baseline: return baseline::winograd_functions;
    case SimdLevel::avx2: return avx2::winograd_functions;
    case SimdLevel::avx512: break;
  }
  return avx512::winograd_functions;
}

}  // namespace weft::cpu
