// Convolutions whose groups have one channel each (depthwise), in nchw: forward, backward_weights,
// and backward_data with stride 1, which is a forward pass from the small image with the taps in
// reverse order. There is nothing to sum over channels, so a vector of channels would need another
// layout; here the lanes are pixels.
//
// The padded image of one channel is split by the stride: phase (i, j) has every stride-th row from
// i on, and of these every stride-th pixel from j on. Then all pixels of the result are one run of
// values for each tap, as in single_channel.cc:
//   result[run] = sum over taps of weight * phase of the tap[offset of the tap + run]
// Between two rows the run has a few values more, which are not copied to the result. Where the
// rows of the window follow each other in one phase, several rows of the result share what they
// load, and are written in place if a row is at least one vector long.
//
// backward_weights has the small image's gradient in the place of the result, with zeros between
// two rows, and sums for each tap over all images: gradient[run] * phase of the tap[offset of the
// tap + run]. A pixel that is infinite or NaN is so multiplied by zeros, too: then all taps may
// become NaN, also those that never meet it.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/activation.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/loops/copy.h"
#include "weft/kernels/cpu/loops/tiles.h"

namespace weft::cpu {

namespace {

template <class T>
class DepthwiseConv final : public ConvPlan {
 public:
  static bool fits(const Conv2dArgs& args) {
    const ConvProblem p(args);
    if (p.groups == 1 || p.c != p.groups || p.empty()) return false;
    if (p.writes_big()) {
      const bool turned = p.k == p.c && p.stride[0] == 1 && p.stride[1] == 1 &&
                          padding_of(p, 0) >= 0 && padding_of(p, 1) >= 0;
      if (!turned) return false;
    }
    const auto is_plain = [](const View& image) { return is_format(image, MemoryFormat::nchw); };
    if (!p.writes_big() && !is_plain(big_of(args))) return false;
    if (!p.writes_small() && !is_plain(small_of(args))) return false;
    if (!p.writes_weights() && wanted_format(args) != MemoryFormat::nchw) return false;
    // For windows of more taps a transform is faster. A channel should stay in the L2 cache.
    return (p.writes_weights() || p.r * p.s <= 128) &&
           (p.h + 2 * p.padding[0]) * (p.w + 2 * p.padding[1]) * std::int64_t{sizeof(T)} <=
               (256 << 10);
  }

  explicit DepthwiseConv(const Conv2dArgs& args) : p_(args) {
    activates = true;
    output_format = MemoryFormat::nchw;
    from_h_ = p_.writes_big() ? p_.ho : p_.h;
    from_w_ = p_.writes_big() ? p_.wo : p_.w;
    to_h_ = p_.writes_big() ? p_.h : p_.ho;
    to_w_ = p_.writes_big() ? p_.w : p_.wo;
    rows_ = to_h_ + (p_.r - 1) * p_.dilation[0] / p_.stride[0];
    width_ = to_w_ + (p_.s - 1) * p_.dilation[1] / p_.stride[1];
    const std::int64_t lanes = loops_.lanes;
    const auto whole = [&](std::int64_t n) { return (n + lanes - 1) / lanes * lanes; };
    run_ = whole((to_h_ - 1) * width_ + to_w_);
    phase_ = whole(rows_ * width_) + lanes;  // the last vectors of the run read beyond the rows
    for (std::int64_t r = 0; r < p_.r; ++r) {
      const std::int64_t y = r * p_.dilation[0];
      for (std::int64_t s = 0; s < p_.s; ++s) {
        const std::int64_t x = s * p_.dilation[1];
        const std::int64_t of = phase_of(y % p_.stride[0], x % p_.stride[1]);
        offsets_.push_back(of * phase_ + y / p_.stride[0] * width_ + x / p_.stride[1]);
      }
    }
    if (p_.writes_big()) std::reverse(offsets_.begin(), offsets_.end());
    const std::int64_t row = whole(to_w_);
    // By the number of loads.
    by_rows_ = p_.writes_small() && p_.stride[0] == 1 && p_.dilation[0] == 1 &&
               to_h_ * row * (p_.r + 1) < 2 * p_.r * run_;
    direct_ = by_rows_ && to_w_ >= lanes;
    result_width_ = direct_ ? to_w_ : by_rows_ ? row : width_;
    // A channel's sums over the images have one order for every team.
    parts_ = std::min(std::int64_t{num_threads()}, p_.writes_weights() ? p_.c : p_.images * p_.c);
    part_elements_ = std::int64_t(phases_.size()) * phase_;
    if (!direct_) part_elements_ += by_rows_ ? to_h_ * row : run_;
    if (p_.writes_weights()) part_elements_ += p_.k / p_.c * p_.r * p_.s * lanes;
    workspace_bytes = std::size_t(parts_ * part_elements_) * sizeof(T);
  }

  void run(const Conv2dArgs& args, void* workspace) const override {
    if (p_.writes_weights()) return sum_weights(args, static_cast<T*>(workspace));
    const std::int64_t planes = p_.images * p_.c, per_group = p_.k / p_.c, taps = p_.r * p_.s;
    const View& from = p_.writes_small() ? big_of(args) : small_of(args);
    const View& to = p_.writes_small() ? small_of(args) : big_of(args);
    const T* const w = args.w.as<const T>();
    const T* const bias = p_.bias ? args.bias.as<const T>() : nullptr;
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        T* const mine = static_cast<T*>(workspace) + part * part_elements_;
        T* const result = mine + std::int64_t(phases_.size()) * phase_;
        // The padding stays zero.
        std::memset(mine, 0, std::size_t(part_elements_) * sizeof(T));
        for (std::int64_t i = planes * part / parts_; i < planes * (part + 1) / parts_; ++i) {
          split(from.as<const T>() + i * from_h_ * from_w_, mine);
          for (std::int64_t j = 0; j < per_group; ++j) {
            const std::int64_t k = i % p_.c * per_group + j;
            T* const y = to.as<T>() + (i * per_group + j) * to_h_ * to_w_;
            weigh(w + k * taps, bias ? bias[k] : T(0), mine, direct_ ? y : result);
            if (!direct_) loops_.copy_rows(to_h_, to_w_, y, to_w_, result, result_width_);
            activate(args.then, p_.dtype, to_h_ * to_w_, y);
          }
        }
      }
    });
  }

 private:
  void sum_weights(const Conv2dArgs& args, T* workspace) const {
    const std::int64_t per_group = p_.k / p_.c, taps = p_.r * p_.s, lanes = loops_.lanes;
    const T* const big = big_of(args).template as<const T>();
    const T* const small = small_of(args).template as<const T>();
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        T* const mine = workspace + part * part_elements_;
        T* const grad = mine + std::int64_t(phases_.size()) * phase_;
        T* const sums = grad + run_;
        // The padding, and what lies between two rows of the gradient, stays zero.
        std::memset(mine, 0, std::size_t(part_elements_) * sizeof(T));
        for (std::int64_t c = p_.c * part / parts_; c < p_.c * (part + 1) / parts_; ++c) {
          std::fill_n(sums, per_group * taps * lanes, T(0));
          for (std::int64_t i = 0; i < p_.images; ++i) {
            split(big + (i * p_.c + c) * from_h_ * from_w_, mine);
            for (std::int64_t j = 0; j < per_group; ++j) {
              const std::int64_t k = c * per_group + j;
              loops_.copy_rows(to_h_, to_w_, grad, width_, small + (i * p_.k + k) * to_h_ * to_w_,
                               to_w_);
              loops_.correlate(run_, grad, taps, mine, offsets_.data(), sums + j * taps * lanes);
            }
          }
          T* const w = args.w.as<T>() + c * per_group * taps;
          for (std::int64_t t = 0; t < per_group * taps; ++t) {
            w[t] = std::accumulate(sums + t * lanes, sums + (t + 1) * lanes, T(0));
          }
        }
      }
    });
    if (p_.bias) sum_channels(args.y, args.bias);
  }

  // Of the image that is read.
  static std::int64_t padding_of(const ConvProblem& p, int axis) {
    if (!p.writes_big()) return p.padding[axis];
    return ((axis == 0 ? p.r : p.s) - 1) * p.dilation[axis] - p.padding[axis];
  }

  struct Phase {
    std::int64_t row, pixel;  // its first ones in the padded image
  };

  std::int64_t phase_of(std::int64_t row, std::int64_t pixel) {
    const auto found = std::find_if(phases_.begin(), phases_.end(), [=](const Phase& phase) {
      return phase.row == row && phase.pixel == pixel;
    });
    if (found != phases_.end()) return found - phases_.begin();
    phases_.push_back({row, pixel});
    return std::ssize(phases_) - 1;
  }

  // The part of a phase's `count` rows or pixels that is inside the image's `size`: [first, last).
  struct Inside {
    std::int64_t first, last;
    Inside(std::int64_t count, std::int64_t size, std::int64_t start, std::int64_t stride)
        : first(start >= 0 ? 0 : (-start + stride - 1) / stride),
          last(size <= start ? 0 : std::min(count, (size - start + stride - 1) / stride)) {}
  };

  void split(const T* image, T* mine) const {
    for (const Phase& phase : phases_) {
      const std::int64_t top = phase.row - padding_of(p_, 0);
      const std::int64_t left = phase.pixel - padding_of(p_, 1);
      const Inside rows(rows_, from_h_, top, p_.stride[0]),
          pixels(width_, from_w_, left, p_.stride[1]);
      const std::int64_t count = pixels.last - pixels.first;
      if (rows.first < rows.last && count > 0) {
        const T* from = image + (rows.first * p_.stride[0] + top) * from_w_ +
                        pixels.first * p_.stride[1] + left;
        T* to = mine + rows.first * width_ + pixels.first;
        if (p_.stride[1] == 1) {
          loops_.copy_rows(rows.last - rows.first, count, to, width_, from, p_.stride[0] * from_w_);
        } else {
          copy_loops().moves(sizeof(T)).tile(rows.last - rows.first, count, from, p_.stride[1],
                                             p_.stride[0] * from_w_, to, 1, width_);
        }
      }
      mine += phase_;
    }
  }

  void weigh(const T* w, T start, const T* mine, T* result) const {
    const std::int64_t taps = p_.r * p_.s, n = result_width_;
    const std::int64_t* const at = offsets_.data();
    if (!by_rows_) return loops_.weigh(run_, result, start, taps, w, mine, at);
    for (std::int64_t y = 0; y < to_h_;) {
      y += loops_.weigh_rows(to_h_ - y, n, result + y * n, n, start, p_.r, p_.s, w,
                             mine + y * width_, width_, at);
    }
  }

  ConvProblem p_;
  const HeavyLoops<T>& loops_ = heavy_loops<T>();
  std::int64_t from_h_ = 0, from_w_ = 0, to_h_ = 0, to_w_ = 0;
  std::int64_t rows_ = 0, width_ = 0, phase_ = 0;  // of a phase; elements from one to the next
  std::int64_t run_ = 0;                           // in whole vectors
  bool by_rows_ = false;                           // several rows of the result at a time
  bool direct_ = false;                            // no result in the workspace
  std::int64_t result_width_ = 0;  // from one row of the result to the next, in the workspace
  std::vector<Phase> phases_;
  std::vector<std::int64_t> offsets_;  // of the taps
  std::int64_t parts_ = 1, part_elements_ = 0;
};

}  // namespace

void add_depthwise_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to) {
  const auto add = [&]<class T>() {
    if (!DepthwiseConv<T>::fits(args)) return;
    to.push_back({"depthwise", [args] { return std::make_unique<DepthwiseConv<T>>(args); }});
  };
  if (args.w.dtype == DType::f32) add.template operator()<float>();
  if (args.w.dtype == DType::f64) add.template operator()<double>();
}

}  // namespace weft::cpu
