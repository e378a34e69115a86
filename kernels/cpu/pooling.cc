// 2-D max pooling for both layouts, by strides: planes of adjacent pixels (nchw), or pixels of
// adjacent channels (nhwc), where a whole pixel is compared at once.
#include <cstring>
#include <limits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/families.h"

namespace weft::cpu {
namespace {

/// The part of a window that lies inside the image: positions first, first + dilation ... < end.
struct Window {
  std::int64_t first, end;
  /// Possible with dilation: all taken positions are padding.
  bool empty() const { return first >= end; }
};

Window window_at(const Pool2dParams& p, int axis, std::int64_t out, std::int64_t size) {
  const std::int64_t dilation = p.dilation[axis];
  std::int64_t first = out * p.stride[axis] - p.padding[axis];
  const std::int64_t end = first + (p.kernel[axis] - 1) * dilation + 1;
  if (first < 0) first += (-first + dilation - 1) / dilation * dilation;
  return {first, std::min(end, size)};
}

/// Also true of some nchw images of one pixel, which are nhwc just as well.
bool channels_adjacent(const View& a, const View& b) {
  return a.shape[1] > 1 && a.strides[1] == 1 && b.strides[1] == 1;
}

template <class T>
accumulate_t<T> lowest() {
  return -std::numeric_limits<accumulate_t<T>>::infinity();
}

/// Windows of one plane, or of one channel of a strided image.
template <class T>
void pool_plane(const Pool2dParams& p, const View& x, const View& y, const T* in, T* out,
                std::int32_t* winner) {
  const std::int64_t height = x.shape[2], width = x.shape[3];
  const std::int64_t sh = x.strides[2], sw = x.strides[3];
  for (std::int64_t oh = 0; oh < y.shape[2]; ++oh) {
    const Window rows = window_at(p, 0, oh, height);
    for (std::int64_t ow = 0; ow < y.shape[3]; ++ow) {
      const Window cols = window_at(p, 1, ow, width);
      const bool empty = rows.empty() || cols.empty();
      std::int64_t position = empty ? 0 : rows.first * width + cols.first;
      auto best = empty ? lowest<T>() : load(in[rows.first * sh + cols.first * sw]);
      for (std::int64_t h = rows.first; h < rows.end && best == best; h += p.dilation[0]) {
        for (std::int64_t w = cols.first; w < cols.end && best == best; w += p.dilation[1]) {
          const auto v = load(in[h * sh + w * sw]);
          const bool takes = v > best || v != v;  // the first NaN ends the search
          best = takes ? v : best;
          position = takes ? h * width + w : position;
        }
      }
      const std::int64_t at = oh * y.strides[2] + ow * y.strides[3];
      out[at] = store<T>(best);
      winner[at] = static_cast<std::int32_t>(position);
    }
  }
}

/// One row of output pixels of one image.
template <class T>
void pool_pixel_row(const Pool2dParams& p, const View& x, const View& y, std::int64_t oh,
                    const T* in, T* out, std::int32_t* winner) {
  const std::int64_t channels = x.shape[1], width = x.shape[3];
  const PoolStep step = simd().of(x.dtype).pool_step;
  const Window rows = window_at(p, 0, oh, x.shape[2]);
  for (std::int64_t ow = 0; ow < y.shape[3]; ++ow) {
    const Window cols = window_at(p, 1, ow, width);
    const std::int64_t at = oh * y.strides[2] + ow * y.strides[3];
    if (rows.empty() || cols.empty()) {
      std::fill_n(out + at, channels, store<T>(lowest<T>()));
      std::fill_n(winner + at, channels, 0);
      continue;
    }
    std::memcpy(out + at, in + rows.first * x.strides[2] + cols.first * x.strides[3],
                static_cast<std::size_t>(channels) * sizeof(T));
    std::fill_n(winner + at, channels,
                static_cast<std::int32_t>(rows.first * width + cols.first));
    for (std::int64_t h = rows.first; h < rows.end; h += p.dilation[0]) {
      for (std::int64_t w = cols.first; w < cols.end; w += p.dilation[1]) {
        if (h == rows.first && w == cols.first) continue;  // already there
        step(channels, in + h * x.strides[2] + w * x.strides[3],
             static_cast<std::int32_t>(h * width + w), out + at, winner + at);
      }
    }
  }
}

template <class T>
void max_pool2d_as(const Pool2dParams& p, const View& x, const View& y, const View& index) {
  const std::int64_t images = y.shape[0], channels = y.shape[1], out_rows = y.shape[2];
  const std::int64_t row_work = y.shape[3] * p.kernel[0] * p.kernel[1];
  if (channels_adjacent(x, y)) {
    const std::int64_t grain =
        std::max<std::int64_t>(kCheapGrain / std::max<std::int64_t>(row_work * channels, 1), 1);
    parallel_for(images * out_rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t n = r / out_rows;
        pool_pixel_row(p, x, y, r % out_rows, x.as<T>() + n * x.strides[0],
                       y.as<T>() + n * y.strides[0],
                       index.as<std::int32_t>() + n * index.strides[0]);
      }
    });
    return;
  }
  const std::int64_t grain =
      std::max<std::int64_t>(kCostlyGrain / std::max<std::int64_t>(row_work * out_rows, 1), 1);
  parallel_for(images * channels, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t n = u / channels, c = u % channels;
      const std::int64_t to = n * y.strides[0] + c * y.strides[1];
      pool_plane(p, x, y, x.as<T>() + n * x.strides[0] + c * x.strides[1], y.as<T>() + to,
                 index.as<std::int32_t>() + to);
    }
  });
}

void max_pool2d(const Stream& stream, const Pool2dParams& p, const View& x, const View& y,
                const View& index) {
  if (!is_floating(x.dtype)) throw_unsupported("max_pool2d", stream.device, x.dtype);
  if (y.numel() == 0) return;
  dispatch_floating(x.dtype, "max_pool2d",
                    [&]<class T>() { max_pool2d_as<T>(p, x, y, index); });
}

template <class T>
void max_pool2d_backward_as(const View& grad_y, const View& index, const View& grad_x) {
  const std::int64_t images = grad_x.shape[0], channels = grad_x.shape[1];
  const std::int64_t width = grad_x.shape[3];
  const std::int64_t out_rows = grad_y.shape[2], out_cols = grad_y.shape[3];
  // Windows may overlap, so one thread owns a plane, or (nhwc) some channels of an image: enough of
  // them to fill a cache line, for no two threads to write to the same one.
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const std::int64_t block = channels_adjacent(grad_x, grad_y) ? std::min(channels, kLine) : 1;
  const std::int64_t blocks = (channels + block - 1) / block;
  const std::int64_t work = std::max<std::int64_t>(grad_x.shape[2] * width * block, 1);
  parallel_for(images * blocks, std::max<std::int64_t>(kCheapGrain / work, 1),
               [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t n = u / blocks, c = u % blocks * block;
      const std::int64_t here = std::min(block, channels - c);
      T* gx = grad_x.as<T>() + n * grad_x.strides[0] + c * grad_x.strides[1];
      for (std::int64_t h = 0; h < grad_x.shape[2]; ++h) {
        for (std::int64_t w = 0; w < width; ++w) {
          T* pixel = gx + h * grad_x.strides[2] + w * grad_x.strides[3];
          for (std::int64_t k = 0; k < here; ++k) pixel[k] = store<T>(0.0);
        }
      }
      const std::int64_t from = n * grad_y.strides[0] + c * grad_y.strides[1];
      const T* gy = grad_y.as<T>() + from;
      const std::int32_t* winner = index.as<std::int32_t>() + from;
      for (std::int64_t oh = 0; oh < out_rows; ++oh) {
        for (std::int64_t ow = 0; ow < out_cols; ++ow) {
          const std::int64_t at = oh * grad_y.strides[2] + ow * grad_y.strides[3];
          for (std::int64_t k = 0; k < here; ++k) {
            const std::int64_t h = winner[at + k] / width, w = winner[at + k] % width;
            T& to = gx[h * grad_x.strides[2] + w * grad_x.strides[3] + k];
            to = store<T>(load(to) + load(gy[at + k]));
          }
        }
      }
    }
  });
}

void max_pool2d_backward(const Stream& stream, const Pool2dParams&, const View& grad_y,
                         const View& index, const View& grad_x) {
  if (!is_floating(grad_x.dtype)) {
    throw_unsupported("max_pool2d", stream.device, grad_x.dtype);
  }
  if (grad_x.numel() == 0) return;
  dispatch_floating(grad_x.dtype, "max_pool2d",
                    [&]<class T>() { max_pool2d_backward_as<T>(grad_y, index, grad_x); });
}

}  // namespace
}  // namespace weft::cpu

namespace weft {

PoolingKernels cpu_pooling_kernels() {
  return {.max_pool2d = cpu::max_pool2d, .max_pool2d_backward = cpu::max_pool2d_backward};
}

}  // namespace weft
