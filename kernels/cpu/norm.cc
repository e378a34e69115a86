// Batch norm and group norm. Sums over a channel are cut into chunks whose number depends only on
// the shapes, so that the result is the same for every team size.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/elementwise.h"
#include "weft/kernels/cpu/loops/norm.h"
#include "weft/kernels/elementwise_list.h"

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

/// Either the pixels of a channel are adjacent (nchw), or the channels of a pixel.
struct Images {
  explicit Images(const View& x)
      : channels(x.shape[1]),
        area(x.shape[2] * x.shape[3]),
        count(x.shape[0] * area),
        pixels(channels > 1 && x.strides[1] == 1) {
    // Treats several pixels with few channels as one pixel with many: longer loops.
    constexpr std::int64_t kLong = 256;
    period = pixels ? channels * std::max<std::int64_t>(kLong / channels, 1) : channels;
    chunks = chunks_of(pixels ? count * channels : count);
  }
  std::int64_t numel() const { return count * channels; }

  std::int64_t channels, area;
  std::int64_t count;  // elements per channel
  bool pixels;
  std::int64_t period;  // length of each array of constants in the loops over pixels
  std::int64_t chunks;
};

/// Elements [i, i + rows n). With adjacent channels: rows of up to a period, each beginning at its
/// value c; otherwise one row of channel c.
struct Tile {
  std::int64_t c, i, rows, n;
};

// Tiles of any size, or so small that a few operands stay in the L1 cache.
constexpr std::int64_t kAnyTile = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kSmallTile = 4096;

/// Calls f(tile) for tiles of up to `most` elements that cover the positions [begin, end).
/// Positions count channel by channel. With adjacent channels they are positions in memory, and
/// `begin` must be the first of a pixel.
template <class F>
void for_tiles(const Images& x, std::int64_t begin, std::int64_t end, std::int64_t most,
               const F& f) {
  while (begin < end) {
    std::int64_t n;
    if (!x.pixels) {
      const std::int64_t c = begin / x.count, image = begin % x.count / x.area, at = begin % x.area;
      n = std::min({x.area - at, end - begin, most});
      f(Tile{c, (image * x.channels + c) * x.area + at, 1, n});
    } else if (const std::int64_t rows = std::min(end - begin, most) / x.period; rows > 0) {
      n = rows * x.period;
      f(Tile{0, begin, rows, x.period});
    } else {  // a part of a row: of the last one, or of one that is longer than a tile
      n = std::min(end - begin, x.period);
      for (std::int64_t c = 0; c < n; c += most) f(Tile{c, begin + c, 1, std::min(n - c, most)});
    }
    begin += n;
  }
}

/// The content of the workspace: arrays of one value per channel, repeated over the period, and two
/// sums per channel for each chunk. The constants have the type C of the computation.
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

  static constexpr int kConstants = 5;
  std::int64_t period;
  C* constant[kConstants];
  double* sums;
};

/// Computes two sums per channel, over chunks. add(tile, first, second) adds a tile's terms to
/// first[0] and second[0], or with adjacent channels to first[i] and second[i] for its columns i.
/// The totals are at sums[c] and sums[period + c]. Tiles are always small, so that the order of
/// additions does not depend on other work on a tile.
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
        for_tiles(x, from * x.channels, to * x.channels, kSmallTile,
                  [&](const Tile& t) { add(t, first + t.c, second + t.c); });
        for (std::int64_t i = x.channels; i < x.period; ++i) {
          first[i % x.channels] += first[i];
          second[i % x.channels] += second[i];
        }
        continue;
      }
      double acc[2] = {};
      for_tiles(x, c * x.count + from, c * x.count + to, kSmallTile,
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

/// Calls f(tile) for tiles that cover all elements, on the team. Each thread gets the part that it
/// summed, as far as that is still in its cache.
template <class F>
void for_all(const Images& x, std::int64_t most, const F& f) {
  const std::int64_t row = x.pixels ? x.period : 1;
  const std::int64_t rows = (x.numel() + row - 1) / row;
  parallel_for(rows, std::max<std::int64_t>(kCheapGrain / row, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for_tiles(x, begin * row, std::min(end * row, x.numel()), most, f);
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

/// y = (x - center) scale + offset per channel: the output of forward. Backward computes it again,
/// equal to the bit, to find its sign.
template <class T>
struct Normalisation {
  using C = accumulate_t<T>;

  Normalisation(const Images& of, Scratch<C>& scratch, const View& weight, const View& bias,
                const View& mean, const View& invstd)
      : images(of),
        rows(norm_loops().of(dtype_of<T>)),
        center(scratch.constant[0]),
        scale(scratch.constant[1]),
        offset(scratch.constant[2]) {
    for (std::int64_t c = 0; c < images.channels; ++c) {
      center[c] = mean.as<C>()[c];
      scale[c] = static_cast<C>(static_cast<double>(invstd.as<C>()[c]) * value_or<C>(weight, c, 1));
      offset[c] = static_cast<C>(value_or<C>(bias, c, 0));
    }
  }
  void run(const Tile& t, const T* x, T* y) const {
    if (images.pixels) {
      rows.affine_each(t.rows, t.n, x + t.i, center + t.c, scale + t.c, offset + t.c, y);
    } else {
      rows.affine(t.n, x + t.i, center[t.c], scale[t.c], offset[t.c], y);
    }
  }
  /// Computes the gradient before an activation.
  void mask(const Tile& t, const T* x, const T* grad_y, double negative_slope, T* out) const {
    const auto& masked = negative_slope == 0 ? rows.relu_masked : rows.leaky_relu_masked;
    if (images.pixels) {
      masked.each(t.rows, t.n, grad_y + t.i, x + t.i, center + t.c, scale + t.c, offset + t.c,
                  negative_slope, out);
    } else {
      masked.run(t.n, grad_y + t.i, x + t.i, center[t.c], scale[t.c], offset[t.c], negative_slope,
                 out);
    }
  }

  const Images& images;
  const NormLoops& rows;
  C *center, *scale, *offset;
};

/// The loops of operations that may follow. They run on small tiles, which are still in the cache.
template <class T>
struct Following {
  Following(const std::optional<double>& negative_slope) {
    const ElementwiseLoops& loops = elementwise_loops().of(dtype_of<T>);
    add = loops.binary[static_cast<int>(BinaryOp::add)];
    if (!negative_slope) return;
    const auto op = static_cast<int>(*negative_slope == 0 ? UnaryOp::relu : UnaryOp::leaky_relu);
    activate = loops.unary[op];
    activate_backward = loops.unary_backward[op];
    params.a = *negative_slope;
  }
  static void run(RowFn f, const Tile& t, std::initializer_list<const T*> operands,
                  const UnaryParams* params = nullptr) {
    char* data[3] = {};
    std::transform(operands.begin(), operands.end(), data,
                   [](const T* x) { return const_cast<char*>(reinterpret_cast<const char*>(x)); });
    f(t.rows * t.n, data, params);
  }

  RowFn add = nullptr, activate = nullptr, activate_backward = nullptr;
  UnaryParams params;
};

/// Finds mean and invstd of each channel, as kept for backward, and updates the running statistics.
template <class T>
void find_statistics(const Images& images, const BatchNormParams& p, const BatchNormArgs& args,
                     Scratch<accumulate_t<T>>& scratch) {
  using C = accumulate_t<T>;
  const NormLoops& rows = norm_loops().of(args.x.dtype);
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
        rows.moments_each(t.rows, t.n, t.n, x + t.i, shift + t.c, sum, squares);
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
      update<C>(args.running_mean, c, momentum, mean);
      update<C>(args.running_var, c, momentum, squares / (n - 1));
    } else {
      mean = value_or<C>(args.running_mean, c, 0);
      var = value_or<C>(args.running_var, c, 1);
    }
    args.mean.as<C>()[c] = static_cast<C>(mean);
    args.invstd.as<C>()[c] = static_cast<C>(invstd_of(var, p.eps));
  }
}

template <class T>
void batch_norm_as(const BatchNormParams& p, const BatchNormArgs& args, void* workspace) {
  const Images images(args.x);
  Scratch<accumulate_t<T>> scratch(images, workspace);
  find_statistics<T>(images, p, args, scratch);
  const Normalisation<T> normal(images, scratch, args.weight, args.bias, args.mean, args.invstd);
  scratch.repeat(images.channels);
  const Following<T> then(p.negative_slope);
  const T* addend = args.addend.as<T>();
  const bool alone = !addend && !then.activate;
  for_all(images, alone ? kAnyTile : kSmallTile, [&](const Tile& t) {
    T* const y = args.y.as<T>() + t.i;
    normal.run(t, args.x.as<T>(), y);
    if (addend) then.run(then.add, t, {y, y, addend + t.i});
    if (then.activate) then.run(then.activate, t, {y, y}, &then.params);
  });
}

void batch_norm(const Stream& stream, const BatchNormParams& p, const BatchNormArgs& args,
                void* workspace) {
  require_floating("batch_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "batch_norm",
                    [&]<class T>() { batch_norm_as<T>(p, args, workspace); });
}

template <class T>
void batch_norm_backward_as(const BatchNormParams& p, const BatchNormGradArgs& args,
                            void* workspace) {
  using C = accumulate_t<T>;
  const Images images(args.x);
  Scratch<C> scratch(images, workspace);
  const NormLoops& rows = norm_loops().of(args.x.dtype);
  const T* x = args.x.as<T>();
  const T* grad_y = args.grad_y.as<T>();
  T* grad_addend = args.grad_addend.as<T>();
  const std::int64_t channels = images.channels;
  const auto n = static_cast<double>(images.count);
  const Normalisation<T> normal(images, scratch, args.weight, args.bias, args.mean, args.invstd);
  C *const center = normal.center, *const of_grad = normal.scale;
  C *const of_x = scratch.constant[3], *const offset = scratch.constant[4];
  scratch.repeat(channels);

  const Following<T> then(p.negative_slope);
  const std::int64_t most = then.activate ? kSmallTile : kAnyTile;
  // The gradient before the activation, for a tile of grad_y; `buffer` has kSmallTile elements.
  const auto before_activation = [&](const Tile& t, T* buffer) -> const T* {
    if (!then.activate) return grad_y + t.i;
    if (args.y) {
      then.run(then.activate_backward, t, {buffer, grad_y + t.i, args.y.as<T>() + t.i},
               &then.params);
    } else {
      normal.mask(t, x, grad_y, *p.negative_slope, buffer);
    }
    return buffer;
  };

  const bool sums = p.training || args.grad_weight || args.grad_bias || grad_addend;
  if (sums) {
    sum_channels(images, scratch.sums, [&](const Tile& t, double* sum, double* product) {
      T buffer[kSmallTile];
      const T* g = before_activation(t, grad_addend ? grad_addend + t.i : buffer);
      if (images.pixels) {
        rows.products_each(t.rows, t.n, g, x + t.i, center + t.c, sum, product);
      } else {
        rows.products(t.n, g, x + t.i, nullptr, static_cast<double>(center[t.c]), sum);
      }
    });
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    const double invstd = static_cast<double>(args.invstd.as<C>()[c]);
    const double sum = sums ? scratch.sums[c] : 0;
    const double product = sums ? scratch.sums[images.period + c] : 0;
    if (args.grad_weight) args.grad_weight.as<C>()[c] = store<C>(product * invstd);
    if (args.grad_bias) args.grad_bias.as<C>()[c] = store<C>(sum);
    const double scale = invstd * value_or<C>(args.weight, c, 1);
    of_x[c] = p.training ? static_cast<C>(-scale * invstd * invstd * product / n) : C(0);
    offset[c] = p.training ? static_cast<C>(-scale * sum / n) : C(0);
  }
  if (!args.grad_x) return;
  scratch.repeat(channels);
  for_all(images, grad_addend ? kAnyTile : most, [&](const Tile& t) {
    T buffer[kSmallTile];
    const T* g = grad_addend ? grad_addend + t.i : before_activation(t, buffer);
    T* const grad_x = args.grad_x.as<T>() + t.i;
    if (images.pixels && p.training) {
      rows.gradient_each(t.rows, t.n, g, x + t.i, center + t.c, of_grad + t.c, of_x + t.c,
                         offset + t.c, grad_x);
    } else if (images.pixels) {  // of_x and offset are 0
      rows.affine_each(t.rows, t.n, g, of_x + t.c, of_grad + t.c, offset + t.c, grad_x);
    } else if (p.training) {
      rows.gradient(t.n, g, x + t.i, nullptr, {center[t.c], of_grad[t.c], of_x[t.c], offset[t.c]},
                    grad_x);
    } else {
      rows.affine(t.n, g, 0, of_grad[t.c], 0, grad_x);
    }
  });
}

void batch_norm_backward(const Stream& stream, const BatchNormParams& p,
                         const BatchNormGradArgs& args, void* workspace) {
  require_floating("batch_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "batch_norm",
                    [&]<class T>() { batch_norm_backward_as<T>(p, args, workspace); });
}

/// The [N,C,S] of group norm as rows of elements that share a mean.
struct Rows {
  Rows(const View& x, std::int64_t in_groups)
      : loops(norm_loops().of(x.dtype)),
        groups(in_groups),
        channels(x.shape[1] / groups),
        spatial(x.shape[2]),
        count(x.shape[0] * groups),
        n(channels * spatial) {}
  /// The first channel of row r.
  std::int64_t channel(std::int64_t r) const { return groups == 1 ? 0 : r % groups * channels; }

  const NormLoops& loops;
  std::int64_t groups;
  std::int64_t channels, spatial;  // of a row
  std::int64_t count, n;           // the number of rows, and of elements of a row
};

/// The element of `v` at i, or null if v is empty.
template <class T>
const T* at_or_null(const View& v, std::int64_t i) {
  return v ? v.as<T>() + i : nullptr;
}

template <class T>
void group_norm_row(const GroupNormArgs& args, const Rows& rows, std::int64_t r) {
  using C = accumulate_t<T>;
  const T* x = args.x.as<T>() + r * rows.n;
  T* y = args.y.as<T>() + r * rows.n;
  const double shift = static_cast<double>(load(x[0]));
  double acc[2] = {};
  rows.loops.moments(rows.n, x, shift, acc);
  const auto count = static_cast<double>(rows.n);
  const double mean = shift + acc[0] / count;
  const double var = std::max(acc[1] - acc[0] * acc[0] / count, 0.0) / count;
  const double invstd = invstd_of(var, args.eps);
  args.mean.as<C>()[r] = static_cast<C>(mean);
  args.invstd.as<C>()[r] = static_cast<C>(invstd);
  const std::int64_t first = rows.channel(r);
  if (rows.spatial == 1) {
    rows.loops.affine_row(rows.n, x, mean, invstd, at_or_null<T>(args.weight, first),
                          at_or_null<T>(args.bias, first), y);
    return;
  }
  for (std::int64_t c = first; c < first + rows.channels; ++c) {
    rows.loops.affine(rows.spatial, x, mean, invstd * value_or<T>(args.weight, c, 1),
                      value_or<T>(args.bias, c, 0), y);
    x += rows.spatial;
    y += rows.spatial;
  }
}

void group_norm(const Stream& stream, const GroupNormArgs& args) {
  require_floating("group_norm", stream, args.x.dtype);
  const Rows rows(args.x, args.groups);
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / rows.n, 1);
  dispatch_floating(args.x.dtype, "group_norm", [&]<class T>() {
    parallel_for(rows.count, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) group_norm_row<T>(args, rows, r);
    });
  });
}

/// Each chunk of rows has two sums per channel.
std::size_t group_norm_backward_workspace_bytes(const View& x) {
  return static_cast<std::size_t>(2 * chunks_of(x.numel()) * x.shape[1]) * sizeof(double);
}

/// What backward needs of row r.
template <class T>
struct GradRow {
  GradRow(const GroupNormGradArgs& args, const Rows& rows, std::int64_t r)
      : grad_y(args.grad_y.as<T>() + r * rows.n),
        x(args.x.as<T>() + r * rows.n),
        mean(static_cast<double>(args.mean.as<accumulate_t<T>>()[r])),
        invstd(static_cast<double>(args.invstd.as<accumulate_t<T>>()[r])),
        first(rows.channel(r)) {}

  /// grad_x, given the sums over the row of g and g (x - mean), where g = grad_y weight.
  NormGradient gradient(const Rows& rows, double weight, double sum, double product) const {
    const double share = invstd / static_cast<double>(rows.n);
    return {mean, invstd * weight, -share * invstd * invstd * product, -share * sum};
  }

  const T *grad_y, *x;
  double mean, invstd;
  std::int64_t first;  // the first channel
};

/// The backward of a row with one element per channel. Adds to two sums per channel of the row,
/// unless these are null.
template <class T>
void backward_of_elements(const GroupNormGradArgs& args, const Rows& rows, std::int64_t r,
                          double* sums, double* products) {
  const GradRow<T> row(args, rows, r);
  if (sums) {
    rows.loops.products_row(rows.n, row.grad_y, row.x, row.mean, row.invstd, sums, products);
  }
  if (!args.grad_x) return;
  const T* weight = at_or_null<T>(args.weight, row.first);
  double acc[2] = {};
  rows.loops.products(rows.n, row.grad_y, row.x, weight, row.mean, acc);
  rows.loops.gradient(rows.n, row.grad_y, row.x, weight, row.gradient(rows, 1, acc[0], acc[1]),
                      args.grad_x.as<T>() + r * rows.n);
}

/// The same for channels of any size.
template <class T>
void backward_of_channels(const GroupNormGradArgs& args, const Rows& rows, std::int64_t r,
                          double* sums, double* products) {
  const GradRow<T> row(args, rows, r);
  double sum = 0, product = 0;
  for (std::int64_t c = 0; c < rows.channels; ++c) {
    double acc[2] = {};
    rows.loops.products(rows.spatial, row.grad_y + c * rows.spatial, row.x + c * rows.spatial,
                        nullptr, row.mean, acc);
    if (sums) {
      sums[c] += acc[0];
      products[c] += acc[1] * row.invstd;
    }
    const double weight = value_or<T>(args.weight, row.first + c, 1);
    sum += weight * acc[0];
    product += weight * acc[1];
  }
  if (!args.grad_x) return;
  T* grad_x = args.grad_x.as<T>() + r * rows.n;
  for (std::int64_t c = 0; c < rows.channels; ++c) {
    const double weight = value_or<T>(args.weight, row.first + c, 1);
    rows.loops.gradient(rows.spatial, row.grad_y + c * rows.spatial, row.x + c * rows.spatial,
                        nullptr, row.gradient(rows, weight, sum, product),
                        grad_x + c * rows.spatial);
  }
}

/// Adds up the sums of the chunks.
template <class T>
void store_channel_sums(const GroupNormGradArgs& args, std::int64_t chunks, const double* sums) {
  const std::int64_t channels = args.x.shape[1];
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / (2 * chunks), 1);
  parallel_for(channels, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      double sum = 0, product = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum += sums[2 * chunk * channels + c];
        product += sums[(2 * chunk + 1) * channels + c];
      }
      if (args.grad_bias) args.grad_bias.as<T>()[c] = store<T>(sum);
      if (args.grad_weight) args.grad_weight.as<T>()[c] = store<T>(product);
    }
  });
}

template <class T>
void group_norm_backward_as(const GroupNormGradArgs& args, double* workspace) {
  const Rows rows(args.x, args.groups);
  const std::int64_t chunks = chunks_of(args.x.numel()), channels = args.x.shape[1];
  const bool wants_sums = args.grad_weight || args.grad_bias;
  const auto backward = rows.spatial == 1 ? backward_of_elements<T> : backward_of_channels<T>;
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      double* const sums = workspace + 2 * chunk * channels;
      if (wants_sums) std::fill_n(sums, 2 * channels, 0.0);
      for (std::int64_t r = rows.count * chunk / chunks; r < rows.count * (chunk + 1) / chunks;
           ++r) {
        double* const of_row = wants_sums ? sums + rows.channel(r) : nullptr;
        backward(args, rows, r, of_row, wants_sums ? of_row + channels : nullptr);
      }
    }
  });
  if (wants_sums) store_channel_sums<T>(args, chunks, workspace);
}

void group_norm_backward(const Stream& stream, const GroupNormGradArgs& args, void* workspace) {
  require_floating("group_norm", stream, args.x.dtype);
  dispatch_floating(args.x.dtype, "group_norm", [&]<class T>() {
    group_norm_backward_as<T>(args, static_cast<double*>(workspace));
  });
}

}  // namespace

NormKernels norm_kernels() {
  return {.batch_norm_workspace_bytes = batch_norm_workspace_bytes,
          .batch_norm = batch_norm,
          .batch_norm_backward = batch_norm_backward,
          .group_norm = group_norm,
          .group_norm_backward_workspace_bytes = group_norm_backward_workspace_bytes,
          .group_norm_backward = group_norm_backward};
}

}  // namespace weft::cpu
