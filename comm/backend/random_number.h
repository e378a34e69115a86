// Numbers that no other process has chosen.
#pragma once

#include <cstdint>
#include <random>

namespace weft::comm {

/// 64 bits from the system's source of randomness.
inline std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

}  // namespace weft::comm
