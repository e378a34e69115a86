// Winograd's convolutions: f32, channels last, whole vectors of channels. 3x3 and 5x5 taps with
// stride 1, and 4x4 taps with stride 2 as the sum over four phases, each of which meets every
// second pixel with 2x2 taps. With dilation d (and stride 1) a sum has every d-th pixel only: the
// image is d x d interleaved images, and each is convolved by itself, without dilation.
//
//   forward: V = inputs of the big image, U = weights;        M[p] = V[p] U[p] for each point p
//            small image = outputs of M
//   backward_data: the same from the small image to the big one, taps reversed, phase by phase
//   backward_weights: V as in forward, M = gradients of the small image's tiles;
//            U[p] = V[p]^T M[p]
//
// They multiply 2.5 to 4 times less often than the definition. Their rounding errors are relative
// to the largest values of a tile, and about 2 to 5 times those of the definition if all values are
// of similar size. So they are only candidates if convolutions need not be "ieee"
// (core/runtime/float32_precision.h).
#include <algorithm>
#include <span>
#include <vector>

#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cpu/activation.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/loops/winograd.h"

namespace weft::cpu {

namespace {

constexpr std::size_t kMostWorkspace = std::size_t{1} << 30;

/// The tiles of one phase along one axis: tile t of interleaved image `residue` reads the source
/// pixels source_first + q source_step with q = (t m + i) dilation + residue, and writes the target
/// pixels target_first + q target_step with q = (t m + j) dilation + residue below `count`.
struct Axis {
  std::int64_t source_first, source_step, source_size;
  std::int64_t target_first, target_step, count;
  std::int64_t dilation;

  /// How many interleaved images have pixels.
  std::int64_t residues() const { return std::min(dilation, count); }
};

struct Phase {
  std::int64_t row, col;  ///< of the first tap; the others follow at the stride
  Axis h, w;
};

class WinogradConv final : public ConvPlan {
 public:
  /// Null if there is none.
  static const WinogradForm* form_for(const ConvProblem& p) {
    if (p.dtype != DType::f32 || p.groups != 1 || p.r != p.s || p.stride[0] != p.stride[1] ||
        p.c % kBlock != 0 || p.k % kBlock != 0 || p.images * p.ho * p.wo == 0) {
      return nullptr;
    }
    const bool dilated = p.dilation[0] != 1 || p.dilation[1] != 1;
    const bool phases = p.stride[0] == 2 && p.r == 4 && !dilated;
    if (!phases && p.stride[0] != 1) return nullptr;
    for (const WinogradForm& form : winograd_loops().forms) {
      if (form.taps * p.stride[0] == p.r) return &form;
    }
    return nullptr;
  }

  static bool fits(const Conv2dArgs& args) {
    const auto last = [](const View& view) { return is_format(view, MemoryFormat::nhwc); };
    return thread_state().allow_tf32_conv && last(args.x) && last(args.y);
  }

  WinogradConv(const Conv2dArgs& args, const WinogradForm& form)
      : p_(args), form_(form), points_(form.inputs * form.inputs), parts_(num_threads()) {
    activates = true;
    output_format = MemoryFormat::nhwc;
    for (std::int64_t row = 0; row < p_.stride[0]; ++row) {
      for (std::int64_t col = 0; col < p_.stride[1]; ++col) {
        phases_.push_back({row, col, axis(row, p_.padding[0], p_.dilation[0], p_.h, p_.ho),
                           axis(col, p_.padding[1], p_.dilation[1], p_.w, p_.wo)});
      }
    }
    const bool to_big = p_.writes_big();
    depth_ = to_big ? p_.k : std::int64_t(phases_.size()) * p_.c;
    cols_ = to_big ? p_.c : p_.k;
    columns_ = cut_columns<float>(loops_, cols_);
    std::int64_t tiles = 0, widest = 0;
    for (const Phase& phase : phases_) tiles = std::max(tiles, tiles_of(phase));
    for (const Stretch& stretch : columns_) widest = std::max(widest, stretch.cols);

    // By columns if U needs more memory than V and M. A sum over tiles needs a U and a tile per
    // part: if it is not by columns, there are at least 8 tiles per part, since cols_ and depth_
    // are at least 16.
    const std::int64_t sums = p_.writes_weights() ? parts_ : 1;
    by_columns_ = sums * cols_ * depth_ > tiles * (cols_ + depth_);
    chunk_ = tiles;
    if (!by_columns_) {
      const std::int64_t of_tile = points_ * (depth_ + cols_) * std::int64_t(sizeof(float));
      const std::int64_t most = p_.writes_weights() ? kWeightTiles : kChunkBytes / of_tile;
      chunk_ = std::clamp<std::int64_t>(most, 1, (tiles + parts_ - 1) / parts_);
      chunk_ = std::max(chunk_, std::min(kLeastTiles, tiles));
    }
    // Distances that are not powers of 2: these would use the same sets of a cache.
    v_row_ = depth_ + kAlign;
    v_point_ = chunk_ * v_row_ + kAlign;
    m_row_ = p_.writes_weights() ? cols_ : cols_ + kAlign;
    m_point_ = chunk_ * m_row_ + kAlign;
    // The workspace: V and M, U, a pixel of zeros, and for each part a pixel for results beyond the
    // edge of the target. Each part has its own V and M (and its own U if it sums into U); by
    // columns, each part has its own stretch of U.
    tiles_elements_ = points_ * (v_point_ + m_point_);
    const std::int64_t vms = by_columns_ ? 1 : parts_;
    u_elements_ = points_ * depth_ * (by_columns_ ? widest : cols_) + kAlign;
    const std::int64_t us = by_columns_ || p_.writes_weights() ? parts_ : 1;
    u_at_ = vms * tiles_elements_;
    zeros_at_ = u_at_ + us * u_elements_;
    pixel_ = std::max(p_.c, p_.k);
    workspace_bytes = std::size_t(zeros_at_ + (1 + parts_) * pixel_) * sizeof(float);
  }

  void run(const Conv2dArgs& args, void* workspace) const override {
    float* const space = static_cast<float*>(workspace);
    std::fill_n(space + zeros_at_, pixel_, 0.0F);
    if (p_.writes_weights()) {
      by_columns_ ? weights_by_columns(args, space) : weights_by_tiles(args, space);
      if (p_.bias) sum_channels(args.y, args.bias);
      return;
    }
    const bool to_big = p_.writes_big();
    Images images{args.w.as<const float>(), p_.bias ? args.bias.as<const float>() : nullptr,
                  to_big ? small_of(args) : big_of(args), to_big ? big_of(args) : small_of(args),
                  args.then};
    // One phase after the other if they write different pixels, all together if their results are
    // added.
    const std::size_t at_once = to_big ? 1 : phases_.size();
    for (std::size_t i = 0; i < phases_.size(); i += at_once) {
      const std::span<const Phase> phases(&phases_[i], at_once);
      by_columns_ ? products_by_columns(images, phases, space)
                  : products_by_tiles(images, phases, space);
    }
  }

 private:
  static constexpr std::int64_t kAlign = 16;  // elements: a cache line
  static constexpr std::int64_t kBlock = 16;  // channels: vectors of any width
  /// Bytes of V and M of a chunk, which fit into an L2 cache.
  static constexpr std::int64_t kChunkBytes = 1 << 20;
  /// So few tiles that the part of M that is read repeatedly stays in the L1 cache.
  static constexpr std::int64_t kWeightTiles = 96;
  static constexpr std::int64_t kLeastTiles = 24;
  /// Steps of a sum before it is written: few, so that the reused part of U stays in the L1 cache.
  static constexpr std::int64_t kSteps = 256;
  static constexpr int kMostPixels = kWinogradSide * kWinogradSide;

  /// The other factors of the products, and the images on both sides.
  struct Images {
    const float* weights;
    const float* bias;
    const View& source;
    const View& target;
    Activation then;
  };

  Axis axis(std::int64_t tap, std::int64_t padding, std::int64_t dilation, std::int64_t big,
            std::int64_t small) const {
    const std::int64_t stride = p_.stride[0];
    if (!p_.writes_big()) return {tap - padding, stride, big, 0, 1, small, dilation};
    // Big pixels y with y + padding = tap (mod stride) read the small pixels z - u dilation, with
    // z = (y + padding - tap) / stride and u = 0 ... taps - 1.
    const std::int64_t first = ((tap - padding) % stride + stride) % stride;
    const std::int64_t z = (first + padding - tap) / stride;
    const std::int64_t count = first < big ? (big - first + stride - 1) / stride : 0;
    return {z - (form_.taps - 1) * dilation, 1, small, first, stride, count, dilation};
  }

  /// Tiles of one of the interleaved images, the first of which is the largest.
  std::int64_t along(const Axis& axis) const {
    const std::int64_t pixels = (axis.count + axis.dilation - 1) / axis.dilation;
    return (pixels + form_.outputs - 1) / form_.outputs;
  }
  std::int64_t tiles_of(const Phase& phase) const {
    return p_.images * phase.h.residues() * phase.w.residues() * along(phase.h) * along(phase.w);
  }

  /// Calls f(part, begin, end) for the parts of [0, n).
  template <class F>
  void share(std::int64_t n, const F& f) const {
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        f(part, n * part / parts_, n * (part + 1) / parts_);
      }
    });
  }

  /// Calls f(part, first, count) for each part's tiles, chunk by chunk.
  template <class F>
  void share_chunks(std::int64_t tiles, const F& f) const {
    share(tiles, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end; first += chunk_) {
        f(part, first, std::min(chunk_, end - first));
      }
    });
  }

  // Many tiles: each part computes its own from input to output, while they are in its cache.
  void products_by_tiles(const Images& images, std::span<const Phase> phases, float* space) const {
    float* const u = space + u_at_;
    parallel_for(cols_ / width_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Stretch& stretch = stretch_of(i * width_);
        pack_weights(images.weights, phases, stretch, i * width_, u_of(u, stretch));
      }
    });
    share_chunks(tiles_of(phases[0]),
                 [&](std::int64_t part, std::int64_t first, std::int64_t count) {
                   float* const v = space + part * tiles_elements_;
                   float* const m = v + points_ * v_point_;
                   inputs(images.source, phases, first, count, space, v);
                   for (const Stretch& stretch : columns_)
                     multiply(count, v, u_of(u, stretch), stretch, m);
                   outputs(images, phases[0], first, count, m, nowhere(space, part));
                 });
  }

  // Many weights: each part uses its own for all tiles, while they are in its cache.
  void products_by_columns(const Images& images, std::span<const Phase> phases,
                           float* space) const {
    const std::int64_t tiles = tiles_of(phases[0]);
    float* const v = space;
    float* const m = v + points_ * v_point_;
    share(tiles, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      inputs(images.source, phases, begin, end - begin, space, v + begin * v_row_);
    });
    share(std::int64_t(columns_.size()),
          [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
            float* const u = space + u_at_ + part * u_elements_;
            for (std::int64_t i = begin; i < end; ++i) {
              const Stretch& stretch = columns_[i];
              for (std::int64_t col = 0; col < stretch.cols; col += width_) {
                pack_weights(images.weights, phases, stretch, stretch.first + col, u);
              }
              multiply(tiles, v, u, stretch, m);
            }
          });
    share(tiles, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      outputs(images, phases[0], begin, end - begin, m + begin * m_row_, nowhere(space, part));
    });
  }

  void weights_by_tiles(const Conv2dArgs& args, float* space) const {
    const std::int64_t tiles = tiles_of(phases_[0]);
    float* const us = space + u_at_;
    share_chunks(tiles, [&](std::int64_t part, std::int64_t first, std::int64_t count) {
      float* const v = space + part * tiles_elements_;
      float* const m = v + points_ * v_point_;
      float* const u = us + part * u_elements_;
      const bool add = first != tiles * part / parts_;
      inputs(big_of(args), phases_, first, count, space, v);
      grad_outputs(small_of(args), first, count, space, m);
      for (const Stretch& stretch : columns_) {
        multiply_transposed(count, add, v, m, stretch, u_of(u, stretch));
      }
    });
    parallel_for(cols_ / width_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Stretch& stretch = stretch_of(i * width_);
        const std::int64_t at = i * width_ - stretch.first;
        for (std::int64_t part = 1; part < parts_; ++part) {
          loops_.add_rows(points_ * depth_, width_, u_of(us, stretch) + at, stretch.cols,
                          u_of(us + part * u_elements_, stretch) + at, stretch.cols);
        }
        unpack_weights(u_of(us, stretch), stretch, i * width_, args.w.as<float>());
      }
    });
  }

  void weights_by_columns(const Conv2dArgs& args, float* space) const {
    const std::int64_t tiles = tiles_of(phases_[0]);
    float* const v = space;
    float* const m = v + points_ * v_point_;
    share(tiles, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      inputs(big_of(args), phases_, begin, end - begin, space, v + begin * v_row_);
      grad_outputs(small_of(args), begin, end - begin, space, m, begin);
    });
    share(std::int64_t(columns_.size()),
          [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
            float* const u = space + u_at_ + part * u_elements_;
            for (std::int64_t i = begin; i < end; ++i) {
              const Stretch& stretch = columns_[i];
              multiply_transposed(tiles, false, v, m, stretch, u);
              for (std::int64_t col = 0; col < stretch.cols; col += width_) {
                unpack_weights(u, stretch, stretch.first + col, args.w.as<float>());
              }
            }
          });
  }

  /// Calls f(i, offset) for each of a tile's side x side pixels that is inside the source or the
  /// target.
  template <class F>
  void for_each_pixel(const Phase& phase, std::int64_t tile, int side, bool source,
                      const Strides& strides, const F& f) const {
    const std::int64_t across = along(phase.w), down = along(phase.h);
    const std::int64_t rows = phase.h.residues(), cols = phase.w.residues();
    const std::int64_t interleaved = tile / (across * down);
    const auto first = [&](const Axis& axis, std::int64_t tile, std::int64_t residue) {
      return tile * form_.outputs * axis.dilation + residue;
    };
    const std::int64_t x0 = first(phase.w, tile % across, interleaved % cols);
    const std::int64_t y0 = first(phase.h, tile / across % down, interleaved / cols % rows);
    const std::int64_t image = interleaved / (rows * cols) * strides[0];
    const auto at = [source](const Axis& axis, std::int64_t first, int i) -> std::int64_t {
      const std::int64_t q = first + i * axis.dilation;
      if (!source) return q < axis.count ? axis.target_first + q * axis.target_step : -1;
      const std::int64_t pixel = axis.source_first + q * axis.source_step;
      return pixel < axis.source_size ? pixel : -1;
    };
    for (int i = 0; i < side; ++i) {
      const std::int64_t y = at(phase.h, y0, i);
      if (y < 0) continue;
      for (int j = 0; j < side; ++j) {
        const std::int64_t x = at(phase.w, x0, j);
        if (x >= 0) f(i * side + j, image + y * strides[2] + x * strides[3]);
      }
    }
  }

  /// Computes V[p][tile][phase, channel] of `count` tiles.
  void inputs(const View& source, std::span<const Phase> phases, std::int64_t first,
              std::int64_t count, const float* space, float* v) const {
    const std::int64_t channels = source.shape[1];
    const float* const data = source.as<const float>();
    const float* from[kMostPixels];
    float* to[kMostPixels];
    for (std::int64_t t = 0; t < count; ++t) {
      float* row = v + t * v_row_;
      for (const Phase& phase : phases) {
        std::fill_n(from, points_, space + zeros_at_);
        for_each_pixel(phase, first + t, form_.inputs, true, source.strides,
                       [&](int i, std::int64_t offset) { from[i] = data + offset; });
        for (std::int64_t p = 0; p < points_; ++p) to[p] = row + p * v_point_;
        form_.input(channels, from, nullptr, to);
        row += channels;
      }
    }
  }

  void outputs(const Images& images, const Phase& phase, std::int64_t first, std::int64_t count,
               const float* m, float* nowhere) const {
    float* const data = images.target.as<float>();
    const float* from[kMostPixels];
    float* to[kMostPixels];
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t p = 0; p < points_; ++p) from[p] = m + p * m_point_ + t * m_row_;
      std::fill_n(to, form_.outputs * form_.outputs, nowhere);
      for_each_pixel(phase, first + t, form_.outputs, false, images.target.strides,
                     [&](int i, std::int64_t offset) { to[i] = data + offset; });
      form_.output(cols_, from, images.bias, to);
      if (images.then == Activation::none) continue;
      for_each_pixel(phase, first + t, form_.outputs, false, images.target.strides,
                     [&](int i, std::int64_t) { activate(images.then, p_.dtype, cols_, to[i]); });
    }
  }

  /// Computes M[p][stretch][tile][column] of `count` tiles, from number `at` on.
  void grad_outputs(const View& grad, std::int64_t first, std::int64_t count, const float* space,
                    float* m, std::int64_t at = 0) const {
    const float* const data = grad.as<const float>();
    const float* from[kMostPixels];
    float* to[kMostPixels];
    for (std::int64_t t = 0; t < count; ++t) {
      for (const Stretch& stretch : columns_) {
        std::fill_n(from, form_.outputs * form_.outputs, space + zeros_at_);
        for_each_pixel(
            phases_[0], first + t, form_.outputs, false, grad.strides,
            [&](int i, std::int64_t offset) { from[i] = data + offset + stretch.first; });
        float* const row = m + stretch.first * chunk_ + (at + t) * stretch.cols;
        for (std::int64_t p = 0; p < points_; ++p) to[p] = row + p * m_point_;
        form_.grad_output(stretch.cols, from, nullptr, to);
      }
    }
  }

  /// The beginning of a stretch, [p][step][column], in a whole U.
  float* u_of(float* u, const Stretch& stretch) const {
    return u + points_ * depth_ * stretch.first;
  }

  float* nowhere(float* space, std::int64_t part) const {
    return space + zeros_at_ + (1 + part) * pixel_;
  }

  const Stretch& stretch_of(std::int64_t col) const {
    std::size_t i = columns_.size() - 1;
    while (columns_[i].first > col) --i;
    return columns_[i];
  }

  void multiply(std::int64_t count, const float* v, const float* u, const Stretch& stretch,
                float* m) const {
    const MicroTile<float>& kernel = loops_.tiles[stretch.tile];
    std::int64_t rows[kMostTileRows];
    for (std::int64_t i = 0; i < kMostTileRows; ++i) rows[i] = i * v_row_;
    TileArgs<float> tile;
    tile.a_rows = rows;
    tile.a_segments = tile.b_segments = kOneSegment;
    tile.a_step = 1;
    tile.b_step = stretch.cols;
    tile.ldc = m_row_;
    for (std::int64_t p = 0; p < points_; ++p) {
      for (std::int64_t d = 0; d < depth_; d += kSteps) {
        tile.steps = std::min(kSteps, depth_ - d);
        tile.b = u + (p * depth_ + d) * stretch.cols;
        tile.accumulate = d > 0;
        for (std::int64_t t = 0; t < count; t += kernel.rows) {
          tile.rows = std::min<std::int64_t>(kernel.rows, count - t);
          tile.a = v + p * v_point_ + t * v_row_ + d;
          tile.c = m + p * m_point_ + t * m_row_ + stretch.first;
          kernel.run(tile);
        }
      }
    }
  }

  void multiply_transposed(std::int64_t count, bool add, const float* v, const float* m,
                           const Stretch& stretch, float* u) const {
    const MicroTile<float>& kernel = loops_.tiles[stretch.tile];
    std::int64_t rows[kMostTileRows];
    for (std::int64_t i = 0; i < kMostTileRows; ++i) rows[i] = i;
    TileArgs<float> tile;
    tile.a_rows = rows;
    tile.a_segments = tile.b_segments = kOneSegment;
    tile.a_step = v_row_;
    tile.b_step = stretch.cols;
    tile.ldc = stretch.cols;
    for (std::int64_t p = 0; p < points_; ++p) {
      for (std::int64_t t = 0; t < count; t += kWeightTiles) {
        tile.steps = std::min(kWeightTiles, count - t);
        tile.b = m + p * m_point_ + stretch.first * chunk_ + t * stretch.cols;
        tile.accumulate = add || t > 0;
        for (std::int64_t d = 0; d < depth_; d += kernel.rows) {
          tile.rows = std::min<std::int64_t>(kernel.rows, depth_ - d);
          tile.a = v + p * v_point_ + t * v_row_ + d;
          tile.c = u + (p * depth_ + d) * stretch.cols;
          kernel.run(tile);
        }
      }
    }
  }

  /// The position of tap (y, x) of a phase among the r x s taps of a weight.
  std::int64_t tap_at(const Phase& phase, std::int64_t y, std::int64_t x) const {
    return (y * p_.stride[0] + phase.row) * p_.s + x * p_.stride[1] + phase.col;
  }

  /// Computes U[p][step][column] of a vector of columns from `col` on; u is that of its stretch.
  void pack_weights(const float* w, std::span<const Phase> phases, const Stretch& stretch,
                    std::int64_t col, float* u) const {
    const int side = form_.taps;
    const std::int64_t taps = p_.r * p_.s;
    const bool to_big = p_.writes_big();
    const std::int64_t steps = to_big ? p_.k : p_.c;
    // [step, tap][column], as far as it takes to read long runs of memory.
    const std::int64_t at_once = to_big ? 1 : kBlock;
    float turned[kBlock * kMostTaps * kBlock];
    const float* from[kMostPixels];
    float* to[kMostPixels];
    for (std::int64_t step = 0; step < steps; ++step) {
      if (to_big) {
        loops_.transpose(width_, taps, turned, width_, w + (step * p_.c + col) * taps, taps);
      } else if (step % at_once == 0) {
        loops_.transpose(width_, kBlock * taps, turned, width_, w + (col * p_.c + step) * taps,
                         p_.c * taps);
      }
      const float* const mine = turned + step % at_once * taps * width_;
      for (std::size_t i = 0; i < phases.size(); ++i) {
        for (int y = 0; y < side; ++y) {
          for (int x = 0; x < side; ++x) {
            const std::int64_t tap =
                to_big ? tap_at(phases[i], side - 1 - y, side - 1 - x) : tap_at(phases[i], y, x);
            from[y * side + x] = mine + tap * width_;
          }
        }
        float* const row =
            u + (std::int64_t(i) * steps + step) * stretch.cols + col - stretch.first;
        for (std::int64_t p = 0; p < points_; ++p) to[p] = row + p * depth_ * stretch.cols;
        form_.weights(width_, from, nullptr, to);
      }
    }
  }

  void unpack_weights(const float* u, const Stretch& stretch, std::int64_t col, float* w) const {
    const int side = form_.taps;
    const std::int64_t taps = p_.r * p_.s;
    float turned[kBlock * kMostTaps * kBlock];  // [channel, tap][column]
    const float* from[kMostPixels];
    float* to[kMostPixels];
    for (std::int64_t c = 0; c < p_.c; ++c) {
      float* const mine = turned + c % kBlock * taps * width_;
      for (std::size_t i = 0; i < phases_.size(); ++i) {
        const float* const row =
            u + (std::int64_t(i) * p_.c + c) * stretch.cols + col - stretch.first;
        for (std::int64_t p = 0; p < points_; ++p) from[p] = row + p * depth_ * stretch.cols;
        for (int y = 0; y < side; ++y) {
          for (int x = 0; x < side; ++x) {
            to[y * side + x] = mine + tap_at(phases_[i], y, x) * width_;
          }
        }
        form_.grad_weights(width_, from, nullptr, to);
      }
      if ((c + 1) % kBlock != 0) continue;
      loops_.transpose(kBlock * taps, width_, w + (col * p_.c + c + 1 - kBlock) * taps, p_.c * taps,
                       turned, width_);
    }
  }

  static constexpr std::int64_t kMostTaps = 25;

  ConvProblem p_;
  const HeavyLoops<float>& loops_ = heavy_loops<float>();
  std::int64_t width_ = loops_.lanes;  ///< of stretches, at least: columns per transform
  const WinogradForm& form_;
  std::int64_t points_, parts_;
  std::vector<Phase> phases_;
  std::int64_t depth_ = 0, cols_ = 0;  ///< of U[p]
  std::vector<Stretch> columns_;
  bool by_columns_ = false;
  std::int64_t chunk_ = 0;  ///< tiles
  std::int64_t v_row_ = 0, v_point_ = 0, m_row_ = 0, m_point_ = 0;
  std::int64_t tiles_elements_ = 0, u_elements_ = 0, u_at_ = 0, zeros_at_ = 0, pixel_ = 0;
};

}  // namespace

void add_winograd_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to) {
  if (!WinogradConv::fits(args)) return;
  const WinogradForm* const form = WinogradConv::form_for(ConvProblem(args));
  if (!form) return;
  to.push_back({"winograd", [args, form]() -> std::unique_ptr<ConvPlan> {
                  auto plan = std::make_unique<WinogradConv>(args, *form);
                  // Other plans need almost no workspace.
                  if (plan->workspace_bytes > kMostWorkspace) return nullptr;
                  return plan;
                }});
}

}  // namespace weft::cpu
