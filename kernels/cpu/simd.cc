#include "weft/kernels/cpu/simd.h"

#include <algorithm>
#include <atomic>

namespace weft::cpu {
namespace {

struct Tables {
  SimdKernels level[3];

  Tables() {
    fill<&baseline::fill_elementwise, &baseline::fill_reduce, &baseline::fill_optim,
         &baseline::fill_loss, &baseline::fill_norm, &baseline::fill_copy>(level[0]);
    // A wider level keeps the narrower one's kernels where it has none of its own.
    level[1] = level[0];
    fill<&avx2::fill_elementwise, &avx2::fill_reduce, &avx2::fill_optim, &avx2::fill_loss,
         &avx2::fill_norm, &avx2::fill_copy>(level[1]);
    level[2] = level[1];
    fill<&avx512::fill_elementwise, &avx512::fill_reduce, &avx512::fill_optim, &avx512::fill_loss,
         &avx512::fill_norm, &avx512::fill_copy>(level[2]);
  }

 private:
  template <auto... fills>
  static void fill(SimdKernels& table) {
    (fills(table), ...);
  }
};

const SimdKernels& table(SimdLevel level) {
  static const Tables tables;
  return tables.level[static_cast<int>(level)];
}

std::atomic<const SimdKernels*> chosen{nullptr};

}  // namespace

SimdLevel best_simd_level() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return SimdLevel::baseline;
  }
  for (const bool has :
       {__builtin_cpu_supports("avx512f") != 0, __builtin_cpu_supports("avx512bw") != 0,
        __builtin_cpu_supports("avx512dq") != 0, __builtin_cpu_supports("avx512vl") != 0}) {
    if (!has) return SimdLevel::avx2;
  }
  return SimdLevel::avx512;
#else
  return SimdLevel::baseline;
#endif
}

void set_simd_level(SimdLevel level) {
  chosen.store(&table(std::min(level, best_simd_level())), std::memory_order_release);
}

SimdLevel simd_level() {
  for (const SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2}) {
    if (&simd() == &table(level)) return level;
  }
  return SimdLevel::avx512;
}

const SimdKernels& simd() {
  const SimdKernels* found = chosen.load(std::memory_order_acquire);
  if (!found) [[unlikely]] {
    set_simd_level(best_simd_level());
    found = chosen.load(std::memory_order_acquire);
  }
  return *found;
}

}  // namespace weft::cpu
