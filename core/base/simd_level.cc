#include "weft/core/base/simd_level.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>

#include "weft/core/base/error.h"

namespace weft {
namespace {

constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512"};

struct Setting {
  SimdLevel most;
  bool reference;
};

Setting read_setting() {
  const char* text = std::getenv("WEFT_SIMD");
  if (!text) return {SimdLevel::avx512, false};
  if (std::string_view(text) == "reference") return {SimdLevel::baseline, true};
  const auto* name = std::find(std::begin(kNames), std::end(kNames), std::string_view(text));
  WEFT_CHECK(name != std::end(kNames), InvalidArgument, "simd_level", "WEFT_SIMD: got '", text,
             "', expected baseline, avx2 or avx512, the widest instructions to use, or reference, "
             "the definitions in place of the kernels");
  return {static_cast<SimdLevel>(name - std::begin(kNames)), false};
}

const Setting& setting() {
  static const Setting read = read_setting();
  return read;
}

constexpr int kUnset = -1;
std::atomic<int> level_in_use{kUnset};

}  // namespace

std::string_view to_string(SimdLevel level) { return kNames[static_cast<int>(level)]; }

SimdLevel processor_simd_level() {
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

SimdLevel best_simd_level() {
  static const SimdLevel best = std::min(processor_simd_level(), setting().most);
  return best;
}

bool reference_kernels_wanted() { return setting().reference; }

SimdLevel simd_level() {
  const int level = level_in_use.load(std::memory_order_relaxed);
  if (level != kUnset) [[likely]]
    return static_cast<SimdLevel>(level);
  // Not stored here: that could overwrite a set_simd_level() of another thread.
  return best_simd_level();
}

void set_simd_level(SimdLevel level) {
  level_in_use.store(static_cast<int>(std::min(level, best_simd_level())),
                     std::memory_order_relaxed);
}

}  // namespace weft
