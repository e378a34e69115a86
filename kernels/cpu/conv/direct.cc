// Convolutions whose tiles read the windows directly from the image: channels last, few channels,
// f32 and f64. Libraries unfold such an image, or waste lanes on 1 or 8 channels; these loops run
// at the speed of the multiplier.
//
//   forward: a row of the small image = windows of R rows of the big one x packed weights
//   backward_data: (a row of the small image x packed weights), its R x S x C products per pixel
//     then added to the R rows of the big image they fall on
//   backward_weights: per row, (windows of the big image) transposed x the row of the small one,
//     summed up
//
// All use the order (r, s, c), so that a window row of S x C values is contiguous.
#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/activation.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/loops/tiles.h"

namespace weft::cpu {

namespace {

constexpr std::int64_t kAlign = 16;  // elements: workspace parts start on a cache line

std::int64_t aligned(std::int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

/// The strides of a batch of images.
struct Lay {
  std::int64_t n, c, h, w;
  explicit Lay(const View& view)
      : n(view.strides[0]), c(view.strides[1]), h(view.strides[2]), w(view.strides[3]) {}
};

template <class T>
class DirectConv final : public ConvPlan {
 public:
  static bool fits(const ConvProblem& p) {
    // Packed weights must stay in the L2 cache, and an image must be worth the packing.
    return p.groups == 1 && p.c * p.k * p.r * p.s * std::int64_t{sizeof(T)} <= (1 << 20) &&
           p.images > 0 && p.ho > 0 && p.wo > 0;
  }

  explicit DirectConv(const Conv2dArgs& args) : p_(args), window_(p_.r * p_.s * p_.c) {
    activates = true;
    output_format = wanted_format(args);
    to_nchw_ = !p_.writes_weights() && output_format == MemoryFormat::nchw &&
               (p_.writes_small() ? p_.k : p_.c) > 1;
    big_last_ = is_format(big_of(args), MemoryFormat::nhwc);
    small_last_ = is_format(small_of(args), MemoryFormat::nhwc);
    padded_ = p_.padding[0] != 0 || p_.padding[1] != 0;
    lines_ = !p_.writes_big() && (padded_ || !big_last_);
    line_width_ = lines_ ? p_.w + 2 * p_.padding[1] : p_.w;
    columns_ = cut_columns<T>(loops_, p_.writes_big() ? window_ : p_.k);
    depth_cols_ = columns_.back().first + columns_.back().cols;
    // Tiles need whole columns: else a copy of the row has them.
    small_row_ = p_.writes_big() ? !small_last_ : depth_cols_ != p_.k || !small_last_;
    if (p_.writes_small()) small_row_ = depth_cols_ != p_.k && !to_nchw_;
    make_offsets();
    block_ = std::min(kBlockRows, p_.ho);
    // Rows of products overlap in the big image, so backward_data shares out whole images.
    parts_ = std::min<std::int64_t>(
        num_threads(), p_.writes_big() ? p_.images : p_.images * ((p_.ho + block_ - 1) / block_));
    lay_out_workspace();
  }

  void run(const Conv2dArgs& args, void* workspace) const override {
    T* const space = static_cast<T*>(workspace);
    T* const weights = space + parts_ * part_elements_;
    if (!p_.writes_weights()) pack_weights(args.w.as<const T>(), weights);
    if (p_.writes_small() && p_.bias) {
      // The bias is padded to the number of columns of the tiles.
      std::fill_n(weights + window_ * depth_cols_, depth_cols_, T(0));
      std::copy_n(args.bias.as<const T>(), p_.k, weights + window_ * depth_cols_);
    }
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        T* const mine = space + part * part_elements_;
        switch (p_.pass) {
          case ConvPass::forward: forward(args, part, weights, mine); break;
          case ConvPass::backward_data: backward_data(args, part, weights, mine); break;
          case ConvPass::backward_weights: backward_weights(args, part, mine); break;
        }
      }
    });
    if (p_.writes_weights()) finish_weights(args, space);
  }

 private:
  // Calls f(image, first row, rows) for the blocks of rows of a part.
  template <class F>
  void for_each_block(std::int64_t part, const F& f) const {
    const std::int64_t per_image = (p_.ho + block_ - 1) / block_, blocks = p_.images * per_image;
    for (std::int64_t i = blocks * part / parts_; i < blocks * (part + 1) / parts_; ++i) {
      const std::int64_t first = i % per_image * block_;
      f(i / per_image, first, std::min(block_, p_.ho - first));
    }
  }

  // The offsets of a window's values from its first one, in rows of width line_width_.
  void make_offsets() {
    const std::int64_t line = line_width_ * p_.c;
    // For windows as rows of a tile: pixels are consecutive, a window's values are segments.
    const bool whole_rows = p_.dilation[1] == 1;
    segment_steps_ = whole_rows ? p_.s * p_.c : p_.c;
    for (std::int64_t r = 0; r < p_.r; ++r) {
      const std::int64_t row = r * p_.dilation[0] * line;
      for (std::int64_t s = 0; s < p_.s; ++s) {
        if (s == 0 || !whole_rows) segments_.push_back(row + s * p_.dilation[1] * p_.c);
        for (std::int64_t c = 0; c < p_.c; ++c)
          values_.push_back(row + s * p_.dilation[1] * p_.c + c);
      }
    }
    for (Stretch& stretch : columns_) {
      for (std::size_t g = 0; g < segments_.size(); ++g) {
        stretch.segments.push_back(std::int64_t(g) * segment_steps_ * stretch.cols);
      }
    }
    for (std::int64_t i = 0; i < kMostTileRows; ++i) {
      pixels_[i] = i * (p_.writes_small() ? p_.stride[1] * p_.c : p_.k);
    }
  }

  // Per part: copied lines of the big image, rows of the small one, a row of products, sums, and
  // what must still be converted from nhwc to nchw: a block of rows, or a big image.
  void lay_out_workspace() {
    const std::int64_t lines = lines_ ? lines_of(block_) * line_width_ * p_.c : 0;
    const std::int64_t small = small_row_ ? (p_.writes_small() ? 1 : block_) * p_.wo *
                                                (p_.writes_big() ? p_.k : depth_cols_)
                                          : 0;
    const std::int64_t products = p_.writes_big() ? p_.wo * depth_cols_ : 0;
    const std::int64_t sums = p_.writes_weights() ? (window_ + 1) * depth_cols_ : 0;
    const std::int64_t turned = !to_nchw_           ? 0
                                : p_.writes_small() ? block_ * p_.wo * depth_cols_
                                                    : p_.h * p_.w * p_.c;
    small_at_ = aligned(lines);
    products_at_ = small_at_ + aligned(small);
    sums_at_ = products_at_ + aligned(products);
    turned_at_ = sums_at_ + aligned(sums);
    part_elements_ = turned_at_ + aligned(turned);
    const std::int64_t packed = p_.writes_small() ? (window_ + 1) * depth_cols_
                                : p_.writes_big() ? p_.k * depth_cols_
                                                  : 0;
    workspace_bytes = std::size_t(parts_ * part_elements_ + packed) * sizeof(T);
  }

  // forward: to[stretch][(r,s,c)][column k]; backward_data: to[stretch][k][column (r,s,c)].
  void pack_weights(const T* w, T* to) const {
    const std::int64_t taps = p_.r * p_.s;
    const std::int64_t steps = p_.writes_small() ? window_ : p_.k;
    const std::int64_t total = p_.writes_small() ? p_.k : window_;
    for (const Stretch& stretch : columns_) {
      for (std::int64_t step = 0; step < steps; ++step) {
        for (std::int64_t j = 0; j < stretch.cols; ++j, ++to) {
          const std::int64_t column = stretch.first + j;
          const std::int64_t value = p_.writes_small() ? step : column;
          const std::int64_t k = p_.writes_small() ? column : step;
          *to = column < total ? w[(k * p_.c + value % p_.c) * taps + value / p_.c] : T(0);
        }
      }
    }
  }

  // The number of rows of the big image that `rows` rows of the small one read.
  std::int64_t lines_of(std::int64_t rows) const {
    return (rows - 1) * p_.stride[0] + (p_.r - 1) * p_.dilation[0] + 1;
  }

  // These rows, for `rows` rows from `oh` on: in place, or a copy with channels last and zeros for
  // the padding.
  const T* window_rows(const T* image, const Lay& lay, std::int64_t oh, std::int64_t rows,
                       T* lines) const {
    const std::int64_t top = oh * p_.stride[0] - p_.padding[0];
    if (!lines_) return image + top * lay.h;
    const std::int64_t edge = p_.padding[1] * p_.c;
    T* to = lines;
    for (std::int64_t h = top; h < top + lines_of(rows); ++h, to += line_width_ * p_.c) {
      if (h < 0 || h >= p_.h) {
        std::fill_n(to, line_width_ * p_.c, T(0));
        continue;
      }
      std::fill_n(to, edge, T(0));
      copy_row(image + h * lay.h, lay, p_.w, p_.c, to + edge, p_.c);
      std::fill_n(to + edge + p_.w * p_.c, edge, T(0));
    }
    return lines;
  }

  // Copies `width` pixels to channels last, at a distance of `step`, with zeros after the channels.
  void copy_row(const T* row, const Lay& lay, std::int64_t width, std::int64_t channels, T* to,
                std::int64_t step) const {
    if (lay.c == 1) {
      loops_.copy_rows(width, channels, to, step, row, lay.w);
    } else if (lay.w == 1) {
      loops_.transpose(channels, width, to, step, row, lay.c);
    } else {
      for (std::int64_t c = 0; c < channels; ++c) {
        for (std::int64_t x = 0; x < width; ++x) to[x * step + c] = row[c * lay.c + x * lay.w];
      }
    }
    for (std::int64_t x = 0; x < width && step > channels; ++x) {
      std::fill_n(to + x * step + channels, step - channels, T(0));
    }
  }

  // Copies `rows` rows of the small image to channels last, with pixels `step` apart. Adjacent rows
  // are copied together, which reads each channel of nchw in longer runs.
  void copy_small_rows(const T* from, const Lay& lay, std::int64_t rows, T* to,
                       std::int64_t step) const {
    if (lay.h == p_.wo * lay.w) return copy_row(from, lay, rows * p_.wo, p_.k, to, step);
    for (std::int64_t i = 0; i < rows; ++i) {
      copy_row(from + i * lay.h, lay, p_.wo, p_.k, to + i * p_.wo * step, step);
    }
  }

  void forward(const Conv2dArgs& args, std::int64_t part, const T* weights, T* mine) const {
    const Lay big(big_of(args)), small(small_of(args));
    const T* const from = big_of(args).template as<const T>();
    T* const to = small_of(args).template as<T>();
    const T* const bias = weights + window_ * depth_cols_;
    TileArgs<T> tile;
    tile.segments = std::int64_t(segments_.size());
    tile.steps = segment_steps_;
    tile.a_rows = pixels_;
    tile.a_segments = segments_.data();
    tile.a_step = 1;
    tile.ldc = depth_cols_;
    for_each_block(part, [&](std::int64_t n, std::int64_t first, std::int64_t rows) {
      const T* window = window_rows(from + n * big.n, big, first, rows, mine);
      for (std::int64_t oh = first; oh < first + rows;
           ++oh, window += p_.stride[0] * line_width_ * p_.c) {
        T* const final_row = to + n * small.n + oh * small.h;
        T* const out = to_nchw_     ? mine + turned_at_ + (oh - first) * p_.wo * depth_cols_
                       : small_row_ ? mine + small_at_
                                    : final_row;
        const T* packed = weights;
        for (const Stretch& stretch : columns_) {
          const MicroTile<T>& kernel = loops_.tiles[stretch.tile];
          tile.b = packed;
          tile.b_segments = stretch.segments.data();
          tile.b_step = stretch.cols;
          tile.start = p_.bias ? bias + stretch.first : nullptr;
          for (std::int64_t x = 0; x < p_.wo; x += kernel.rows) {
            tile.rows = std::min<std::int64_t>(kernel.rows, p_.wo - x);
            tile.a = window + x * p_.stride[1] * p_.c;
            tile.c = out + x * depth_cols_ + stretch.first;
            kernel.run(tile);
          }
          packed += window_ * stretch.cols;
        }
        activate(args.then, p_.dtype, p_.wo * depth_cols_, out);
        if (small_row_) loops_.copy_rows(p_.wo, p_.k, final_row, small.w, out, depth_cols_);
      }
      if (to_nchw_) {
        loops_.transpose(rows * p_.wo, p_.k, to + n * small.n + first * small.h, small.c,
                         mine + turned_at_, depth_cols_);
      }
    });
  }

  void backward_data(const Conv2dArgs& args, std::int64_t part, const T* weights, T* mine) const {
    const Lay big(big_of(args)), small(small_of(args));
    const T* const from = small_of(args).template as<const T>();
    T* const to = big_of(args).template as<T>();
    const T* const bias = p_.bias ? args.bias.as<const T>() : nullptr;
    T* const products = mine + products_at_;
    TileArgs<T> tile;
    tile.steps = p_.k;
    tile.a_rows = pixels_;
    tile.a_segments = tile.b_segments = kOneSegment;
    tile.a_step = 1;
    tile.ldc = depth_cols_;
    for (std::int64_t n = p_.images * part / parts_; n < p_.images * (part + 1) / parts_; ++n) {
      // In nhwc the image is one run of pixels.
      T* const image = to_nchw_ ? mine + turned_at_ : to + n * big.n;
      if (bias)
        loops_.copy_rows(p_.h * p_.w, p_.c, image, p_.c, bias, 0);
      else
        std::memset(image, 0, std::size_t(p_.h * p_.w * p_.c) * sizeof(T));
      for (std::int64_t oh = 0; oh < p_.ho; ++oh) {
        const T* row = from + n * small.n + oh * small.h;
        if (small_row_) {
          const std::int64_t in_block = oh % block_;
          if (in_block == 0) {
            copy_small_rows(row, small, std::min(block_, p_.ho - oh), mine + small_at_, p_.k);
          }
          row = mine + small_at_ + in_block * p_.wo * p_.k;
        }
        const T* packed = weights;
        for (const Stretch& stretch : columns_) {
          const MicroTile<T>& kernel = loops_.tiles[stretch.tile];
          tile.b = packed;
          tile.b_step = stretch.cols;
          for (std::int64_t x = 0; x < p_.wo; x += kernel.rows) {
            tile.rows = std::min<std::int64_t>(kernel.rows, p_.wo - x);
            tile.a = row + x * p_.k;
            tile.c = products + x * depth_cols_ + stretch.first;
            kernel.run(tile);
          }
          packed += p_.k * stretch.cols;
        }
        add_products(products, image, oh);
      }
      activate(args.then, p_.dtype, p_.h * p_.w * p_.c, image);
      if (to_nchw_) loops_.transpose(p_.h * p_.w, p_.c, to + n * big.n, big.c, image, p_.c);
    }
  }

  // Product (r,s,c) of pixel x of row oh belongs to channel c of pixel (oh, x) * stride + (r, s).
  void add_products(const T* products, T* image, std::int64_t oh) const {
    for (std::int64_t r = 0; r < p_.r; ++r) {
      const std::int64_t h = oh * p_.stride[0] - p_.padding[0] + r * p_.dilation[0];
      if (h < 0 || h >= p_.h) continue;
      for (std::int64_t s = 0; s < p_.s; ++s) {
        const std::int64_t shift = s * p_.dilation[1] - p_.padding[1];
        const std::int64_t first = shift >= 0 ? 0 : (-shift + p_.stride[1] - 1) / p_.stride[1];
        const std::int64_t room = p_.w - shift;  // x * stride must stay below
        const std::int64_t last =
            room <= 0 ? 0 : std::min(p_.wo, (room + p_.stride[1] - 1) / p_.stride[1]);
        if (first >= last) continue;
        loops_.add_rows(last - first, p_.c,
                        image + (h * p_.w + first * p_.stride[1] + shift) * p_.c,
                        p_.stride[1] * p_.c, products + first * depth_cols_ + (r * p_.s + s) * p_.c,
                        depth_cols_);
      }
    }
  }

  // Sums of this part's images: [(r,s,c)][column k], then a row for the bias.
  void backward_weights(const Conv2dArgs& args, std::int64_t part, T* mine) const {
    const Lay big(big_of(args)), small(small_of(args));
    const T* const windows = big_of(args).template as<const T>();
    const T* const from = small_of(args).template as<const T>();
    T* const sums = mine + sums_at_;
    T* const bias_sums = sums + window_ * depth_cols_;
    std::fill_n(sums, (window_ + 1) * depth_cols_, T(0));
    // Each row of the block is a segment.
    const std::int64_t row_step = small_row_ ? p_.wo * depth_cols_ : small.h;
    std::int64_t a_segments[kBlockRows], b_segments[kBlockRows];
    for (std::int64_t i = 0; i < kBlockRows; ++i) {
      a_segments[i] = i * p_.stride[0] * line_width_ * p_.c;
      b_segments[i] = i * row_step;
    }
    TileArgs<T> tile;
    tile.steps = p_.wo;
    tile.a_segments = a_segments;
    tile.b_segments = b_segments;
    tile.a_step = p_.stride[1] * p_.c;
    tile.b_step = small_row_ ? depth_cols_ : small.w;
    tile.ldc = depth_cols_;
    tile.accumulate = true;
    for_each_block(part, [&](std::int64_t n, std::int64_t first, std::int64_t rows) {
      tile.segments = rows;
      tile.a = window_rows(windows + n * big.n, big, first, rows, mine);
      const T* block = from + n * small.n + first * small.h;
      if (small_row_) {
        T* const copy = mine + small_at_;
        copy_small_rows(block, small, rows, copy, depth_cols_);
        block = copy;
      }
      for (const Stretch& stretch : columns_) {
        const MicroTile<T>& kernel = loops_.tiles[stretch.tile];
        tile.b = block + stretch.first;
        for (std::int64_t value = 0; value < window_; value += kernel.rows) {
          tile.rows = std::min<std::int64_t>(kernel.rows, window_ - value);
          tile.a_rows = values_.data() + value;
          tile.c = sums + value * depth_cols_ + stretch.first;
          kernel.run(tile);
        }
      }
      if (!p_.bias || p_.transposed) return;
      for (std::int64_t i = 0; i < rows; ++i) {
        loops_.sum_rows(p_.wo, p_.k, block + i * row_step, tile.b_step, bias_sums);
      }
    });
  }

  void finish_weights(const Conv2dArgs& args, const T* space) const {
    T* const w = args.w.as<T>();
    const std::int64_t taps = p_.r * p_.s;
    const auto total = [&](std::int64_t at) {
      T sum = 0;
      for (std::int64_t part = 0; part < parts_; ++part)
        sum += space[part * part_elements_ + sums_at_ + at];
      return sum;
    };
    for (std::int64_t k = 0; k < p_.k; ++k) {
      for (std::int64_t value = 0; value < window_; ++value) {
        w[(k * p_.c + value % p_.c) * taps + value / p_.c] = total(value * depth_cols_ + k);
      }
    }
    if (!p_.bias) return;
    if (p_.transposed) return sum_channels(args.y, args.bias);
    T* const bias = args.bias.as<T>();
    for (std::int64_t k = 0; k < p_.k; ++k) bias[k] = total(window_ * depth_cols_ + k);
  }

  ConvProblem p_;
  const HeavyLoops<T>& loops_ = heavy_loops<T>();
  static constexpr std::int64_t kBlockRows = 4;

  std::int64_t window_;  // values per window: r * s * c
  bool big_last_ = false, small_last_ = false, padded_ = false;
  bool lines_ = false;      // rows of the big image are copied before use
  bool small_row_ = false;  // rows of the small image are copied
  bool to_nchw_ = false;    // for the image that is written
  std::int64_t line_width_ = 0;
  std::vector<Stretch> columns_;
  std::int64_t depth_cols_ = 0;  // columns, with those that the last tile adds
  std::int64_t segment_steps_ = 0;
  std::vector<std::int64_t> segments_, values_;
  std::int64_t pixels_[kMostTileRows] = {};
  std::int64_t block_ = 1;  // rows of the small image that are computed together
  std::int64_t parts_ = 1;
  std::int64_t small_at_ = 0, products_at_ = 0, sums_at_ = 0, turned_at_ = 0, part_elements_ = 0;
};

}  // namespace

void add_direct_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to) {
  const ConvProblem problem(args);
  const auto add = [&]<class T>() {
    if (!DirectConv<T>::fits(problem)) return;
    to.push_back({"direct", [args] { return std::make_unique<DirectConv<T>>(args); }});
  };
  if (problem.dtype == DType::f32) add.template operator()<float>();
  if (problem.dtype == DType::f64) add.template operator()<double>();
}

}  // namespace weft::cpu
