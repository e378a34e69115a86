// Shared by the sources that define candidates.
#pragma once

#include <vector>

#include "weft/core/base/dtype.h"
#include "weft/kernels/cpu/heavy.h"
#include "weft/kernels/cpu/simd_heavy.h"

namespace weft::cpu {

/// A matrix product. Its batch is folded into the rows where that is possible.
struct MatmulProblem {
  DType dtype = DType::f32;    // of a and b
  DType y_dtype = DType::f32;  // the same, or f32 where that is bf16
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  std::int64_t a_batch = 0, a_m = 0, a_k = 0;  // strides in elements
  std::int64_t b_batch = 0, b_k = 0, b_n = 0;
  bool bias = false;
  bool accumulate = false;

  explicit MatmulProblem(const MatmulArgs& args);
  /// "a [1,32,64] strides [0,64,1], b [1,64,8] strides [0,8,1], f32", or ", bf16 to f32"
  std::string text() const;
};

/// A convolution between a big image [N,C,H,W] and a small image [N,K,Ho,Wo] through weights
/// [K,C/groups,R,S]. In a transposed convolution x is the small image, else the big one.
struct ConvProblem {
  /// gather: big, weights -> small. scatter: small, weights -> big. weights: both -> weights.
  enum class Kind { gather, scatter, weights };
  Kind kind = Kind::gather;
  DType dtype = DType::f32;
  bool transposed = false;
  std::int64_t images = 0, groups = 1, c = 0, k = 0, r = 0, s = 0;
  std::int64_t h = 0, w = 0, ho = 0, wo = 0;
  std::array<std::int64_t, 2> stride{}, padding{}, dilation{};
  bool bias = false;  ///< forward: added to the output; weights: its gradient is wanted

  explicit ConvProblem(const Conv2dArgs& args);
  std::string text() const;

  static const View& big(const Conv2dArgs& args) {
    return args.params.transposed ? args.y : args.x;
  }
  static const View& small(const Conv2dArgs& args) {
    return args.params.transposed ? args.x : args.y;
  }
};

/// The layout that the caller would like for the image that the pass writes.
MemoryFormat wanted_format(const Conv2dArgs& args);

/// Whether `view` [N,C,H,W] is dense in `format`. With one channel or one pixel, both may hold.
bool is_format(const View& view, MemoryFormat format);
Strides format_strides(const Shape& shape, MemoryFormat format);

/// A part of the columns, as wide as one tile. The last of them may reach beyond the columns.
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
    if (total - at <=
        loops.tiles[widest].cols) {  // one tile takes the rest: the narrowest that does
      tile = 0;
      while (loops.tiles[tile].cols < total - at) ++tile;
    }
    stretches.push_back({tile, at, loops.tiles[tile].cols, {}});
    at += loops.tiles[tile].cols;
  }
  return stretches;
}

/// y += bias, per channel; and grad_bias = sum of grad_y over all dimensions but the channels.
void add_channel_bias(const View& y, const View& bias);
void sum_channels(const View& grad_y, const View& grad_bias);

/// "oneDNN 2.6.0 isa 15": the version and the instruction set that oneDNN may use.
std::string dnnl_name();
// Whether the process is ending and oneDNN's static objects may be destroyed: its plans must not
// run.
bool dnnl_ended();
// Add oneDNN's candidates to `to`; none in a build without it (no_dnnl.cc).
void add_dnnl_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to);
void add_dnnl_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
// Add candidates of weft's own loops.
void add_plain_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to);
void add_plain_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_single_channel_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_direct_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_winograd_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);

}  // namespace weft::cpu
