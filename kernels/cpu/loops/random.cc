// The inner loop of normal random numbers.
#include "weft/kernels/cpu/loops/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/vector_math.h"

namespace weft::cpu {
namespace {

// The same steps, in f32, as in core/runtime/rng.cc; logarithm, cosine and sine have the nearest
// values, so a generator's numbers do not depend on the processor.
void box_muller(float* x, std::int64_t n, float mean, float std) {
  constexpr std::int64_t kMost = 256;
  alignas(64) float first[kMost], second[kMost];  // of the halves of blocks
  for (; n > 0; n -= 2 * kMost, x += 2 * kMost) {
    const std::int64_t here = std::min(n / 2, kMost);
    for (std::int64_t i = 0; i < here; i += 8) {
      std::copy_n(x + 2 * i, 8, first + i);
      std::copy_n(x + 2 * i + 8, 8, second + i);
    }
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < here; ++i) {
      const float radius = std::sqrt(-2.0f * WEFT_SIMD::nearest_log_f32(1.0f - first[i]));
      const float angle = static_cast<float>(2 * std::numbers::pi) * second[i];
      first[i] = radius * WEFT_SIMD::cos_f32(angle) * std + mean;
      second[i] = radius * WEFT_SIMD::sin_f32(angle) * std + mean;
    }
    for (std::int64_t i = 0; i < here; i += 8) {
      std::copy_n(first + i, 8, x + 2 * i);
      std::copy_n(second + i, 8, x + 2 * i + 8);
    }
  }
}

}  // namespace

namespace WEFT_SIMD {

constinit const RandomLoops random_loops = {box_muller};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
