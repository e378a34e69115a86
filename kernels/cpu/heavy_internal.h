// What the sources of candidates share.
#pragma once

#include <vector>

#include "weft/core/dtype.h"
#include "weft/kernels/cpu/heavy.h"
#include "weft/kernels/cpu/simd_heavy.h"

namespace weft::cpu {

/// A product with its batch folded into rows where that is possible.
struct MatmulProblem {
  DType dtype = DType::f32;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  std::int64_t a_batch = 0, a_m = 0, a_k = 0;  // strides in elements
  std::int64_t b_batch = 0, b_k = 0, b_n = 0;
  bool bias = false;
  bool accumulate = false;

  explicit MatmulProblem(const MatmulArgs& args);
  /// "a [1,32,64] b [1,64,8] f32"
  std::string text() const;
};

/// A convolution as one between a big image, [N,C,H,W], and a small one, [N,K,Ho,Wo], through
/// weights [K,C/groups,R,S]: a transposed convolution's x is the small one.
struct ConvProblem {
  /// gather: big, weights -> small. scatter: small, weights -> big. weights: both -> weights.
  enum class Kind { gather, scatter, weights };
  Kind kind = Kind::gather;
  DType dtype = DType::f32;
  bool transposed = false;
  std::int64_t images = 0, groups = 1, c = 0, k = 0, r = 0, s = 0;
  std::int64_t h = 0, w = 0, ho = 0, wo = 0;
  std::array<std::int64_t, 2> stride{}, padding{}, dilation{};
  bool bias = false;  ///< forward: added to the output; weights: the gradient is asked for

  explicit ConvProblem(const Conv2dArgs& args);
  std::string text() const;

  static const View& big(const Conv2dArgs& args) {
    return args.params.transposed ? args.y : args.x;
  }
  static const View& small(const Conv2dArgs& args) {
    return args.params.transposed ? args.x : args.y;
  }
};

/// The layout in which the caller would like the image that the pass writes.
MemoryFormat wanted_format(const Conv2dArgs& args);

/// Whether `view` [N,C,H,W] lies in memory as `format`; both when the order makes no difference.
bool is_format(const View& view, MemoryFormat format);
Strides format_strides(const Shape& shape, MemoryFormat format);

/// `total` columns in stretches one tile each; the last may reach beyond `total`.
struct Stretch {
  int tile;
  std::int64_t first, cols;
  std::vector<std::int64_t> segments;  ///< of b (TileArgs), where there are several
};

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

/// y += bias over channels, and grad_bias = sum of grad_y over all but channels.
void add_channel_bias(const View& y, const View& bias);
void sum_channels(const View& grad_y, const View& grad_bias);

/// "oneDNN 2.6.0 isa 15": its version and the instruction sets it may use.
std::string dnnl_name();
// Whether the process ends and static objects of oneDNN's are gone: its plans no longer run.
bool dnnl_ended();
// oneDNN's candidates; none in a build without it (no_dnnl.cc).
void add_dnnl_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to);
void add_dnnl_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
// Loops of our own.
void add_plain_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to);
void add_plain_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_single_channel_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_direct_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);
void add_winograd_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to);

}  // namespace weft::cpu
