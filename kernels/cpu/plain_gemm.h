// The plain matrix product all oneDNN-free kernels are made of: blocks of the output, computed by
// one thread each from packed panels. What is multiplied comes through callbacks, so that a
// convolution can pack straight from an image and never stores its unfolded form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "weft/core/parallel.h"
#include "weft/kernels/cpu/simd_heavy.h"

namespace weft::cpu {

inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// How a product of `batch` m x n outputs over k is cut up. Depends on the shapes and the number of
/// lanes alone, so that the order of summation does, too.
struct GemmPlan {
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  std::int64_t block_m = 0, block_n = 0, block_k = 0;
  std::int64_t blocks_m = 0, blocks_n = 0;
  std::int64_t splits = 1;  ///< parts of k, summed at the end: for small outputs and a long k
  int lanes = 1;            ///< shares of the work, each with its own packing buffers
  int tile = 0;             ///< of heavy_loops<Acc>().tiles

  std::int64_t blocks() const { return batch * blocks_m * blocks_n; }
  std::int64_t block_elements() const { return block_m * block_n; }
  std::int64_t lane_elements() const {
    return (block_m + block_n) * block_k + (splits == 1 ? block_elements() : 0);
  }
  /// Elements of the type sums are kept in.
  std::int64_t workspace_elements() const {
    return lanes * lane_elements() + (splits == 1 ? 0 : blocks() * splits * block_elements());
  }
};

/// Acc: the type of sums. lanes: the team to plan for.
template <class Acc>
GemmPlan plan_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, int lanes) {
  const HeavyLoops<Acc>& loops = heavy_loops<Acc>();
  GemmPlan plan{batch, m, n, k};
  // The best tile, or a narrower one that still covers all columns.
  plan.tile = loops.best_tile;
  while (plan.tile > 0 && loops.tiles[plan.tile - 1].cols >= n) --plan.tile;
  const Tile<Acc>& tile = loops.tiles[plan.tile];
  // A panel of b stays in the first-level cache, both packed blocks and the sums in a second-level
  // cache of 1 MiB.
  plan.block_k = std::max<std::int64_t>(1, std::min<std::int64_t>(k, 128));
  const auto block = [](std::int64_t size, std::int64_t most, std::int64_t multiple) {
    return round_up(std::clamp<std::int64_t>(size, 1, most), multiple);
  };
  plan.block_m = block(m, 192, tile.rows);
  plan.block_n = block(n, 1536 / sizeof(Acc), tile.cols);
  plan.blocks_m = (m + plan.block_m - 1) / plan.block_m;
  plan.blocks_n = (n + plan.block_n - 1) / plan.block_n;
  // Thinner blocks where a few large ones would leave part of the team without work.
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

/// pack_a(batch, k0, kc, m0, mc, width, to): panels of `width` rows, to[panel][step][width], zero
/// beyond mc. pack_b(batch, k0, kc, n0, nc, width, to): panels of `width` columns, likewise.
/// store(batch, m0, mc, n0, nc, sums, ld): takes a finished block; called from any thread.
template <class Acc, class PackA, class PackB, class Store>
void run_gemm(const GemmPlan& plan, Acc* workspace, const PackA& pack_a, const PackB& pack_b,
              const Store& store) {
  const Tile<Acc>& tile = heavy_loops<Acc>().tiles[plan.tile];
  const std::int64_t tasks = plan.blocks() * plan.splits;
  const std::int64_t ld = plan.block_n;
  Acc* const partial = workspace + plan.lanes * plan.lane_elements();

  struct Block {
    std::int64_t batch, m0, mc, n0, nc;
  };
  const auto block_at = [&](std::int64_t index) {
    const std::int64_t bm = index % plan.blocks_m;
    const std::int64_t bn = index / plan.blocks_m % plan.blocks_n;
    Block block{index / (plan.blocks_m * plan.blocks_n), bm * plan.block_m, 0, bn * plan.block_n, 0};
    block.mc = std::min(plan.block_m, plan.m - block.m0);
    block.nc = std::min(plan.block_n, plan.n - block.n0);
    return block;
  };

  const auto run_task = [&](std::int64_t task, Acc* lane) {
    const Block block = block_at(task / plan.splits);
    const std::int64_t split = task % plan.splits;
    const std::int64_t k_begin = plan.k * split / plan.splits;
    const std::int64_t k_end = plan.k * (split + 1) / plan.splits;
    Acc* const a = lane;
    Acc* const b = a + plan.block_m * plan.block_k;
    Acc* const sums = plan.splits == 1 ? b + plan.block_n * plan.block_k
                                       : partial + task * plan.block_elements();
    static constexpr std::int64_t kRows[kMostTileRows] = {0, 1, 2, 3, 4, 5, 6, 7};
    static constexpr std::int64_t kOneSegment[] = {0};
    TileArgs<Acc> args;
    args.a_rows = kRows;
    args.a_segments = kOneSegment;
    args.a_step = tile.rows;
    args.b_step = tile.cols;
    args.ldc = ld;
    if (k_begin == k_end) std::fill_n(sums, plan.block_elements(), Acc(0));
    for (std::int64_t k0 = k_begin; k0 < k_end; k0 += plan.block_k) {
      const std::int64_t kc = std::min(plan.block_k, k_end - k0);
      pack_a(block.batch, k0, kc, block.m0, block.mc, tile.rows, a);
      pack_b(block.batch, k0, kc, block.n0, block.nc, tile.cols, b);
      args.steps = kc;
      args.accumulate = k0 != k_begin;
      for (std::int64_t j = 0; j < block.nc; j += tile.cols) {
        args.b = b + j * kc;
        for (std::int64_t i = 0; i < block.mc; i += tile.rows) {
          args.rows = std::min<std::int64_t>(tile.rows, block.mc - i);
          args.a = a + i * kc;
          args.c = sums + i * ld + j;
          tile.run(args);
        }
      }
    }
    if (plan.splits == 1) store(block.batch, block.m0, block.mc, block.n0, block.nc, sums, ld);
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
        const Acc* more = sums + split * plan.block_elements();
        for (std::int64_t i = 0; i < block.mc; ++i) {
          for (std::int64_t j = 0; j < block.nc; ++j) sums[i * ld + j] += more[i * ld + j];
        }
      }
      store(block.batch, block.m0, block.mc, block.n0, block.nc, sums, ld);
    }
  });
}

/// Packs rows [0, rows) of a matrix with elements src[row * row_stride + step * step_stride] into
/// panels of `width` rows, converting to Acc.
template <class T, class Acc>
void pack_strided(const T* src, std::int64_t row_stride, std::int64_t step_stride,
                  std::int64_t rows, std::int64_t steps, std::int64_t width, Acc* to) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += width, to += width * steps) {
    const std::int64_t count = std::min(width, rows - r0);
    const T* panel = src + r0 * row_stride;
    if (count < width) std::fill_n(to, width * steps, Acc(0));
    if constexpr (std::is_same_v<T, Acc>) {
      const HeavyLoops<Acc>& loops = heavy_loops<Acc>();
      if (step_stride == 1 && row_stride != 1 && count == width && width % loops.lanes == 0) {
        loops.pack_across(width, steps, panel, row_stride, to);
        continue;
      }
    }
    if (row_stride == 1) {
      for (std::int64_t p = 0; p < steps; ++p) {
        const T* from = panel + p * step_stride;
        if constexpr (std::is_same_v<T, Acc>) {
          std::memcpy(to + p * width, from, std::size_t(count) * sizeof(T));
        } else {
          for (std::int64_t r = 0; r < count; ++r) to[p * width + r] = Acc(from[r]);
        }
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
