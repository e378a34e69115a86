// The number of thread blocks of a launch. Only arithmetic, so that tests can use sizes that do not
// fit in the memory of any test machine.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft::cuda {

// Threads per block. 8 resident blocks fill the 2048 threads of an SM, and kernels with up to 32
// registers per thread reach full occupancy.
inline constexpr int kBlock = 256;

// About 15 waves of blocks on the largest GPU (about 140 SMs x 8 blocks): enough to make the last,
// partial wave cheap. Larger inputs need several rounds of grid-stride loops.
inline constexpr std::int64_t kMaxBlocks = 16384;

/// The number of blocks for `items`, if a block takes `per_block` of them in one round of its
/// grid-stride loop. At least 1, at most kMaxBlocks, far below the hardware's limit of 2^31-1 in x.
constexpr unsigned grid_blocks(std::int64_t items, std::int64_t per_block = kBlock) {
  const std::int64_t needed = items / per_block + (items % per_block != 0);
  return static_cast<unsigned>(std::clamp<std::int64_t>(needed, 1, kMaxBlocks));
}

}  // namespace weft::cuda
