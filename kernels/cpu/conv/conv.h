// Convolutions on the CPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/core/base/dtype.h"
#include "weft/kernels/cpu/candidates.h"
#include "weft/kernels/cpu/loops/tiles.h"
#include "weft/kernels/plan/conv_problem.h"

namespace weft::cpu {

/// The layout that the caller wants for the image that the pass writes.
MemoryFormat wanted_format(const Conv2dArgs& args);

/// A plan that can run itself. It is made for the team size of the thread that made it, and runs
/// with that.
class ConvPlan : public Conv2dPlan {
 public:
  std::string name;
  const int team = num_threads();
  bool activates = false;  ///< run() also applies args.then; otherwise the caller does it
  virtual void run(const Conv2dArgs& args, void* workspace) const = 0;
};

/// As for matrix products in matmul/matmul.h.
std::vector<Candidate<ConvPlan>> conv_candidates(const Conv2dArgs& args);
std::unique_ptr<ConvPlan> choose_conv(const Conv2dArgs& args);
std::vector<Measured> measure_conv(const Conv2dArgs& args);

/// y += bias, per channel; and grad_bias = sum of grad_y over all dimensions but the channels.
void add_channel_bias(const View& y, const View& bias);
void sum_channels(const View& grad_y, const View& grad_bias);

/// A part of the columns, as wide as one tile. The last part may extend beyond the columns.
struct Stretch {
  int tile;
  std::int64_t first, cols;
  std::vector<std::int64_t> segments;  ///< b_segments (TileArgs), if b has several
};

/// Cuts `total` columns into stretches.
template <class T>
std::vector<Stretch> cut_columns(const HeavyLoops<T>& loops, std::int64_t total) {
  int widest = 0;
  while (widest + 1 < kMostTiles && loops.tiles[widest + 1].run) ++widest;
  std::vector<Stretch> stretches;
  for (std::int64_t at = 0; at < total;) {
    int tile = loops.best_tile;
    if (total - at <= loops.tiles[widest].cols) {  // the narrowest tile for all the rest
      tile = 0;
      while (loops.tiles[tile].cols < total - at) ++tile;
    }
    stretches.push_back({tile, at, loops.tiles[tile].cols, {}});
    at += loops.tiles[tile].cols;
  }
  return stretches;
}

// Add candidates, each from the file of its name.
void add_dnnl_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_gemm_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_single_channel_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_depthwise_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_direct_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_winograd_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);

}  // namespace weft::cpu
