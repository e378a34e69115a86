// Convolutions where the big image has one channel (grey pictures, a network's first layer or a
// decoder's last), stride 1. One channel does not fill a vector, so here the lanes are pixels.
//
// Let shifted[s] be the big image, row after row, without the columns that tap column s never
// reads. Then for each tap (r, s) all pixels of the small image are one run of P = Ho x Wo values:
//   forward:          small[k][P] = sum over (r,s) of w[k][r,s] * shifted[s][r rows further, P]
//   backward_weights: w[k][r,s]   = small[k][P] . shifted[s][r rows further, P]
//   backward_data:    products[r,s][P] = sum over k of w[k][r,s] * small[k][P], then added to the
//                     big image
#include <algorithm>
#include <cstring>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/activation.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/loops/tiles.h"

namespace weft::cpu {

namespace {

template <class T>
class SingleChannelConv final : public ConvPlan {
 public:
  static bool fits(const ConvProblem& p) {
    // All data of one image should stay in the L2 cache.
    return p.c == 1 && p.groups == 1 && p.stride[0] == 1 && p.stride[1] == 1 && p.images > 0 &&
           p.ho > 0 && p.wo > 0 &&
           std::max(p.k, p.r * p.s) * p.ho * p.wo * std::int64_t{sizeof(T)} <= (512 << 10);
  }

  explicit SingleChannelConv(const Conv2dArgs& args) : p_(args) {
    activates = true;
    output_format = wanted_format(args);
    rows_ = p_.h + 2 * p_.padding[0];
    width_ = p_.w + 2 * p_.padding[1];
    pixels_ = p_.ho * p_.wo;
    taps_ = p_.r * p_.s;
    tile_ = pick_tile(p_.writes_small() ? p_.k : taps_);
    const std::int64_t cols = loops_.tiles[tile_].cols;
    run_ = (pixels_ + cols - 1) / cols * cols;  // pixels, in whole tiles
    // Tiles read beyond the last pixel; those values are not used, but must be in the workspace.
    shifted_step_ = rows_ * p_.wo + run_ - pixels_;
    parts_ = std::min<std::int64_t>(num_threads(), p_.images);
    const std::int64_t parts[] = {
        p_.writes_big() ? rows_ * width_ : p_.s * shifted_step_,  // the big image
        p_.k * run_,                         // the small one, channel by channel
        p_.writes_big() ? taps_ * run_ : 0,  // products
        p_.writes_weights() ? (p_.k * taps_ + p_.k) * loops_.lanes : 0,  // sums, bias sums
    };
    std::int64_t at = 0;
    for (int i = 0; i < 4; ++i) {
      at_[i] = at;
      at += (parts[i] + 15) / 16 * 16;
    }
    part_elements_ = at;
    workspace_bytes = std::size_t(parts_ * part_elements_) * sizeof(T);
    for (std::int64_t i = 0; i < kMostTileRows; ++i) a_rows_[i] = p_.writes_small() ? i * taps_ : i;
    for (std::int64_t r = 0; r < p_.r; ++r) {
      a_segments_.push_back(r * p_.s);
      b_segments_.push_back(r * p_.dilation[0] * p_.wo);
    }
  }

  void run(const Conv2dArgs& args, void* workspace) const override {
    T* const space = static_cast<T*>(workspace);
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        T* const mine = space + part * part_elements_;
        // Clears the workspace: denormals or NaN in the padding lanes would be slow.
        std::memset(mine, 0, std::size_t(part_elements_) * sizeof(T));
        const std::int64_t last = p_.images * (part + 1) / parts_;
        for (std::int64_t n = p_.images * part / parts_; n < last; ++n) {
          switch (p_.pass) {
            case ConvPass::forward: forward(args, n, mine); break;
            case ConvPass::backward_data: backward_data(args, n, mine); break;
            case ConvPass::backward_weights: backward_weights(args, n, mine); break;
          }
        }
      }
    });
    if (p_.writes_weights()) finish_weights(args, space);
  }

 private:
  // The tile with the least waste for `rows` x pixels. Tiles of one vector are left out: they
  // cannot keep the multiplier busy.
  int pick_tile(std::int64_t rows) const {
    int best = loops_.best_tile;
    double best_cost = 0;
    for (int i = 0; i < kMostTiles && loops_.tiles[i].run; ++i) {
      const auto& tile = loops_.tiles[i];
      if (tile.cols < 2 * loops_.lanes) continue;
      const double cost = double((rows + tile.rows - 1) / tile.rows * tile.rows) *
                          double((pixels_ + tile.cols - 1) / tile.cols * tile.cols) *
                          (tile.cols == 2 * loops_.lanes ? 1.15 : 1.0);
      if (best_cost == 0 || cost < best_cost) {
        best = i;
        best_cost = cost;
      }
    }
    return best;
  }

  T* shifted(T* mine) const { return mine + at_[0]; }
  T* channels(T* mine) const { return mine + at_[1]; }
  T* products(T* mine) const { return mine + at_[2]; }
  T* sums(T* mine) const { return mine + at_[3]; }

  // Reads the big image into shifted[s]; its padding are the zeros already there.
  void read_big(const Conv2dArgs& args, std::int64_t n, T* mine) const {
    const View& view = big_of(args);
    const T* const image = view.as<const T>() + n * view.strides[0];
    for (std::int64_t s = 0; s < p_.s; ++s) {
      const std::int64_t shift = s * p_.dilation[1] - p_.padding[1];
      const std::int64_t first = std::max<std::int64_t>(0, -shift);
      const std::int64_t count = std::min(p_.wo, p_.w - shift) - first;
      if (count <= 0) continue;
      loops_.copy_rows(p_.h, count,
                       shifted(mine) + s * shifted_step_ + p_.padding[0] * p_.wo + first, p_.wo,
                       image + shift + first, p_.w);
    }
  }

  // Reads the small image, channel by channel at a distance of run_.
  void read_small(const Conv2dArgs& args, std::int64_t n, T* mine) const {
    const View& view = small_of(args);
    const T* const image = view.as<const T>() + n * view.strides[0];
    if (is_format(view, MemoryFormat::nchw)) {
      loops_.copy_rows(p_.k, pixels_, channels(mine), run_, image, pixels_);
    } else {
      loops_.transpose(pixels_, p_.k, channels(mine), run_, image, p_.k);
    }
  }

  // c[rows][run_] = a x b for the tile arguments set so far.
  void multiply(TileArgs<T> tile, const T* a, std::int64_t a_row, std::int64_t rows, const T* b,
                T* c) const {
    const MicroTile<T>& kernel = loops_.tiles[tile_];
    tile.a_rows = a_rows_;
    tile.ldc = run_;
    for (std::int64_t i = 0; i < rows; i += kernel.rows) {
      tile.rows = std::min<std::int64_t>(kernel.rows, rows - i);
      tile.a = a + i * a_row;
      for (std::int64_t j = 0; j < run_; j += kernel.cols) {
        tile.b = b + j;
        tile.c = c + i * run_ + j;
        kernel.run(tile);
      }
    }
  }

  void forward(const Conv2dArgs& args, std::int64_t n, T* mine) const {
    read_big(args, n, mine);
    T* const result = channels(mine);
    TileArgs<T> tile;
    tile.segments = p_.r;
    tile.steps = p_.s;
    tile.a_segments = a_segments_.data();
    tile.a_step = 1;
    tile.b_segments = b_segments_.data();
    tile.b_step = shifted_step_;
    if (p_.bias) {
      const T* const bias = args.bias.as<const T>();
      for (std::int64_t k = 0; k < p_.k; ++k) std::fill_n(result + k * run_, run_, bias[k]);
      tile.accumulate = true;
    }
    multiply(tile, args.w.as<const T>(), taps_, p_.k, shifted(mine), result);
    activate(args.then, p_.dtype, p_.k * run_, result);
    const View& view = small_of(args);
    T* const image = view.as<T>() + n * view.strides[0];
    if (output_format == MemoryFormat::nchw) {
      loops_.copy_rows(p_.k, pixels_, image, pixels_, result, run_);
    } else {
      loops_.transpose(p_.k, pixels_, image, p_.k, result, run_);
    }
  }

  void backward_data(const Conv2dArgs& args, std::int64_t n, T* mine) const {
    read_small(args, n, mine);
    TileArgs<T> tile;
    tile.steps = p_.k;
    tile.a_segments = tile.b_segments = kOneSegment;
    tile.a_step = taps_;
    tile.b_step = run_;
    multiply(tile, args.w.as<const T>(), 1, taps_, channels(mine), products(mine));
    const View& view = big_of(args);
    T* const image = view.as<T>() + n * view.strides[0];
    const T start = p_.bias ? *args.bias.as<const T>() : T(0);
    // Without padding the products are added to the image directly.
    const bool padded = p_.padding[0] != 0 || p_.padding[1] != 0;
    T* const plane = padded ? mine + at_[0] : image;
    std::fill_n(plane, rows_ * width_, start);
    for (std::int64_t r = 0; r < p_.r; ++r) {
      for (std::int64_t s = 0; s < p_.s; ++s) {
        loops_.add_rows(p_.ho, p_.wo, plane + r * p_.dilation[0] * width_ + s * p_.dilation[1],
                        width_, products(mine) + (r * p_.s + s) * run_, p_.wo);
      }
    }
    activate(args.then, p_.dtype, rows_ * width_, plane);
    if (!padded) return;
    loops_.copy_rows(p_.h, p_.w, image, p_.w, plane + p_.padding[0] * width_ + p_.padding[1],
                     width_);
  }

  // Calls f(first k, number of k, r, first s, number of s, sums) for the blocks of dot().
  template <class F>
  void for_each_dot(T* all, const F& f) const {
    for (std::int64_t k = 0; k < p_.k; k += 8) {
      const std::int64_t ks = std::min<std::int64_t>(8, p_.k - k);
      for (std::int64_t r = 0; r < p_.r; ++r) {
        for (std::int64_t s = 0; s < p_.s; s += 3) {
          const std::int64_t ss = std::min<std::int64_t>(3, p_.s - s);
          f(k, ks, r, s, ss, all);
          all += ks * ss * loops_.lanes;
        }
      }
    }
  }

  void backward_weights(const Conv2dArgs& args, std::int64_t n, T* mine) const {
    read_big(args, n, mine);
    read_small(args, n, mine);
    for_each_dot(sums(mine), [&](std::int64_t k, std::int64_t ks, std::int64_t r, std::int64_t s,
                                 std::int64_t ss, T* to) {
      loops_.dot(ks, ss, pixels_, channels(mine) + k * run_, run_,
                 shifted(mine) + s * shifted_step_ + b_segments_[r], shifted_step_, to);
    });
    if (!p_.bias || p_.transposed) return;
    T* const bias = sums(mine) + p_.k * taps_ * loops_.lanes;
    for (std::int64_t k = 0; k < p_.k; ++k) {
      const T* const row = channels(mine) + k * run_;
      const std::int64_t whole = pixels_ / loops_.lanes;
      loops_.sum_rows(whole, loops_.lanes, row, loops_.lanes, bias + k * loops_.lanes);
      for (std::int64_t i = whole * loops_.lanes; i < pixels_; ++i)
        bias[k * loops_.lanes] += row[i];
    }
  }

  void finish_weights(const Conv2dArgs& args, T* space) const {
    const auto total = [&](std::int64_t at) {
      T sum = 0;
      for (std::int64_t part = 0; part < parts_; ++part) {
        const T* const lanes = sums(space + part * part_elements_) + at;
        for (int l = 0; l < loops_.lanes; ++l) sum += lanes[l];
      }
      return sum;
    };
    T* const w = args.w.as<T>();
    T* const first = sums(space);
    for_each_dot(first, [&](std::int64_t k, std::int64_t ks, std::int64_t r, std::int64_t s,
                            std::int64_t ss, const T* block) {
      for (std::int64_t i = 0; i < ks; ++i) {
        for (std::int64_t j = 0; j < ss; ++j) {
          w[(k + i) * taps_ + r * p_.s + s + j] =
              total(block - first + (i * ss + j) * loops_.lanes);
        }
      }
    });
    if (!p_.bias) return;
    if (p_.transposed) return sum_channels(args.y, args.bias);
    T* const bias = args.bias.as<T>();
    for (std::int64_t k = 0; k < p_.k; ++k) bias[k] = total((p_.k * taps_ + k) * loops_.lanes);
  }

  ConvProblem p_;
  const HeavyLoops<T>& loops_ = heavy_loops<T>();
  std::int64_t rows_ = 0, width_ = 0;  // of the big image with its padding
  std::int64_t pixels_ = 0, taps_ = 0;
  int tile_ = 0;
  std::int64_t run_ = 0, shifted_step_ = 0;
  std::int64_t parts_ = 1, part_elements_ = 0;
  std::int64_t at_[4] = {};  // the offsets of a workspace's parts
  std::int64_t a_rows_[kMostTileRows] = {};
  std::vector<std::int64_t> a_segments_, b_segments_;
};

}  // namespace

void add_single_channel_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to) {
  const ConvProblem problem(args);
  const auto add = [&]<class T>() {
    if (!SingleChannelConv<T>::fits(problem)) return;
    to.push_back({"single", [args] { return std::make_unique<SingleChannelConv<T>>(args); }});
  };
  if (problem.dtype == DType::f32) add.template operator()<float>();
  if (problem.dtype == DType::f64) add.template operator()<double>();
}

}  // namespace weft::cpu
