// The inner loops of pooling.
#include <bit>
#include <type_traits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/pooling.h"

namespace weft::cpu {
namespace {

/// condition ? a : b without a branch, whose mispredictions on random data would cost most.
template <class U>
U choose(bool condition, U a, U b) {
  return static_cast<U>(b ^ ((a ^ b) & static_cast<U>(-static_cast<std::int64_t>(condition))));
}

template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

template <class T>
void pool_step(std::int64_t n, const T* x, std::int64_t step, std::int32_t position,
               std::int32_t position_step, T* best, std::int32_t* winner) {
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const T candidate = x[i * step];
    const auto v = load(candidate);
    // The last NaN stays, since comparisons of later values with it are false.
    const bool takes = (v > load(best[i])) | (v != v) | (winner[i] < 0);
    best[i] = std::bit_cast<T>(
        choose(takes, std::bit_cast<Bits<T>>(candidate), std::bit_cast<Bits<T>>(best[i])));
    winner[i] = choose(takes, position + static_cast<std::int32_t>(i) * position_step, winner[i]);
  }
}

template <class T>
void pool_step_row(std::int64_t n, const void* in, std::int64_t step, std::int32_t position,
                   std::int32_t position_step, void* largest, std::int32_t* winner) {
  const T* x = static_cast<const T*>(in);
  T* best = static_cast<T*>(largest);
  // Constant steps let the compiler use vector loads: 1 (channels, or stride 1) and 2.
  if (step == 1) return pool_step(n, x, 1, position, position_step, best, winner);
  if (step == 2) return pool_step(n, x, 2, position, position_step, best, winner);
  pool_step(n, x, step, position, position_step, best, winner);
}

template <class T>
void add_scaled_step(std::int64_t n, const void* in, std::int64_t step, double scale, double* sum) {
  const T* x = static_cast<const T*>(in);
  if (step == 1) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) sum[i] += scale * static_cast<double>(load(x[i]));
    return;
  }
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) sum[i] += scale * static_cast<double>(load(x[i * step]));
}

template <class T>
constexpr PoolingLoops loops() {
  return {pool_step_row<T>, add_scaled_step<T>};
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<PoolingLoops> pooling_loops = {loops<float>(), loops<double>(),
                                                       loops<bf16>()};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
