// Batch norm and layer norm. Sums over a channel are cut into chunks whose number depends on the
// shapes alone, so that the result is the same for every team size.
#include <algorithm>
#include <cmath>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/families.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kMaxChunks = 64;

std::int64_t chunks_of(std::int64_t elements) {
  return std::clamp<std::int64_t>(elements / kCheapGrain, 1, kMaxChunks);
}

double invstd_of(double var, double eps) { return 1 / std::sqrt(var + eps); }

void require_floating(const char* op, const Stream& stream, DType dtype) {
  if (!is_floating(dtype)) throw_unsupported(op, stream.device, dtype);
}

/// A channel's pixels lie side by side (nchw), or every pixel's channels do.
struct Images {
  explicit Images(const View& x)
      : channels(x.shape[1]),
        area(x.shape[2] * x.shape[3]),
        count(x.shape[0] * area),
        pixels(channels > 1 && x.strides[1] == 1) {
    // Several pixels of few channels look like one pixel of many: longer loops.
    constexpr std::int64_t kLong = 256;
    period = pixels ? channels * std::max<std::int64_t>(kLong / channels, 1) : channels;
    chunks = chunks_of(pixels ? count * channels : count);
  }
  std::int64_t numel() const { return count * channels; }

  std::int64_t channels, area;
  std::int64_t count;  // elements of a channel
  bool pixels;
  std::int64_t period;  // values that the loops over pixels want of each constant
  std::int64_t chunks;
};

/// Elements [i, i + rows n). Of pixels: rows of up to a period, each beginning at its value c;
/// otherwise one row of channel c.
struct Tile {
  std::int64_t c, i, rows, n;
};

/// f(tile) for tiles that cover the positions [begin, end). Positions count through one channel
/// after the other, but for pixels, whose positions are those in memory; there `begin` is the first
/// of a pixel.
template <class F>
void for_tiles(const Images& x, std::int64_t begin, std::int64_t end, const F& f) {
  if (x.pixels) {
    const std::int64_t rows = (end - begin) / x.period, rest = (end - begin) % x.period;
    if (rows > 0) f(Tile{0, begin, rows, x.period});
    if (rest > 0) f(Tile{0, end - rest, 1, rest});
    return;
  }
  while (begin < end) {
    const std::int64_t c = begin / x.count, image = begin % x.count / x.area, at = begin % x.area;
    const std::int64_t n = std::min(x.area - at, end - begin);
    f(Tile{c, (image * x.channels + c) * x.area + at, 1, n});
    begin += n;
  }
}

/// What the workspace holds: arrays of a value per channel, repeated over the period, and each
/// chunk's two sums per channel. The constants are of the type C that is computed in.
template <class C>
struct Scratch {
  Scratch(const Images& x, void* workspace) : period(x.period) {
    for (C*& array : constant) {
      array = static_cast<C*>(workspace);
      workspace = static_cast<double*>(workspace) + period;
    }
    sums = static_cast<double*>(workspace);
  }
  void repeat(std::int64_t channels) {
    for (C* array : constant) {
      for (std::int64_t i = channels; i < period; ++i) array[i] = array[i - channels];
    }
  }

  static constexpr int kConstants = 4;
  std::int64_t period;
  C* constant[kConstants];
  double* sums;
};

/// Adds up two sums per channel, over chunks: add(tile, first, second) adds those of a tile to
/// first[0] and first[1], or for pixels to first[i] and second[i] of its columns i. The totals are
/// at sums[c] and sums[period + c].
template <class Add>
void sum_channels(const Images& x, double* sums, const Add& add) {
  const std::int64_t units = x.pixels ? x.chunks : x.channels * x.chunks;
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain * units / x.numel(), 1);
  parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t chunk = u % x.chunks, c = u / x.chunks;
      const std::int64_t from = x.count * chunk / x.chunks, to = x.count * (chunk + 1) / x.chunks;
      double* const first = sums + 2 * chunk * x.period;
      double* const second = first + x.period;
      if (x.pixels) {
        std::fill_n(first, 2 * x.period, 0.0);
        for_tiles(x, from * x.channels, to * x.channels,
                  [&](const Tile& t) { add(t, first + t.c, second + t.c); });
        for (std::int64_t i = x.channels; i < x.period; ++i) {
          first[i % x.channels] += first[i];
          second[i % x.channels] += second[i];
        }
        continue;
      }
      double acc[2] = {};
      for_tiles(x, c * x.count + from, c * x.count + to,
                [&](const Tile& t) { add(t, acc, acc + 1); });
      first[c] = acc[0];
      second[c] = acc[1];
    }
  });
  parallel_for(x.channels, kCheapGrain / (2 * x.chunks), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = 1; chunk < x.chunks; ++chunk) {
      const double* more = sums + 2 * chunk * x.period;
      for (std::int64_t c = begin; c < end; ++c) {
        sums[c] += more[c];
        sums[x.period + c] += more[x.period + c];
      }
    }
  });
}

/// f(tile) for tiles that cover all elements, on the team. A thread has the part whose sums it
/// made, as far as that is still in its cache.
template <class F>
void for_all(const Images& x, const F& f) {
  const std::int64_t row = x.pixels ? x.period : 1;
  const std::int64_t rows = (x.numel() + row - 1) / row;
  parallel_for(rows, std::max<std::int64_t>(kCheapGrain / row, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for_tiles(x, begin * row, std::min(end * row, x.numel()), f);
               });
}

std::size_t batch_norm_workspace_bytes(const View& x) {
  const Images images(x);
  return static_cast<std::size_t>((Scratch<double>::kConstants + 2 * images.chunks) *
                                  images.period) *
         sizeof(double);
}

template <class T>
double value_or(const View& v, std::int64_t i, double otherwise) {
  return v ? static_cast<double>(load(v.as<T>()[i])) : otherwise;
}

template <class T>
void update(const View& running, std::int64_t c, double momentum, double value) {
  if (!running) return;
  T& to = running.as<T>()[c];
  to = store<T>((1 - momentum) * static_cast<double>(load(to)) + momentum * value);
}

/// mean and invstd of each channel, as they are kept for backward, and the running statistics.
template <class T>
void find_statistics(const Images& images, const BatchNormParams& p, const BatchNormArgs& args,
                     Scratch<accumulate_t<T>>& scratch) {
  using C = accumulate_t<T>;
  const NormRows& rows = simd().of(args.x.dtype).norm;
  const T* x = args.x.as<T>();
  const auto n = static_cast<double>(images.count);
  C* const shift = scratch.constant[0];
  double momentum = p.momentum;
  if (p.training) {
    if (args.num_batches) {
      const std::int64_t batches = ++*args.num_batches.as<std::int64_t>();
      if (p.cumulative) momentum = 1 / static_cast<double>(batches);
    }
    for (std::int64_t c = 0; c < images.channels; ++c) {
      shift[c] = load(x[c * (images.pixels ? 1 : images.area)]);
    }
    scratch.repeat(images.channels);
    sum_channels(images, scratch.sums, [&](const Tile& t, double* sum, double* squares) {
      if (images.pixels) {
        rows.moments_each(t.rows, t.n, x + t.i, shift + t.c, sum, squares);
      } else {
        rows.moments(t.n, x + t.i, static_cast<double>(shift[t.c]), sum);
      }
    });
  }
  for (std::int64_t c = 0; c < images.channels; ++c) {
    double mean, var;
    if (p.training) {
      const double sum = scratch.sums[c];
      const double squares = std::max(scratch.sums[images.period + c] - sum * sum / n, 0.0);
      mean = static_cast<double>(shift[c]) + sum / n;
      var = squares / n;
      update<T>(args.running_mean, c, momentum, mean);
      update<T>(args.running_var, c, momentum, squares / (n - 1));
    } else {
      mean = value_or<T>(args.running_mean, c, 0);
      var = value_or<T>(args.running_var, c, 1);
    }
    args.mean.as<C>()[c] = static_cast<C>(mean);
    args.invstd.as<C>()[c] = static_cast<C>(invstd_of(var, p.eps));
  }
}

template <class T>
void batch_norm_as(const BatchNormParams& p, const BatchNormArgs& args, void* workspace) {
  using C = accumulate_t<T>;
  const Images images(args.x);
  Scratch<C> scratch(images, workspace);
  find_statistics<T>(images, p, args, scratch);
  const auto& [center, scale, offset, unused] = scratch.constant;
  for (std::int64_t c = 0; c < images.channels; ++c) {
    center[c] = args.mean.as<C>()[c];
    scale[c] = static_cast<C>(static_cast<double>(args.invstd.as<C>()[c]) *
                              value_or<T>(args.weight, c, 1));
    offset[c] = static_cast<C>(value_or<T>(args.bias, c, 0));
  }
  scratch.repeat(images.channels);
  const NormRows& rows = simd().of(args.x.dtype).norm;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  for_all(images, [&](const Tile& t) {
    if (images.pixels) {
      rows.affine_each(t.rows, t.n, x + t.i, center + t.c, scale + t.c, offset + t.c, y + t.i);
    } else {
      rows.affine(t.n, x + t.i, center[t.c], scale[t.c], offset[t.c], y + t.i);
    }
  });
}

void batch_norm(const Stream& stream, const BatchNormParams& p, const BatchNormArgs& args,
                void* workspace) {
  require_floating("batch_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "batch_norm",
                    [&]<class T>() { batch_norm_as<T>(p, args, workspace); });
}

template <class T>
void batch_norm_backward_as(bool training, const BatchNormGradArgs& args, void* workspace) {
  using C = accumulate_t<T>;
  const Images images(args.x);
  Scratch<C> scratch(images, workspace);
  const NormRows& rows = simd().of(args.x.dtype).norm;
  const T* x = args.x.as<T>();
  const T* g = args.grad_y.as<T>();
  const std::int64_t channels = images.channels;
  const auto n = static_cast<double>(images.count);
  const auto& [center, of_grad, of_x, offset] = scratch.constant;

  std::copy_n(args.mean.as<C>(), channels, center);
  scratch.repeat(channels);
  const bool sums = training || args.grad_weight || args.grad_bias;
  if (sums) {
    sum_channels(images, scratch.sums, [&](const Tile& t, double* sum, double* product) {
      if (images.pixels) {
        rows.products_each(t.rows, t.n, g + t.i, x + t.i, center + t.c, sum, product);
      } else {
        rows.products(t.n, g + t.i, x + t.i, nullptr, static_cast<double>(center[t.c]), sum);
      }
    });
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    const double invstd = static_cast<double>(args.invstd.as<C>()[c]);
    const double sum = sums ? scratch.sums[c] : 0;
    const double product = sums ? scratch.sums[images.period + c] : 0;
    if (args.grad_weight) args.grad_weight.as<T>()[c] = store<T>(product * invstd);
    if (args.grad_bias) args.grad_bias.as<T>()[c] = store<T>(sum);
    const double scale = invstd * value_or<T>(args.weight, c, 1);
    of_grad[c] = static_cast<C>(scale);
    of_x[c] = static_cast<C>(-scale * invstd * invstd * product / n);
    offset[c] = static_cast<C>(-scale * sum / n);
  }
  if (!args.grad_x) return;
  T* grad_x = args.grad_x.as<T>();
  if (!training) {
    std::fill_n(center, channels, C(0));
    std::fill_n(offset, channels, C(0));
  }
  scratch.repeat(channels);
  for_all(images, [&](const Tile& t) {
    const T* from = g + t.i;
    T* to = grad_x + t.i;
    if (images.pixels && training) {
      rows.gradient_each(t.rows, t.n, from, x + t.i, center + t.c, of_grad + t.c, of_x + t.c,
                         offset + t.c, to);
    } else if (images.pixels) {
      rows.affine_each(t.rows, t.n, from, center + t.c, of_grad + t.c, offset + t.c, to);
    } else if (training) {
      rows.gradient(t.n, from, x + t.i, nullptr,
                    {center[t.c], of_grad[t.c], of_x[t.c], offset[t.c]}, to);
    } else {
      rows.affine(t.n, from, 0, of_grad[t.c], 0, to);
    }
  });
}

void batch_norm_backward(const Stream& stream, bool training, const BatchNormGradArgs& args,
                         void* workspace) {
  require_floating("batch_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "batch_norm",
                    [&]<class T>() { batch_norm_backward_as<T>(training, args, workspace); });
}

template <class T>
void layer_norm_as(const LayerNormArgs& args) {
  using C = accumulate_t<T>;
  const std::int64_t rows = args.x.shape[0], n = args.x.shape[1];
  const NormRows& loops = simd().of(args.x.dtype).norm;
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / n, 1);
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = args.x.as<T>() + r * n;
      const double shift = static_cast<double>(load(x[0]));
      double acc[2] = {};
      loops.moments(n, x, shift, acc);
      const auto count = static_cast<double>(n);
      const double mean = shift + acc[0] / count;
      const double var = std::max(acc[1] - acc[0] * acc[0] / count, 0.0) / count;
      const double invstd = invstd_of(var, args.eps);
      args.mean.as<C>()[r] = static_cast<C>(mean);
      args.invstd.as<C>()[r] = static_cast<C>(invstd);
      loops.affine_row(n, x, mean, invstd, args.weight.data, args.bias.data,
                       args.y.as<T>() + r * n);
    }
  });
}

void layer_norm(const Stream& stream, const LayerNormArgs& args) {
  require_floating("layer_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "layer_norm", [&]<class T>() { layer_norm_as<T>(args); });
}

/// Each chunk of rows has two sums per column.
std::size_t layer_norm_backward_workspace_bytes(const View& x) {
  return static_cast<std::size_t>(2 * chunks_of(x.numel()) * x.shape[1]) * sizeof(double);
}

template <class T>
void layer_norm_backward_as(const LayerNormGradArgs& args, double* sums) {
  using C = accumulate_t<T>;
  const std::int64_t rows = args.x.shape[0], n = args.x.shape[1];
  const NormRows& loops = simd().of(args.x.dtype).norm;
  const std::int64_t chunks = chunks_of(args.x.numel());
  const bool columns = args.grad_weight || args.grad_bias;
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      double* sum = sums + 2 * chunk * n;
      if (columns) std::fill_n(sum, 2 * n, 0.0);
      for (std::int64_t r = rows * chunk / chunks; r < rows * (chunk + 1) / chunks; ++r) {
        const T* x = args.x.as<T>() + r * n;
        const T* g = args.grad_y.as<T>() + r * n;
        const double mean = static_cast<double>(args.mean.as<C>()[r]);
        const double invstd = static_cast<double>(args.invstd.as<C>()[r]);
        if (columns) loops.products_row(n, g, x, mean, invstd, sum, sum + n);
        if (!args.grad_x) continue;
        double acc[2] = {};
        loops.products(n, g, x, args.weight.data, mean, acc);
        const double share = invstd / static_cast<double>(n);
        loops.gradient(n, g, x, args.weight.data,
                       {mean, invstd, -share * invstd * invstd * acc[1], -share * acc[0]},
                       args.grad_x.as<T>() + r * n);
      }
    }
  });
  if (!columns) return;
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / (2 * chunks), 1);
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      double sum = 0, product = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum += sums[2 * chunk * n + i];
        product += sums[(2 * chunk + 1) * n + i];
      }
      if (args.grad_bias) args.grad_bias.as<T>()[i] = store<T>(sum);
      if (args.grad_weight) args.grad_weight.as<T>()[i] = store<T>(product);
    }
  });
}

void layer_norm_backward(const Stream& stream, const LayerNormGradArgs& args, void* workspace) {
  require_floating("layer_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "layer_norm", [&]<class T>() {
    layer_norm_backward_as<T>(args, static_cast<double*>(workspace));
  });
}

}  // namespace
}  // namespace weft::cpu

namespace weft {

NormKernels cpu_norm_kernels() {
  return {.batch_norm_workspace_bytes = cpu::batch_norm_workspace_bytes,
          .batch_norm = cpu::batch_norm,
          .batch_norm_backward = cpu::batch_norm_backward,
          .layer_norm = cpu::layer_norm,
          .layer_norm_backward_workspace_bytes = cpu::layer_norm_backward_workspace_bytes,
          .layer_norm_backward = cpu::layer_norm_backward};
}

}  // namespace weft
