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

// How many counters of blocks a stream has (handles.h: block_counters).
inline constexpr unsigned kBlockCounters = 1024;

/// The number of blocks for `items`, if a block takes `per_block` of them in one round of its
/// grid-stride loop. At least 1, at most kMaxBlocks, far below the hardware's limit of 2^31-1 in x.
constexpr unsigned grid_blocks(std::int64_t items, std::int64_t per_block = kBlock) {
  const std::int64_t needed = items / per_block + (items % per_block != 0);
  return static_cast<unsigned>(std::clamp<std::int64_t>(needed, 1, kMaxBlocks));
}

// A thread folds so many blocks' values before it waits for other blocks.
inline constexpr int kAtOnce = 8;

/// How `blocks` blocks that share a strip of `outputs` outputs, a power of two, fold what they have
/// found: as teams, then the teams' results. So the last block has few values to read.
struct Teams {
  int lanes;  // threads of an output
  unsigned size, count;
  constexpr Teams(unsigned blocks, int outputs)
      : lanes(kBlock / outputs),
        size(static_cast<unsigned>(kAtOnce * lanes)),
        count((blocks + size - 1) / size) {}
  /// Of block_counters, for each strip.
  constexpr unsigned counters() const { return count > 1 ? count + 1 : 1; }
};

/// The most blocks for each of `strips` strips: the last counter is for the whole grid.
constexpr std::int64_t most_sharers(std::int64_t strips, int outputs) {
  if (strips >= kBlockCounters) return 1;
  return Teams(1, outputs).size * std::max<std::int64_t>((kBlockCounters - 1) / strips - 1, 1);
}

}  // namespace weft::cuda
