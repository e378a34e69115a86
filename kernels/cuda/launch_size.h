// How many blocks a launch gets. Plain arithmetic, so that sizes no test machine holds are tested.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft::cuda {

// 8 resident blocks fill the 2048 threads of an SM, and 256 divides every SM's register file such
// that kernels of up to 32 registers per thread reach full occupancy.
inline constexpr int kBlock = 256;

// Some 15 waves of kBlock on the largest GPU (about 140 SMs x 8 blocks): enough to level out the
// tail; larger inputs are walked by grid-stride loops.
inline constexpr std::int64_t kMaxBlocks = 16384;

/// Blocks for `items` of which a block takes `per_block` in one round of its grid-stride loop.
/// At least 1, at most kMaxBlocks, well below the 2^31-1 the hardware allows in x.
constexpr unsigned grid_blocks(std::int64_t items, std::int64_t per_block = kBlock) {
  const std::int64_t needed = items / per_block + (items % per_block != 0);
  return static_cast<unsigned>(std::clamp<std::int64_t>(needed, 1, kMaxBlocks));
}

}  // namespace weft::cuda
