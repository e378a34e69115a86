// weft's own convolutions, as matrix products whose packing reads the image directly, without the
// unfolded matrix: always for f64, for other types if oneDNN cannot compute them or is missing.
//
//   forward:          small[k; image,pixel] = w[k; c,r,s]            x big[c,r,s; image,pixel]
//   backward_data:    big[c; image,pixel]   = w[c; k,r,s]            x small[k,r,s; image,pixel]
//   backward_weights: w[k; c,r,s]           = small[k; image,pixel] x big[image,pixel; c,r,s]
#include <algorithm>
#include <array>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/matmul/gemm.h"
#include "weft/kernels/functors.h"

namespace weft::cpu {

namespace {

/// The strides of a batch of images, and the channels of one group.
template <class T>
struct Image {
  T* data;
  std::int64_t n, c, h, w;  // strides

  explicit Image(const View& view)
      : data(view.as<T>()),
        n(view.strides[0]),
        c(view.strides[1]),
        h(view.strides[2]),
        w(view.strides[3]) {}
};

/// Consecutive pixels of one row of one image, within a range of pixels counted over all images.
struct Run {
  std::int64_t at;  // position within the range
  std::int64_t count;
  std::int64_t image, y, x;
};

/// Calls f(run) for the pixels [first, first + count) of images of `height` x `width`.
template <class F>
void for_each_run(std::int64_t first, std::int64_t count, std::int64_t height, std::int64_t width,
                  const F& f) {
  std::int64_t x = first % width;
  std::int64_t y = first / width % height;
  std::int64_t image = first / (width * height);
  for (std::int64_t at = 0; at < count;) {
    const std::int64_t length = std::min(count - at, width - x);
    f(Run{at, length, image, y, x});
    at += length;
    x = 0;
    if (++y == height) {
      y = 0;
      ++image;
    }
  }
}

/// Along one axis: which of `count` target positions from `first` on have a source position, and
/// where. Targets first, first + step, ... (`used` of them) read sources from, from + source_step,
/// ...
struct Taps {
  std::int64_t first = 0, step = 1, used = 0, from = 0, source_step = 1;
};

/// Sources t * stride + shift in [0, size) for t in [start, start + count).
Taps gather_taps(std::int64_t start, std::int64_t count, std::int64_t stride, std::int64_t shift,
                 std::int64_t size) {
  const std::int64_t origin = start * stride + shift;
  const std::int64_t low = origin >= 0 ? 0 : (-origin + stride - 1) / stride;
  const std::int64_t high =
      origin >= size ? 0 : std::min(count, (size - origin + stride - 1) / stride);
  if (low >= high) return {};
  return {low, 1, high - low, origin + low * stride, stride};
}

/// Sources (t + shift) / stride in [0, size), where the division is exact.
Taps scatter_taps(std::int64_t start, std::int64_t count, std::int64_t stride, std::int64_t shift,
                  std::int64_t size) {
  // The first t from `start` on with t + shift >= 0 and divisible by the stride.
  std::int64_t first = std::max<std::int64_t>(0, -(start + shift));
  const std::int64_t rest = (start + shift + first) % stride;
  if (rest != 0) first += stride - rest;
  const std::int64_t from = (start + shift + first) / stride;
  if (first >= count || from >= size) return {};
  const std::int64_t used = std::min((count - first + stride - 1) / stride, size - from);
  return {first, stride, used, from, 1};
}

template <class T>
class GemmConv final : public ConvPlan {
 public:
  explicit GemmConv(const Conv2dArgs& args)
      : p_(args), cg_(p_.c / p_.groups), kg_(p_.k / p_.groups) {
    const std::int64_t taps = p_.r * p_.s;
    const std::int64_t small_pixels = p_.images * p_.ho * p_.wo;
    const int team = num_threads();
    switch (p_.pass) {
      case ConvPass::forward:
        gemm_ = plan_gemm<Acc>(p_.groups, kg_, small_pixels, cg_ * taps, team);
        break;
      case ConvPass::backward_data:
        gemm_ = plan_gemm<Acc>(p_.groups, cg_, p_.images * p_.h * p_.w, kg_ * taps, team);
        break;
      case ConvPass::backward_weights:
        gemm_ = plan_gemm<Acc>(p_.groups, kg_, cg_ * taps, small_pixels, team);
        break;
    }
    workspace_bytes = std::size_t(gemm_.workspace_elements()) * sizeof(Acc);
    activates = true;
    output_format = wanted_format(args);
  }

  void run(const Conv2dArgs& args, void* workspace) const override {
    Acc* const space = static_cast<Acc*>(workspace);
    const Image<T> big(big_of(args)), small(small_of(args));
    const T* const bias = p_.bias ? args.bias.as<const T>() : nullptr;
    switch (p_.pass) {
      case ConvPass::forward:
        forward(big, args.w.as<const T>(), bias, args.then, small, space);
        break;
      case ConvPass::backward_data:
        backward_data(small, args.w.as<const T>(), bias, args.then, big, space);
        break;
      case ConvPass::backward_weights:
        backward_weights(big, small, args.w.as<T>(), space);
        if (p_.bias) sum_channels(args.y, args.bias);
    }
  }

 private:
  using Acc = accumulate_t<T>;

  // The source that run_gemm needs, from three functions.
  template <class A, class B, class Store>
  struct Source {
    A pack_a;
    B pack_b;
    Store store_block;

    PanelsA<Acc> a(std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t m0,
                   std::int64_t mc, std::int64_t width, Acc* to) const {
      pack_a(group, k0, kc, m0, mc, width, to);
      return PanelsA<Acc>::packed(to, width, kc);
    }
    void b(std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t n0, std::int64_t nc,
           std::int64_t width, Acc* to) const {
      pack_b(group, k0, kc, n0, nc, width, to);
    }
    Target<Acc> target(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {
      return {};
    }
    void store(std::int64_t group, std::int64_t m0, std::int64_t mc, std::int64_t n0,
               std::int64_t nc, const Acc* sums, std::int64_t ld) const {
      store_block(group, m0, mc, n0, nc, sums, ld);
    }
  };

  template <class A, class B, class Store>
  void multiply(Acc* space, const A& pack_a, const B& pack_b, const Store& store) const {
    run_gemm<Acc>(gemm_, space, Source<A, B, Store>{pack_a, pack_b, store});
  }

  void forward(const Image<T>& big, const T* w, const T* bias, Activation then,
               const Image<T>& small, Acc* space) const {
    const std::int64_t depth = gemm_.k;  // length of a row of weights
    multiply(
        space,
        [&](std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t m0, std::int64_t mc,
            std::int64_t width, Acc* to) {
          pack_strided(w + (group * kg_ + m0) * depth + k0, depth, 1, mc, kc, width, to);
        },
        [&](std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t n0, std::int64_t nc,
            std::int64_t width, Acc* to) { pack_gathered(big, group, k0, kc, n0, nc, width, to); },
        store_image(small, p_.ho, p_.wo, kg_, bias, then));
  }

  void backward_data(const Image<T>& small, const T* w, const T* bias, Activation then,
                     const Image<T>& big, Acc* space) const {
    const std::int64_t taps = p_.r * p_.s;
    multiply(
        space,
        [&](std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t m0, std::int64_t mc,
            std::int64_t width, Acc* to) {
          std::fill_n(to, round_up(mc, width) * kc, Acc(0));
          for (std::int64_t step = 0; step < kc; ++step) {
            const std::int64_t k = group * kg_ + (k0 + step) / taps, tap = (k0 + step) % taps;
            const T* const from = w + (k * cg_ + m0) * taps + tap;
            for (std::int64_t i = 0; i < mc; ++i) {
              to[i / width * width * kc + step * width + i % width] = Acc(from[i * taps]);
            }
          }
        },
        [&](std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t n0, std::int64_t nc,
            std::int64_t width,
            Acc* to) { pack_scattered(small, group, k0, kc, n0, nc, width, to); },
        store_image(big, p_.h, p_.w, cg_, bias, then));
  }

  void backward_weights(const Image<T>& big, const Image<T>& small, T* w, Acc* space) const {
    const std::int64_t depth = gemm_.n;
    multiply(
        space,
        [&](std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t m0, std::int64_t mc,
            std::int64_t width,
            Acc* to) { pack_channels(small, group * kg_ + m0, mc, k0, kc, width, to); },
        [&](std::int64_t group, std::int64_t k0, std::int64_t kc, std::int64_t n0, std::int64_t nc,
            std::int64_t width, Acc* to) { pack_patches(big, group, k0, kc, n0, nc, width, to); },
        [&](std::int64_t group, std::int64_t m0, std::int64_t mc, std::int64_t n0, std::int64_t nc,
            const Acc* sums, std::int64_t ld) {
          for (std::int64_t i = 0; i < mc; ++i) {
            T* to = w + (group * kg_ + m0 + i) * depth + n0;
            for (std::int64_t j = 0; j < nc; ++j) to[j] = T(sums[i * ld + j]);
          }
        });
  }

  // Writes a finished block to an image: rows are channels of the group, columns pixels.
  auto store_image(const Image<T>& image, std::int64_t height, std::int64_t width,
                   std::int64_t channels, const T* bias, Activation then) const {
    return [=](std::int64_t group, std::int64_t m0, std::int64_t mc, std::int64_t n0,
               std::int64_t nc, const Acc* sums, std::int64_t ld) {
      for_each_run(n0, nc, height, width, [&](const Run& run) {
        const std::int64_t first = group * channels + m0;
        T* const to =
            image.data + run.image * image.n + first * image.c + run.y * image.h + run.x * image.w;
        for (std::int64_t i = 0; i < mc; ++i) {
          const Acc shift = bias ? Acc(bias[first + i]) : Acc(0);
          const Acc* from = sums + i * ld + run.at;
          T* row = to + i * image.c;
          for (std::int64_t j = 0; j < run.count; ++j) row[j * image.w] = T(from[j] + shift);
          if (then == Activation::none) continue;
          for (std::int64_t j = 0; j < run.count; ++j) {
            const Acc value = Acc(row[j * image.w]);
            row[j * image.w] = T(functor::Relu{}.fwd(value));
          }
        }
      });
    };
  }

  // Columns: pixels of the small image. Steps: (c,r,s) of the big one.
  void pack_gathered(const Image<T>& big, std::int64_t group, std::int64_t k0, std::int64_t kc,
                     std::int64_t n0, std::int64_t nc, std::int64_t nr, Acc* to) const {
    pack_pixels(
        big, group * cg_, k0, kc, n0, nc, nr, p_.ho, p_.wo, to,
        [&](const Run& run, std::int64_t r) {
          const std::int64_t y = run.y * p_.stride[0] - p_.padding[0] + r * p_.dilation[0];
          return y < p_.h ? y : std::int64_t{-1};
        },
        [&](const Run& run, std::int64_t s) {
          return gather_taps(run.x, run.count, p_.stride[1], s * p_.dilation[1] - p_.padding[1],
                             p_.w);
        });
  }

  // Columns: pixels of the big image. Steps: (k,r,s) of the small one.
  void pack_scattered(const Image<T>& small, std::int64_t group, std::int64_t k0, std::int64_t kc,
                      std::int64_t n0, std::int64_t nc, std::int64_t nr, Acc* to) const {
    pack_pixels(
        small, group * kg_, k0, kc, n0, nc, nr, p_.h, p_.w, to,
        [&](const Run& run, std::int64_t r) {
          const std::int64_t t = run.y + p_.padding[0] - r * p_.dilation[0];
          return t >= 0 && t % p_.stride[0] == 0 && t / p_.stride[0] < p_.ho ? t / p_.stride[0]
                                                                             : std::int64_t{-1};
        },
        [&](const Run& run, std::int64_t s) {
          return scatter_taps(run.x, run.count, p_.stride[1], p_.padding[1] - s * p_.dilation[1],
                              p_.wo);
        });
  }

  // Panels of nr pixels, counted over images of height x width; the steps are (channel,r,s) of
  // `image`. row_of(run, r): the image's row that tap row r reads, negative if outside;
  // taps_of(run, s): its columns. Both divide, so they are called once per run and not per step.
  template <class RowOf, class TapsOf>
  void pack_pixels(const Image<T>& image, std::int64_t first_channel, std::int64_t k0,
                   std::int64_t kc, std::int64_t n0, std::int64_t nc, std::int64_t nr,
                   std::int64_t height, std::int64_t width, Acc* to, const RowOf& row_of,
                   const TapsOf& taps_of) const {
    constexpr std::int64_t kKept = 16;
    const auto [c0, r0, s0] = split_tap(k0);
    for (std::int64_t j = 0; j < nc; j += nr, to += nr * kc) {
      const std::int64_t count = std::min(nr, nc - j);
      if (count < nr) std::fill_n(to, nr * kc, Acc(0));
      for_each_run(n0 + j, count, height, width, [&](const Run& run) {
        std::array<Taps, kKept> columns;
        for (std::int64_t s = 0; s < std::min(p_.s, kKept); ++s) columns[s] = taps_of(run, s);
        std::int64_t c = c0, r = r0, s = s0, row = row_of(run, r);
        Acc* at = to + run.at;
        for (std::int64_t step = 0; step < kc; ++step, at += nr) {
          if (row < 0) {
            zero(at, run.count);
          } else {
            const T* const line =
                image.data + run.image * image.n + (first_channel + c) * image.c + row * image.h;
            copy_taps(line, image.w, s < kKept ? columns[s] : taps_of(run, s), run.count, at);
          }
          if (++s < p_.s) continue;
          s = 0;
          if (++r == p_.r) {
            r = 0;
            ++c;
          }
          row = row_of(run, r);
        }
      });
    }
  }

  // Rows: channels of the small image. Steps: its pixels.
  void pack_channels(const Image<T>& small, std::int64_t first, std::int64_t count, std::int64_t k0,
                     std::int64_t kc, std::int64_t mr, Acc* to) const {
    for (std::int64_t i = 0; i < count; i += mr, to += mr * kc) {
      const std::int64_t rows = std::min(mr, count - i);
      if (rows < mr) std::fill_n(to, mr * kc, Acc(0));
      for_each_run(k0, kc, p_.ho, p_.wo, [&](const Run& run) {
        const T* from = small.data + run.image * small.n + (first + i) * small.c + run.y * small.h +
                        run.x * small.w;
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t j = 0; j < run.count; ++j) {
            to[(run.at + j) * mr + row] = Acc(from[row * small.c + j * small.w]);
          }
        }
      });
    }
  }

  // Columns: (c,r,s) of the big image. Steps: pixels of the small one.
  void pack_patches(const Image<T>& big, std::int64_t group, std::int64_t k0, std::int64_t kc,
                    std::int64_t n0, std::int64_t nc, std::int64_t nr, Acc* to) const {
    for (std::int64_t j = 0; j < nc; j += nr, to += nr * kc) {
      const std::int64_t columns = std::min(nr, nc - j);
      std::fill_n(to, nr * kc, Acc(0));
      for (std::int64_t column = 0; column < columns; ++column) {
        const auto [c, r, s] = split_tap(n0 + j + column);
        const T* const plane = big.data + (group * cg_ + c) * big.c;
        const std::int64_t shift = s * p_.dilation[1] - p_.padding[1];
        const std::int64_t down = r * p_.dilation[0] - p_.padding[0];
        for_each_run(k0, kc, p_.ho, p_.wo, [&](const Run& run) {
          const std::int64_t y = run.y * p_.stride[0] + down;
          if (y < 0 || y >= p_.h) return;
          const Taps taps = gather_taps(run.x, run.count, p_.stride[1], shift, p_.w);
          const T* from = plane + run.image * big.n + y * big.h + taps.from * big.w;
          Acc* at = to + (run.at + taps.first) * nr + column;
          for (std::int64_t i = 0; i < taps.used; ++i) {
            at[i * nr] = Acc(from[i * taps.source_step * big.w]);
          }
        });
      }
    }
  }

  std::array<std::int64_t, 3> split_tap(std::int64_t index) const {
    const std::int64_t taps = p_.r * p_.s;
    return {index / taps, index % taps / p_.s, index % p_.s};
  }

  static void zero(Acc* row, std::int64_t count) { std::fill_n(row, count, Acc(0)); }

  static void copy_taps(const T* line, std::int64_t stride, const Taps& taps, std::int64_t count,
                        Acc* row) {
    if (taps.used < count) zero(row, count);
    const T* from = line + taps.from * stride;
    const std::int64_t step = taps.source_step * stride;
    if (step == 1 && taps.step == 1) {
      for (std::int64_t i = 0; i < taps.used; ++i) row[taps.first + i] = Acc(from[i]);
    } else {
      for (std::int64_t i = 0; i < taps.used; ++i)
        row[taps.first + i * taps.step] = Acc(from[i * step]);
    }
  }

  ConvProblem p_;
  std::int64_t cg_, kg_;  // channels per group
  GemmPlan<Acc> gemm_;
};

}  // namespace

void add_gemm_conv(const Conv2dArgs& args, std::vector<Candidate<ConvPlan>>& to) {
  dispatch_floating(args.y.dtype, "conv2d", [&]<class T>() {
    to.push_back({"plain", [args] { return std::make_unique<GemmConv<T>>(args); }});
  });
}

void add_channel_bias(const View& y, const View& bias) {
  dispatch_floating(y.dtype, "conv2d", [&]<class T>() {
    using Acc = accumulate_t<T>;
    const Image<T> image(y);
    const T* const b = bias.as<const T>();
    const std::int64_t channels = y.shape[1], pixels = y.shape[2] * y.shape[3];
    const std::int64_t planes = y.shape[0] * channels;
    if (is_format(y, MemoryFormat::nchw)) {
      parallel_for(planes, 1 + 16384 / pixels, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
          const Acc shift = Acc(b[plane % channels]);
          T* const to = image.data + plane * pixels;
          for (std::int64_t i = 0; i < pixels; ++i) to[i] = T(Acc(to[i]) + shift);
        }
      });
    } else {
      parallel_for(y.shape[0] * pixels, 1 + 16384 / channels,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t pixel = begin; pixel < end; ++pixel) {
                       T* const to = image.data + pixel * channels;
                       for (std::int64_t c = 0; c < channels; ++c)
                         to[c] = T(Acc(to[c]) + Acc(b[c]));
                     }
                   });
    }
  });
}

void sum_channels(const View& grad_y, const View& grad_bias) {
  dispatch_floating(grad_y.dtype, "conv2d", [&]<class T>() {
    using Acc = accumulate_t<T>;
    const Image<const T> image(grad_y);
    T* const out = grad_bias.as<T>();
    const std::int64_t images = grad_y.shape[0], channels = grad_y.shape[1];
    const std::int64_t pixels = grad_y.shape[2] * grad_y.shape[3];
    // First sums short stretches, so that the rounding error does not grow with the batch. 16 sums
    // at a time, over pixels or over channels, let the compiler use vectors.
    constexpr std::int64_t kWide = 16, kStretch = 256;
    if (is_format(grad_y, MemoryFormat::nchw)) {
      parallel_for(channels, 1 + 16384 / (images * pixels + 1),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t c = begin; c < end; ++c) {
                       Acc total = 0;
                       for (std::int64_t n = 0; n < images; ++n) {
                         const T* const plane = image.data + (n * channels + c) * pixels;
                         for (std::int64_t from = 0; from < pixels; from += kStretch) {
                           const std::int64_t count = std::min(kStretch, pixels - from);
                           Acc part[kWide] = {};
                           std::int64_t i = 0;
                           for (; i + kWide <= count; i += kWide) {
                             for (std::int64_t j = 0; j < kWide; ++j)
                               part[j] += Acc(plane[from + i + j]);
                           }
                           for (std::int64_t j = 0; i < count; ++i, ++j)
                             part[j] += Acc(plane[from + i]);
                           Acc sum = 0;
                           for (const Acc v : part) sum += v;
                           total += sum;
                         }
                       }
                       out[c] = T(total);
                     }
                   });
    } else {
      parallel_for((channels + kWide - 1) / kWide, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
          const std::int64_t c0 = block * kWide, width = std::min(kWide, channels - c0);
          Acc total[kWide] = {};
          for (std::int64_t from = 0; from < images * pixels; from += kStretch) {
            const std::int64_t count = std::min(kStretch, images * pixels - from);
            const T* at = image.data + from * channels + c0;
            Acc part[kWide] = {};
            for (std::int64_t i = 0; i < count; ++i, at += channels) {
              for (std::int64_t j = 0; j < width; ++j) part[j] += Acc(at[j]);
            }
            for (std::int64_t j = 0; j < kWide; ++j) total[j] += part[j];
          }
          for (std::int64_t j = 0; j < width; ++j) out[c0 + j] = T(total[j]);
        }
      });
    }
  });
}

}  // namespace weft::cpu
