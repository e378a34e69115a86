// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). It computes
// four 32-bit random words from a counter and a key. So every element has words of its own, and the
// result does not depend on how the work is divided among threads. For host and device.
#pragma once

#include <cstdint>

#include "weft/core/base/dtype.h"

namespace weft::cuda {

struct PhiloxWords {
  std::uint32_t w[4];
};

/// Words 4 * block .. 4 * block + 3 of the sequence of `key`.
WEFT_HD inline PhiloxWords philox(std::uint64_t key, std::uint64_t block) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  constexpr int kRounds = 10;
  PhiloxWords c{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}};
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = kMultiplier0 * c.w[0], p1 = kMultiplier1 * c.w[2];
    c = {{static_cast<std::uint32_t>(p1 >> 32) ^ c.w[1] ^ k0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ c.w[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

/// A number in [0, 1) from 24 bits, so that every value is exact in f32.
WEFT_HD inline float unit_f32(std::uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

/// A number in [0, 1) from 53 bits of two words.
WEFT_HD inline double unit_f64(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * (1.0 / 9007199254740992.0);
}

}  // namespace weft::cuda
