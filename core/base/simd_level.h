// The vector instructions that code chosen at run time may use: the one place that asks the
// processor.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class SimdLevel : std::uint8_t {
  baseline,  ///< what everything else is compiled for
  avx2,      ///< with FMA and F16C
  avx512     ///< F, BW, DQ and VL
};

std::string_view to_string(SimdLevel level);

/// What this processor has.
SimdLevel processor_simd_level();

/// The widest level that this processor has and that the environment variable WEFT_SIMD (baseline,
/// avx2 or avx512; unset: no limit) allows. A level that the processor lacks means its widest, so
/// that one setting serves several machines. Read once, at the first successful call. Throws
/// InvalidArgument for another value.
SimdLevel best_simd_level();

/// Whether WEFT_SIMD is reference: then the CPU computes with the definitions in kernels/reference,
/// and what else has vector code stays at baseline. Read once and throws, as best_simd_level().
bool reference_kernels_wanted();

/// The level in use: best_simd_level(), or what set_simd_level() said. Throws as that does.
SimdLevel simd_level();
/// At most the best one. For tests: not while others compute, and without effect on libraries.
void set_simd_level(SimdLevel level);

}  // namespace weft
