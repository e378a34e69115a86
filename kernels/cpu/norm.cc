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
    constexpr std::int64_t kWide = 256;
    period = pixels ? channels * std::max<std::int64_t>(kWide / channels, 1) : channels;
    chunks = chunks_of(pixels ? count * channels : count);
  }
  std::int64_t numel() const { return count * channels; }

  std::int64_t channels, area;
  std::int64_t count;  // elements of a channel
  bool pixels;
  std::int64_t period;  // values that the loops over pixels want of each constant
  std::int64_t chunks;
};

/// What the workspace holds: arrays of a value per channel, repeated over the period, and each
/// chunk's two sums per channel.
struct Scratch {
  Scratch(const Images& x, void* workspace) : period(x.period) {
    for (double*& array : constant) {
      array = static_cast<double*>(workspace);
      workspace = array + period;
    }
    sums = static_cast<double*>(workspace);
  }
  static std::size_t bytes(const Images& x) {
    return static_cast<std::size_t>((kConstants + 2 * x.chunks) * x.period) * sizeof(double);
  }
  void repeat(std::int64_t channels) {
    for (double* array : constant) {
      for (std::int64_t i = channels; i < period; ++i) array[i] = array[i - channels];
    }
  }

  static constexpr int kConstants = 4;
  std::int64_t period;
  double* constant[kConstants];
  double* sums;
};

/// Adds up two sums per channel, over chunks: run(c, i, n, acc) adds the n elements from number i
/// on, which are of channel c, to acc[0] and acc[1]; each(i, n, first, second) adds n elements,
/// beginning with one of channel 0, each to its own sums. The totals are at sums[c] and
/// sums[period + c].
template <class Run, class Each>
void sum_channels(const Images& x, double* sums, const Run& run, const Each& each) {
  const std::int64_t units = x.pixels ? x.chunks : x.channels * x.chunks;
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain * units / x.numel(), 1);
  parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t chunk = u % x.chunks, c = u / x.chunks;
      std::int64_t from = x.count * chunk / x.chunks;
      const std::int64_t to = x.count * (chunk + 1) / x.chunks;
      double* first = sums + 2 * chunk * x.period;
      double* second = first + x.period;
      if (x.pixels) {
        std::fill_n(first, 2 * x.period, 0.0);
        for (std::int64_t i = from * x.channels; i < to * x.channels; i += x.period) {
          each(i, std::min(x.period, to * x.channels - i), first, second);
        }
        for (std::int64_t i = x.channels; i < x.period; ++i) {
          first[i % x.channels] += first[i];
          second[i % x.channels] += second[i];
        }
        continue;
      }
      double acc[2] = {};
      while (from < to) {
        const std::int64_t image = from / x.area, at = from % x.area;
        const std::int64_t n = std::min(x.area - at, to - from);
        run(c, (image * x.channels + c) * x.area + at, n, acc);
        from += n;
      }
      first[c] = acc[0];
      second[c] = acc[1];
    }
  });
  for (std::int64_t chunk = 1; chunk < x.chunks; ++chunk) {
    const double* more = sums + 2 * chunk * x.period;
    for (std::int64_t c = 0; c < x.channels; ++c) {
      sums[c] += more[c];
      sums[x.period + c] += more[x.period + c];
    }
  }
}

/// Covers all elements: run(c, i, n) for n of them from number i on that are of channel c, or
/// each(c, i, n), where element i is of channel c and those behind it of the following ones, round
/// and round.
template <class Run, class Each>
void for_channels(const Images& x, const Run& run, const Each& each) {
  parallel_for(x.numel(), kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      std::int64_t n;
      if (x.pixels) {
        const std::int64_t c = begin % x.channels;
        n = std::min(x.period - c, end - begin);
        each(c, begin, n);
      } else {
        const std::int64_t plane = begin / x.area;
        n = std::min((plane + 1) * x.area - begin, end - begin);
        run(plane % x.channels, begin, n);
      }
      begin += n;
    }
  });
}

std::size_t batch_norm_workspace_bytes(const View& x) { return Scratch::bytes(Images(x)); }

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

template <class T>
void batch_norm_as(const BatchNormParams& p, const BatchNormArgs& args, void* workspace) {
  using C = accumulate_t<T>;
  const Images images(args.x);
  Scratch scratch(images, workspace);
  const NormRows& rows = simd().of(args.x.dtype).norm;
  const T* x = args.x.as<T>();
  const std::int64_t channels = images.channels;
  const auto n = static_cast<double>(images.count);
  auto& [center, scale, offset, shift] = scratch.constant;

  double momentum = p.momentum;
  if (p.training) {
    if (args.num_batches) {
      const std::int64_t batches = ++*args.num_batches.as<std::int64_t>();
      if (p.cumulative) momentum = 1 / static_cast<double>(batches);
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      shift[c] = static_cast<double>(load(x[c * (images.pixels ? 1 : images.area)]));
    }
    scratch.repeat(channels);
    sum_channels(
        images, scratch.sums,
        [&](std::int64_t c, std::int64_t i, std::int64_t count, double* acc) {
          rows.moments(count, x + i, shift[c], acc);
        },
        [&](std::int64_t i, std::int64_t count, double* sum, double* squares) {
          rows.moments_each(count, x + i, shift, sum, squares);
        });
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    double mean, var;
    if (p.training) {
      const double sum = scratch.sums[c];
      const double squares = std::max(scratch.sums[images.period + c] - sum * sum / n, 0.0);
      mean = shift[c] + sum / n;
      var = squares / n;
      update<T>(args.running_mean, c, momentum, mean);
      update<T>(args.running_var, c, momentum, squares / (n - 1));
    } else {
      mean = value_or<T>(args.running_mean, c, 0);
      var = value_or<T>(args.running_var, c, 1);
    }
    const double invstd = invstd_of(var, p.eps);
    args.mean.as<C>()[c] = static_cast<C>(mean);
    args.invstd.as<C>()[c] = static_cast<C>(invstd);
    center[c] = mean;
    scale[c] = invstd * value_or<T>(args.weight, c, 1);
    offset[c] = value_or<T>(args.bias, c, 0);
  }
  scratch.repeat(channels);
  T* y = args.y.as<T>();
  for_channels(
      images,
      [&](std::int64_t c, std::int64_t i, std::int64_t count) {
        rows.affine(count, x + i, center[c], scale[c], offset[c], y + i);
      },
      [&](std::int64_t c, std::int64_t i, std::int64_t count) {
        rows.affine_each(count, x + i, center + c, scale + c, offset + c, y + i);
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
  Scratch scratch(images, workspace);
  const NormRows& rows = simd().of(args.x.dtype).norm;
  const T* x = args.x.as<T>();
  const T* g = args.grad_y.as<T>();
  const std::int64_t channels = images.channels;
  const auto n = static_cast<double>(images.count);
  auto& [center, of_grad, of_x, offset] = scratch.constant;

  for (std::int64_t c = 0; c < channels; ++c) {
    center[c] = static_cast<double>(args.mean.as<C>()[c]);
  }
  scratch.repeat(channels);
  const bool sums = training || args.grad_weight || args.grad_bias;
  if (sums) {
    sum_channels(
        images, scratch.sums,
        [&](std::int64_t c, std::int64_t i, std::int64_t count, double* acc) {
          rows.products(count, g + i, x + i, nullptr, center[c], acc);
        },
        [&](std::int64_t i, std::int64_t count, double* sum, double* product) {
          rows.products_each(count, g + i, x + i, center, sum, product);
        });
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    const double invstd = static_cast<double>(args.invstd.as<C>()[c]);
    const double sum = sums ? scratch.sums[c] : 0;
    const double product = sums ? scratch.sums[images.period + c] : 0;
    if (args.grad_weight) args.grad_weight.as<T>()[c] = store<T>(product * invstd);
    if (args.grad_bias) args.grad_bias.as<T>()[c] = store<T>(sum);
    of_grad[c] = invstd * value_or<T>(args.weight, c, 1);
    of_x[c] = -of_grad[c] * invstd * invstd * product / n;
    offset[c] = -of_grad[c] * sum / n;
  }
  if (!args.grad_x) return;
  T* grad_x = args.grad_x.as<T>();
  if (!training) {
    std::fill_n(center, channels, 0.0);
    std::fill_n(offset, channels, 0.0);
    scratch.repeat(channels);
    return for_channels(
        images,
        [&](std::int64_t c, std::int64_t i, std::int64_t count) {
          rows.affine(count, g + i, 0, of_grad[c], 0, grad_x + i);
        },
        [&](std::int64_t c, std::int64_t i, std::int64_t count) {
          rows.affine_each(count, g + i, center + c, of_grad + c, offset + c, grad_x + i);
        });
  }
  scratch.repeat(channels);
  for_channels(
      images,
      [&](std::int64_t c, std::int64_t i, std::int64_t count) {
        rows.gradient(count, g + i, x + i, nullptr, {center[c], of_grad[c], of_x[c], offset[c]},
                      grad_x + i);
      },
      [&](std::int64_t c, std::int64_t i, std::int64_t count) {
        rows.gradient_each(count, g + i, x + i, center + c, of_grad + c, of_x + c, offset + c,
                           grad_x + i);
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
