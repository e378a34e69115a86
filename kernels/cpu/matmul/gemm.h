// The matrix product in the kernels that do not use oneDNN. One thread computes each block of the
// output, from packed panels. Callbacks deliver the operands, so a convolution packs directly from
// the image and never stores the unfolded image.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/loops/tiles.h"

namespace weft::cpu {

inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// How `batch` products with m x n outputs and k steps are divided. This depends only on the
/// shapes, the instruction set and the number of lanes, and so does the order of summation.
template <class Acc>
struct GemmPlan {
  const HeavyLoops<Acc>* loops = nullptr;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  std::int64_t block_m = 0, block_n = 0, block_k = 0;
  std::int64_t blocks_m = 0, blocks_n = 0;
  std::int64_t splits = 1;  ///< parts of k, added at the end: for small outputs and a long k
  int lanes = 1;            ///< parts of the work, each with its own packing buffers
  int tile = 0;             ///< index in loops->tiles

  std::int64_t blocks() const { return batch * blocks_m * blocks_n; }
  std::int64_t block_elements() const { return block_m * block_n; }
  std::int64_t lane_elements() const {
    return (block_m + block_n) * block_k + (splits == 1 ? block_elements() : 0);
  }
  /// Size of the workspace, in elements of Acc.
  std::int64_t workspace_elements() const {
    return lanes * lane_elements() + (splits == 1 ? 0 : blocks() * splits * block_elements());
  }
};

/// Acc: the type of the sums. lanes: the size of the team.
template <class Acc>
GemmPlan<Acc> plan_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                        int lanes) {
  const HeavyLoops<Acc>& loops = heavy_loops<Acc>();
  GemmPlan<Acc> plan{&loops, batch, m, n, k};
  // The best tile, or a narrower one that still covers all columns.
  plan.tile = loops.best_tile;
  while (plan.tile > 0 && loops.tiles[plan.tile - 1].cols >= n) --plan.tile;
  const MicroTile<Acc>& tile = loops.tiles[plan.tile];
  // Both packed blocks fit in an L2 cache of 1 MiB. A longer block_k would read the operands in
  // longer runs; a shorter one would keep panels of b in the L1 cache.
  plan.block_k = std::clamp<std::int64_t>(k, 1, 1536 / sizeof(Acc));
  const auto block = [](std::int64_t size, std::int64_t most, std::int64_t multiple) {
    return round_up(std::clamp<std::int64_t>(size, 1, most), multiple);
  };
  plan.block_m = block(m, 256, tile.rows);
  plan.block_n = block(n, 1536 / sizeof(Acc), tile.cols);
  plan.blocks_m = (m + plan.block_m - 1) / plan.block_m;
  plan.blocks_n = (n + plan.block_n - 1) / plan.block_n;
  // Thinner blocks if a few large ones would leave part of the team without work.
  while (plan.blocks() < 4 * lanes && plan.block_n >= 2 * tile.cols && n > tile.cols) {
    plan.block_n = round_up(plan.block_n / 2, tile.cols);
    plan.blocks_n = (n + plan.block_n - 1) / plan.block_n;
  }
  const std::int64_t most_splits = std::max<std::int64_t>(1, k / 256);
  if (plan.blocks() > 0 && plan.blocks() < lanes) {
    plan.splits = std::min<std::int64_t>(most_splits, (lanes + plan.blocks() - 1) / plan.blocks());
  }
  plan.lanes = static_cast<int>(std::min<std::int64_t>(lanes, plan.blocks() * plan.splits));
  return plan;
}

/// A block of a, as the tiles read it. Distances in elements: row_step between the rows of a tile,
/// tile_step between tiles, step between steps of k.
template <class Acc>
struct PanelsA {
  const Acc* data;
  std::int64_t row_step, tile_step, step;

  /// The block packed as panels of `width` rows: to[panel][step][width].
  static PanelsA packed(const Acc* to, std::int64_t width, std::int64_t steps) {
    return {to, 1, width * steps, width};
  }
};

/// Where a block of the output is summed: in place at `data` or, if data is null, in the workspace;
/// then store() gets the sums.
template <class Acc>
struct Target {
  Acc* data = nullptr;
  std::int64_t ld = 0;
  bool add = false;  ///< add to the present content
};

/// Runs the product. `workspace`: plan.workspace_elements(). `source` reads the operands and writes
/// the output; any thread may call its functions:
///   PanelsA<Acc> a(batch, k0, kc, m0, mc, width, to): a block of a, as it lies in memory or packed
///       into `to`; rows beyond mc must be readable, with any values
///   void b(batch, k0, kc, n0, nc, width, to): packs a block of b as panels of `width` columns,
///       to[panel][step][width], with zeros beyond nc
///   Target<Acc> target(batch, m0, mc, n0, nc)
///   void store(batch, m0, mc, n0, nc, sums, ld): called unless the block was summed in place
template <class Acc, class Source>
void run_gemm(const GemmPlan<Acc>& plan, Acc* workspace, const Source& source) {
  const MicroTile<Acc>& tile = plan.loops->tiles[plan.tile];
  const std::int64_t tasks = plan.blocks() * plan.splits;
  Acc* const partial = workspace + plan.lanes * plan.lane_elements();

  struct Block {
    std::int64_t batch, m0, mc, n0, nc;
  };
  const auto block_at = [&](std::int64_t index) {
    const std::int64_t bm = index % plan.blocks_m;
    const std::int64_t bn = index / plan.blocks_m % plan.blocks_n;
    Block block{index / (plan.blocks_m * plan.blocks_n), bm * plan.block_m, 0, bn * plan.block_n,
                0};
    block.mc = std::min(plan.block_m, plan.m - block.m0);
    block.nc = std::min(plan.block_n, plan.n - block.n0);
    return block;
  };

  const auto run_tiles = [&](const Block& block, const PanelsA<Acc>& a, const Acc* b,
                             std::int64_t kc, const Target<Acc>& target, bool padded) {
    std::int64_t a_rows[kMostTileRows];
    for (int i = 0; i < kMostTileRows; ++i) a_rows[i] = i * a.row_step;
    // For a tile that extends beyond the last column of an output in place.
    Acc edge[kMostTileElements];
    TileArgs<Acc> args;
    args.steps = kc;
    args.a_rows = a_rows;
    args.a_segments = args.b_segments = kOneSegment;
    args.a_step = a.step;
    args.b_step = tile.cols;
    for (std::int64_t j = 0; j < block.nc; j += tile.cols) {
      const std::int64_t cols = std::min<std::int64_t>(tile.cols, block.nc - j);
      const bool whole = padded || cols == tile.cols;
      args.b = b + j * kc;
      args.ldc = whole ? target.ld : tile.cols;
      args.accumulate = whole && target.add;
      for (std::int64_t i = 0, index = 0; i < block.mc; i += tile.rows, ++index) {
        args.rows = std::min<std::int64_t>(tile.rows, block.mc - i);
        args.a = a.data + index * a.tile_step;
        Acc* const to = target.data + i * target.ld + j;
        args.c = whole ? to : edge;
        tile.run(args);
        if (whole) continue;
        for (std::int64_t row = 0; row < args.rows; ++row) {
          for (std::int64_t col = 0; col < cols; ++col) {
            Acc& value = to[row * target.ld + col];
            value = edge[row * tile.cols + col] + (target.add ? value : Acc(0));
          }
        }
      }
    }
  };

  const auto run_task = [&](std::int64_t task, Acc* lane) {
    const Block block = block_at(task / plan.splits);
    const std::int64_t split = task % plan.splits;
    const std::int64_t k_begin = plan.k * split / plan.splits;
    const std::int64_t k_end = plan.k * (split + 1) / plan.splits;
    Acc* const a = lane;
    Acc* const b = a + plan.block_m * plan.block_k;
    Target<Acc> target;
    if (plan.splits == 1)
      target = source.target(block.batch, block.m0, block.mc, block.n0, block.nc);
    const bool in_place = target.data != nullptr;
    if (!in_place) {
      target.data = plan.splits == 1 ? b + plan.block_n * plan.block_k
                                     : partial + task * plan.block_elements();
      target.ld = plan.block_n;
      if (k_begin == k_end) std::fill_n(target.data, plan.block_elements(), Acc(0));
    } else if (k_begin == k_end && !target.add) {
      for (std::int64_t i = 0; i < block.mc; ++i)
        std::fill_n(target.data + i * target.ld, block.nc, Acc(0));
    }
    for (std::int64_t k0 = k_begin; k0 < k_end; k0 += plan.block_k) {
      const std::int64_t kc = std::min(plan.block_k, k_end - k0);
      const PanelsA<Acc> panels = source.a(block.batch, k0, kc, block.m0, block.mc, tile.rows, a);
      source.b(block.batch, k0, kc, block.n0, block.nc, tile.cols, b);
      run_tiles(block, panels, b, kc, target, !in_place);
      target.add = true;
    }
    if (plan.splits == 1 && !in_place) {
      source.store(block.batch, block.m0, block.mc, block.n0, block.nc, target.data, target.ld);
    }
  };

  parallel_for(plan.lanes, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t lane = begin; lane < end; ++lane) {
      const std::int64_t last = tasks * (lane + 1) / plan.lanes;
      for (std::int64_t task = tasks * lane / plan.lanes; task < last; ++task) {
        run_task(task, workspace + lane * plan.lane_elements());
      }
    }
  });
  if (plan.splits == 1) return;
  parallel_for(plan.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const Block block = block_at(index);
      Acc* const sums = partial + index * plan.splits * plan.block_elements();
      for (std::int64_t split = 1; split < plan.splits; ++split) {
        plan.loops->add_rows(block.mc, block.nc, sums, plan.block_n,
                             sums + split * plan.block_elements(), plan.block_n);
      }
      source.store(block.batch, block.m0, block.mc, block.n0, block.nc, sums, plan.block_n);
    }
  });
}

/// Packs rows [0, rows) of a matrix with elements src[row * row_stride + step * step_stride] into
/// panels of `width` rows, converting to Acc.
template <class T, class Acc>
void pack_strided(const T* src, std::int64_t row_stride, std::int64_t step_stride,
                  std::int64_t rows, std::int64_t steps, std::int64_t width, Acc* to) {
  if constexpr (std::is_same_v<T, Acc>) {
    // Rows that are neighbours in memory are copied step by step through all whole panels: this is
    // the order of the source.
    if (row_stride == 1) {
      const HeavyLoops<Acc>& loops = heavy_loops<Acc>();
      const std::int64_t whole = rows / width, rest = rows % width;
      for (std::int64_t p = 0; p < steps && whole > 0; ++p) {
        loops.copy_rows(whole, width, to + p * width, width * steps, src + p * step_stride, width);
      }
      if (rest == 0) return;
      Acc* const last = to + whole * width * steps;
      std::fill_n(last, width * steps, Acc(0));
      loops.copy_rows(steps, rest, last, width, src + whole * width, step_stride);
      return;
    }
  }
  for (std::int64_t r0 = 0; r0 < rows; r0 += width, to += width * steps) {
    const std::int64_t count = std::min(width, rows - r0);
    const T* panel = src + r0 * row_stride;
    if (count < width) std::fill_n(to, width * steps, Acc(0));
    if constexpr (std::is_same_v<T, Acc>) {
      if (step_stride == 1) {
        heavy_loops<Acc>().transpose(count, steps, to, width, panel, row_stride);
        continue;
      }
    }
    if (row_stride == 1) {
      for (std::int64_t p = 0; p < steps; ++p) {
        const T* from = panel + p * step_stride;
        for (std::int64_t r = 0; r < count; ++r) to[p * width + r] = Acc(from[r]);
      }
    } else {
      for (std::int64_t r = 0; r < count; ++r) {
        const T* from = panel + r * row_stride;
        for (std::int64_t p = 0; p < steps; ++p) to[p * width + r] = Acc(from[p * step_stride]);
      }
    }
  }
}

}  // namespace weft::cpu
