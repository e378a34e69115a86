// The vector instructions that code chosen at run time may use. This is the only place that asks
// the processor.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class SimdLevel : std::uint8_t {
  baseline,  ///< all other code is compiled for this
  avx2,      ///< with FMA and F16C
  avx512     ///< F, BW, DQ and VL
};

std::string_view to_string(SimdLevel level);

/// The widest level of this processor.
SimdLevel processor_simd_level();

/// The widest level that this processor has and that the environment variable WEFT_SIMD (baseline,
/// avx2 or avx512; unset: no limit) allows. If the processor lacks the given level, its own widest
/// one is used, so that one setting works for several machines. Read once, at the first successful
/// call. Throws InvalidArgument for another value.
SimdLevel best_simd_level();

/// Whether WEFT_SIMD is "reference": then the CPU computes with the definitions in
/// kernels/reference, and other code with vector variants uses baseline. Read once and throws, as
/// best_simd_level().
bool reference_kernels_wanted();

/// The level in use: the last set_simd_level(), else best_simd_level(). Throws like
/// best_simd_level().
SimdLevel simd_level();
/// Sets the level, at most to the best one. For tests: not while other threads compute; does not
/// affect libraries.
void set_simd_level(SimdLevel level);

}  // namespace weft
