// 2-D max and average pooling for both layouts. nchw: planes of adjacent pixels, where a whole row
// of windows is compared or summed at once. nhwc: pixels of adjacent channels, where all channels
// of a window are processed at once.
#include <algorithm>
#include <limits>

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/pooling.h"
#include "weft/kernels/cpu/loops/reduce.h"
#include "weft/kernels/pool_axis.h"

namespace weft::cpu {
namespace {

std::int64_t positive_ceil(std::int64_t a, std::int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

/// The kernel positions in [0, kernel) that are inside the image for output position `out`.
struct Range {
  std::int64_t begin, end;
};
Range inside(const Pool2dParams& p, int axis, std::int64_t out, std::int64_t size) {
  const std::int64_t first = out * p.stride[axis] - p.padding[axis];
  return {positive_ceil(-first, p.dilation[axis]),
          std::min(p.kernel[axis], positive_ceil(size - first, p.dilation[axis]))};
}

/// Also true for some nchw images of one pixel, for which both layouts are the same.
bool channels_adjacent(const View& a, const View& b) {
  return a.shape[1] > 1 && a.strides[1] == 1 && b.strides[1] == 1;
}

/// The distance in memory of an image's pixels, numbered row by row.
std::int64_t pixel_step(const View& v) {
  return v.shape[3] > 1 ? v.strides[3] : v.shape[2] > 1 ? v.strides[2] : 0;
}

/// A dilated window may contain no pixel: its result is -infinity, and its winner stays -1.
template <class T>
void settle_empty(std::int64_t n, T* best, const std::int32_t* winner) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (winner[i] < 0) best[i] = store<T>(-std::numeric_limits<accumulate_t<T>>::infinity());
  }
}

/// One row of a plane's windows: compares each kernel position for the whole row at once.
template <class T>
void pool_plane_row(const Pool2dParams& p, const View& x, std::int64_t out_cols, std::int64_t oh,
                    const T* in, T* best, std::int32_t* winner) {
  const std::int64_t width = x.shape[3];
  const PoolStep step = pooling_loops().of(x.dtype).max_step;
  std::fill_n(best, out_cols, store<T>(0.0f));
  std::fill_n(winner, out_cols, -1);
  const Range rows = inside(p, 0, oh, x.shape[2]);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t h = oh * p.stride[0] - p.padding[0] + r * p.dilation[0];
    for (std::int64_t s = 0; s < p.kernel[1]; ++s) {
      // The outputs whose window has an image column at s: w = ow * stride + shift in [0, width).
      const std::int64_t shift = s * p.dilation[1] - p.padding[1];
      const std::int64_t from = positive_ceil(-shift, p.stride[1]);
      const std::int64_t to = std::min(out_cols, positive_ceil(width - shift, p.stride[1]));
      if (from >= to) continue;
      const std::int64_t position = h * width + from * p.stride[1] + shift;
      step(to - from, in + position, p.stride[1], static_cast<std::int32_t>(position),
           static_cast<std::int32_t>(p.stride[1]), best + from, winner + from);
    }
  }
  settle_empty(out_cols, best, winner);
}

/// One row of output pixels: compares each kernel position for all channels at once. A plane counts
/// as one channel.
template <class T>
void pool_pixel_row(const Pool2dParams& p, const View& x, std::int64_t channels,
                    std::int64_t out_cols, std::int64_t oh, const T* in, T* best,
                    std::int32_t* winner) {
  const std::int64_t width = x.shape[3];
  const PoolStep step = pooling_loops().of(x.dtype).max_step;
  const Range rows = inside(p, 0, oh, x.shape[2]);
  for (std::int64_t ow = 0; ow < out_cols; ++ow, best += channels, winner += channels) {
    const Range cols = inside(p, 1, ow, width);
    std::fill_n(best, channels, store<T>(0.0f));
    std::fill_n(winner, channels, -1);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      for (std::int64_t s = cols.begin; s < cols.end; ++s) {
        const std::int64_t h = oh * p.stride[0] - p.padding[0] + r * p.dilation[0];
        const std::int64_t w = ow * p.stride[1] - p.padding[1] + s * p.dilation[1];
        step(channels, in + (h * width + w) * channels, 1, static_cast<std::int32_t>(h * width + w),
             0, best, winner);
      }
    }
    settle_empty(channels, best, winner);
  }
}

/// One row of adaptive windows. A plane counts as one channel.
template <class T>
void pool_adaptive_row(const PoolAxis<>& rows, const PoolAxis<>& cols, std::int64_t channels,
                       DType dtype, std::int64_t oh, const T* in, T* best, std::int32_t* winner) {
  const PoolStep step = pooling_loops().of(dtype).max_step;
  for (std::int64_t ow = 0; ow < cols.out; ++ow, best += channels, winner += channels) {
    std::fill_n(winner, channels, -1);
    for (std::int64_t h = rows.begin(oh); h < rows.end(oh); ++h) {
      for (std::int64_t w = cols.begin(ow); w < cols.end(ow); ++w) {
        const std::int64_t at = h * cols.in + w;
        step(channels, in + at * channels, 1, static_cast<std::int32_t>(at), 0, best, winner);
      }
    }
  }
}

template <class T>
void max_pool2d_as(const Pool2dParams& p, const View& x, const View& y, const View& index) {
  const std::int64_t channels = y.shape[1], out_rows = y.shape[2], out_cols = y.shape[3];
  const bool pixels = channels_adjacent(x, y);
  // If the kernel is wider than the image, most of its positions may be outside: these are skipped.
  const bool wide = p.kernel[1] > x.shape[3];
  // Rows of the output in memory order, of images or of planes.
  const std::int64_t images = pixels ? y.shape[0] : y.shape[0] * channels;
  const std::int64_t in_step = x.shape[2] * x.shape[3] * (pixels ? channels : 1);
  const std::int64_t row = out_cols * (pixels ? channels : 1);
  const PoolAxis<> rows = pool_axis(p, 0, x.shape[2], out_rows);
  const PoolAxis<> cols = pool_axis(p, 1, x.shape[3], out_cols);
  const auto taps = [&](int axis) {  // at most, per window; never 0, even if x is empty
    return std::min(p.kernel[axis], std::max<std::int64_t>(x.shape[2 + axis], 1));
  };
  const std::int64_t work =
      p.adaptive ? std::max(in_step / out_rows, row) : row * taps(0) * taps(1);
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / work, 1);
  parallel_for(images * out_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* in = x.as<T>() + r / out_rows * in_step;
      T* best = y.as<T>() + r * row;
      std::int32_t* winner = index.as<std::int32_t>() + r * row;
      if (p.adaptive)
        pool_adaptive_row(rows, cols, pixels ? channels : 1, x.dtype, r % out_rows, in, best,
                          winner);
      else if (pixels || wide)
        pool_pixel_row(p, x, pixels ? channels : 1, out_cols, r % out_rows, in, best, winner);
      else
        pool_plane_row(p, x, out_cols, r % out_rows, in, best, winner);
    }
  });
}

void max_pool2d(const Stream& stream, const Pool2dParams& p, const View& x, const View& y,
                const View& index) {
  if (!is_floating(x.dtype)) throw_unsupported("max_pool2d", stream.device, x.dtype);
  if (y.numel() == 0) return;
  dispatch_floating(x.dtype, "max_pool2d", [&]<class T>() { max_pool2d_as<T>(p, x, y, index); });
}

template <class T>
void max_pool2d_backward_as(const Pool2dParams& p, const View& grad_y, const View& index,
                            const View& grad_x) {
  const std::int64_t images = grad_x.shape[0], channels = grad_x.shape[1];
  const std::int64_t in_rows = grad_x.shape[2], width = grad_x.shape[3];
  const std::int64_t out_rows = grad_y.shape[2], out_cols = grad_y.shape[3];
  const std::int64_t in_step = pixel_step(grad_x), out_step = pixel_step(grad_y);
  const std::uint32_t pixels = static_cast<std::uint32_t>(in_rows * width);
  const PoolAxis<> adaptive_rows = pool_axis(p, 0, in_rows, out_rows);
  // Windows may overlap, so one thread owns a plane, or (nhwc) some channels of an image: few
  // enough to leave work for all threads, but enough to fill a cache line, so that no two threads
  // write to the same line.
  constexpr std::int64_t kLine = 64 / sizeof(T);
  std::int64_t block = 1;
  if (channels_adjacent(grad_x, grad_y)) {
    const std::int64_t share = images * channels / (4 * num_threads());
    block = std::min(channels, std::max(share / kLine, std::int64_t{1}) * kLine);
  }
  const std::int64_t blocks = (channels + block - 1) / block;
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / (in_rows * width * block), 1);
  parallel_for(images * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t n = u / blocks, c = u % blocks * block;
      const std::int64_t here = std::min(block, channels - c);
      T* gx = grad_x.as<T>() + n * grad_x.strides[0] + c * grad_x.strides[1];
      // Zeroes rows just before the first window that reaches them, so that they stay cached.
      std::int64_t cleared = 0;
      const auto clear = [&](std::int64_t rows) {
        const std::int64_t from = cleared * width, to = rows * width;
        if (in_step == here) {
          std::fill(gx + from * here, gx + to * here, store<T>(0.0f));
        } else {
          for (std::int64_t i = from; i < to; ++i) {
            std::fill_n(gx + i * in_step, here, store<T>(0.0f));
          }
        }
        cleared = rows;
      };
      const std::int64_t from = n * grad_y.strides[0] + c * grad_y.strides[1];
      const T* gy = grad_y.as<T>() + from;
      const std::int32_t* winner = index.as<std::int32_t>() + from;
      for (std::int64_t oh = 0; oh < out_rows; ++oh) {
        const std::int64_t last =
            p.adaptive ? adaptive_rows.end(oh) - 1
                       : oh * p.stride[0] - p.padding[0] + (p.kernel[0] - 1) * p.dilation[0];
        if (last >= cleared) clear(std::min(last + 1, in_rows));
        for (std::int64_t ow = 0; ow < out_cols; ++ow, gy += out_step, winner += out_step) {
          for (std::int64_t k = 0; k < here; ++k) {
            // -1 for a window with only padding, or an invalid index of the caller
            if (static_cast<std::uint32_t>(winner[k]) >= pixels) continue;
            T& to = gx[winner[k] * in_step + k];
            to = store<T>(load(to) + load(gy[k]));
          }
        }
      }
      clear(in_rows);
    }
  });
}

void max_pool2d_backward(const Stream& stream, const Pool2dParams& p, const View& grad_y,
                         const View& index, const View& grad_x) {
  if (!is_floating(grad_x.dtype)) {
    throw_unsupported("max_pool2d", stream.device, grad_x.dtype);
  }
  if (grad_x.numel() == 0) return;
  dispatch_floating(grad_x.dtype, "max_pool2d",
                    [&]<class T>() { max_pool2d_backward_as<T>(p, grad_y, index, grad_x); });
}

/// The windows of an average pooling, and the layout of the images.
struct AvgPool {
  AvgPool(const AvgPool2dParams& params, const View& image, const View& pooled)
      : p(params),
        rows(pool_axis(params, 0, image.shape[2], pooled.shape[2])),
        cols(pool_axis(params, 1, image.shape[3], pooled.shape[3])),
        pixels(channels_adjacent(image, pooled)),
        channels(pixels ? image.shape[1] : 1),
        images(pixels ? image.shape[0] : image.shape[0] * image.shape[1]) {}

  double scale(std::int64_t oh, std::int64_t ow) const {
    if (p.divisor != 0) return 1 / static_cast<double>(p.divisor);
    return 1 / static_cast<double>(rows.size(oh, p.count_include_pad) *
                                   cols.size(ow, p.count_include_pad));
  }

  const AvgPool2dParams& p;
  PoolAxis<> rows, cols;
  bool pixels;
  std::int64_t channels;  // adjacent channels; 1 if pixels are adjacent
  std::int64_t images;    // or planes
};

/// Sums of up to this many values stay in f64 until they are complete.
constexpr std::int64_t kTile = 256;

/// One row of a plane's windows. Narrow windows are summed together, each kernel position for the
/// whole row at once; wide windows one after the other.
template <class T>
void avg_plane_row(const AvgPool& a, DType dtype, std::int64_t oh, const T* in, T* out) {
  constexpr std::int64_t kWide = 16;
  const std::int64_t width = a.cols.in, stride = a.cols.stride;
  const ReduceRuns sum_of = reduce_loops().of(dtype).sum.runs;
  const AddScaledStep add = pooling_loops().of(dtype).add_scaled_step;
  const std::int64_t top = a.rows.begin(oh), bottom = a.rows.end(oh);
  double sum[kTile];
  for (std::int64_t tile = 0; tile < a.cols.out; tile += kTile) {
    const std::int64_t n = std::min(kTile, a.cols.out - tile);
    std::fill_n(sum, n, 0.0);
    if (a.p.adaptive || a.cols.kernel >= kWide) {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t left = a.cols.begin(tile + i), right = a.cols.end(tile + i);
        if (right - left == width) {  // whole rows
          sum_of(1, 0, (bottom - top) * width, in + top * width, &sum[i]);
          continue;
        }
        for (std::int64_t h = top; h < bottom; ++h) {
          sum_of(1, 0, right - left, in + h * width + left, &sum[i]);
        }
      }
    } else {
      for (std::int64_t h = top; h < bottom; ++h) {
        for (std::int64_t s = 0; s < a.cols.kernel; ++s) {
          // Outputs whose window has an image column at s: w = ow * stride + shift in [0, width).
          const std::int64_t shift = s - a.cols.padding;
          const std::int64_t from = std::max(positive_ceil(-shift, stride), tile);
          const std::int64_t to = std::min(tile + n, positive_ceil(width - shift, stride));
          if (from >= to) continue;
          add(to - from, in + h * width + from * stride + shift, stride, 1, sum + (from - tile));
        }
      }
    }
    for (std::int64_t i = 0; i < n; ++i) out[tile + i] = store<T>(sum[i] * a.scale(oh, tile + i));
  }
}

/// One row of output pixels, with all channels of a window at once.
template <class T>
void avg_pixel_row(const AvgPool& a, DType dtype, std::int64_t oh, const T* in, T* out) {
  const std::int64_t width = a.cols.in;
  const auto add = pooling_loops().of(dtype).add_scaled_step;
  double sum[kTile];
  for (std::int64_t ow = 0; ow < a.cols.out; ++ow, out += a.channels) {
    const double scale = a.scale(oh, ow);
    for (std::int64_t c = 0; c < a.channels; c += kTile) {
      const std::int64_t n = std::min(kTile, a.channels - c);
      std::fill_n(sum, n, 0.0);
      for (std::int64_t h = a.rows.begin(oh); h < a.rows.end(oh); ++h) {
        for (std::int64_t w = a.cols.begin(ow); w < a.cols.end(ow); ++w) {
          add(n, in + (h * width + w) * a.channels + c, 1, 1, sum);
        }
      }
      for (std::int64_t i = 0; i < n; ++i) out[c + i] = store<T>(sum[i] * scale);
    }
  }
}

template <class T>
void avg_pool2d_as(const AvgPool2dParams& p, const View& x, const View& y) {
  const AvgPool a(p, x, y);
  const std::int64_t in_step = a.rows.in * a.cols.in * a.channels;
  const std::int64_t row = a.cols.out * a.channels;
  const std::int64_t work = std::max(x.numel() / (a.images * a.rows.out), row);
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / work, 1);
  parallel_for(a.images * a.rows.out, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* in = x.as<T>() + r / a.rows.out * in_step;
      T* out = y.as<T>() + r * row;
      if (a.pixels)
        avg_pixel_row(a, x.dtype, r % a.rows.out, in, out);
      else
        avg_plane_row(a, x.dtype, r % a.rows.out, in, out);
    }
  });
}

void avg_pool2d(const Stream& stream, const AvgPool2dParams& p, const View& x, const View& y) {
  if (!is_floating(x.dtype)) throw_unsupported("avg_pool2d", stream.device, x.dtype);
  if (y.numel() == 0) return;
  dispatch_floating(x.dtype, "avg_pool2d", [&]<class T>() { avg_pool2d_as<T>(p, x, y); });
}

/// One row of a plane's gradient: every window that covers it adds its part to its positions.
template <class T>
void avg_plane_gradient(const AvgPool& a, std::int64_t h, const T* grad_y, T* grad_x) {
  double sum[kTile];
  for (std::int64_t tile = 0; tile < a.cols.in; tile += kTile) {
    const std::int64_t end = std::min(tile + kTile, a.cols.in);
    std::fill_n(sum, end - tile, 0.0);
    for (std::int64_t oh = a.rows.first(h); oh < a.rows.last(h); ++oh) {
      for (std::int64_t ow = a.cols.first(tile); ow < a.cols.last(end - 1); ++ow) {
        const double share =
            static_cast<double>(load(grad_y[oh * a.cols.out + ow])) * a.scale(oh, ow);
        const std::int64_t right = std::min(a.cols.end(ow), end);
        for (std::int64_t w = std::max(a.cols.begin(ow), tile); w < right; ++w) {
          sum[w - tile] += share;
        }
      }
    }
    for (std::int64_t w = tile; w < end; ++w) grad_x[w] = store<T>(sum[w - tile]);
  }
}

/// One row of pixels: each sums over the windows that cover it, all channels at once.
template <class T>
void avg_pixel_gradient(const AvgPool& a, DType dtype, std::int64_t h, const T* grad_y, T* grad_x) {
  const auto add = pooling_loops().of(dtype).add_scaled_step;
  double sum[kTile];
  for (std::int64_t w = 0; w < a.cols.in; ++w, grad_x += a.channels) {
    for (std::int64_t c = 0; c < a.channels; c += kTile) {
      const std::int64_t n = std::min(kTile, a.channels - c);
      std::fill_n(sum, n, 0.0);
      for (std::int64_t oh = a.rows.first(h); oh < a.rows.last(h); ++oh) {
        for (std::int64_t ow = a.cols.first(w); ow < a.cols.last(w); ++ow) {
          add(n, grad_y + (oh * a.cols.out + ow) * a.channels + c, 1, a.scale(oh, ow), sum);
        }
      }
      for (std::int64_t i = 0; i < n; ++i) grad_x[c + i] = store<T>(sum[i]);
    }
  }
}

/// Whether the axis has one window, which covers all positions.
bool covers_all(const PoolAxis<>& axis) {
  return axis.out == 1 && axis.begin(0) == 0 && axis.end(0) == axis.in;
}

/// For one window over the whole image: all positions of a plane get the same value, or all pixels
/// the same channels.
template <class T>
void spread_gradient(const AvgPool& a, const T* grad_y, T* grad_x) {
  const std::int64_t pixels = a.rows.in * a.cols.in, row = pixels * a.channels;
  const double scale = a.scale(0, 0);
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / row, 1);
  parallel_for(a.images, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t image = begin; image < end; ++image) {
      const T* gy = grad_y + image * a.channels;
      T* const gx = grad_x + image * row;
      for (std::int64_t c = 0; c < a.channels; ++c) {
        gx[c] = store<T>(static_cast<double>(load(gy[c])) * scale);
      }
      if (a.channels == 1) {
        std::fill_n(gx + 1, pixels - 1, *gx);
      } else {
        for (std::int64_t i = 1; i < pixels; ++i) std::copy_n(gx, a.channels, gx + i * a.channels);
      }
    }
  });
}

template <class T>
void avg_pool2d_backward_as(const AvgPool2dParams& p, const View& grad_y, const View& grad_x) {
  const AvgPool a(p, grad_x, grad_y);
  if (covers_all(a.rows) && covers_all(a.cols)) {
    return spread_gradient(a, grad_y.as<T>(), grad_x.as<T>());
  }
  const std::int64_t out_step = a.rows.out * a.cols.out * a.channels;
  const std::int64_t row = a.cols.in * a.channels;
  const std::int64_t work = std::max(grad_y.numel() / (a.images * a.rows.in), row);
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / work, 1);
  parallel_for(a.images * a.rows.in, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* gy = grad_y.as<T>() + r / a.rows.in * out_step;
      T* gx = grad_x.as<T>() + r * row;
      if (a.pixels)
        avg_pixel_gradient(a, grad_x.dtype, r % a.rows.in, gy, gx);
      else
        avg_plane_gradient(a, r % a.rows.in, gy, gx);
    }
  });
}

void avg_pool2d_backward(const Stream& stream, const AvgPool2dParams& p, const View& grad_y,
                         const View& grad_x) {
  if (!is_floating(grad_x.dtype)) throw_unsupported("avg_pool2d", stream.device, grad_x.dtype);
  if (grad_x.numel() == 0) return;
  dispatch_floating(grad_x.dtype, "avg_pool2d",
                    [&]<class T>() { avg_pool2d_backward_as<T>(p, grad_y, grad_x); });
}

}  // namespace

PoolingKernels pooling_kernels() {
  return {.max_pool2d = max_pool2d,
          .max_pool2d_backward = max_pool2d_backward,
          .avg_pool2d = avg_pool2d,
          .avg_pool2d_backward = avg_pool2d_backward};
}

}  // namespace weft::cpu
