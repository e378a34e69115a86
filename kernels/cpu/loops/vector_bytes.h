// The width in bytes of the vector registers that a source built by weft_simd_library is compiled
// for. It differs between objects, so only such sources may include this header.
#pragma once

namespace weft::cpu {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

}  // namespace weft::cpu
