// The bias and the relu of a convolution, and their gradients. A kernel each: relu_backward_kernel
// reads grad_y and y and writes `before` and what each block has of the sums, which the last block
// of a channel adds up. The sums are f64 throughout, and those of reduce.cu nearly as exact: the
// bias's gradient must not tell whether a relu was part of the convolution or a layer of another
// stage.
#include "weft/kernels/cuda/conv_relu.h"

#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/image_packs.cuh"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

struct AddThenRelu {
  template <class T>
  __device__ T operator()(T y, T bias) const {
    return functor::Relu{}.fwd(y + bias);
  }
};

template <class T>
struct Gradient {
  const T* grad_y;
  const T* y;
  T* before;
  T* bias;
  Shares<double> sums;

  __device__ void add_up(double sum, unsigned strip, unsigned chunk) const {
    add_blocks(sums, strip, chunk, sum, [&](std::int64_t channel, int, double total) {
      bias[channel] = element_cast<T>(total);
    });
  }
};

template <class T, int W, int Own>
__global__ void __launch_bounds__(kBlock, kSumming)
    relu_backward_kernel(const __grid_constant__ Packs packs,
                         const __grid_constant__ Gradient<T> of) {
  using C = accumulate_t<T>;
  __shared__ ChannelParts<Own> sums;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < Own; ++k) sums.of(thread, k) = 0;
  Part part(packs, blockIdx.x);
  while (part.left > 0) {
    double piece[Own] = {};
    part.for_packs<2, Own == 1>(
        packs, min(part.left, kPiece * Own / W), [&]<int U>(const std::int64_t(&at)[U]) {
          Loaded<T, W, U> grad(of.grad_y, at);
          const Loaded<T, W, U> y(of.y, at);
#pragma unroll
          for (int k = 0; k < W; ++k) {
#pragma unroll
            for (int u = 0; u < U; ++u) {
              const C before = functor::Relu{}.bwd(grad.packs[u].get(k), y.packs[u].get(k));
              grad.packs[u].set(k, before);
              piece[k % Own] += before;
            }
          }
          grad.store(of.before, at);
        });
#pragma unroll
    for (int k = 0; k < Own; ++k) sums.of(thread, k) += piece[k];
  }
  of.add_up(channel_sum(packs, sums), part.strip, part.chunk);
}

// The side of a tile.
constexpr int kEdge = 32;

/// Tiles of kEdge channels and as many pixels of an image. A block works on one of the `chunks` of
/// the tiles of a strip of channels.
struct Tiles {
  std::int64_t channels, area;
  std::int64_t of_image, count;  // of a strip
  unsigned strips, chunks;
};

/// The same for a row-major grad_y where y has channels last.
template <class T>
__global__ void __launch_bounds__(kBlock)
    relu_backward_tiles_kernel(const __grid_constant__ Tiles tiles,
                               const __grid_constant__ Gradient<T> of) {
  using C = accumulate_t<T>;
  constexpr int kRows = kBlock / kEdge, kSteps = kEdge / kRows;
  __shared__ T tile[kEdge][kEdge + 1];  // the elements of a column are in different banks
  __shared__ double sums[kBlock];
  const Place place(kRows, kEdge, false);
  const unsigned strip = blockIdx.x % tiles.strips, chunk = blockIdx.x / tiles.strips;
  const std::int64_t first_channel = std::int64_t{strip} * kEdge;
  const std::int64_t end = tiles.count * (chunk + 1) / tiles.chunks;
  double sum = 0;
  for (std::int64_t t = tiles.count * chunk / tiles.chunks; t < end; ++t) {
    const std::int64_t image = t / tiles.of_image, first_pixel = t % tiles.of_image * kEdge;
    const auto inside = [&](std::int64_t channel, std::int64_t pixel) {
      return channel < tiles.channels && pixel < tiles.area;
    };
    const auto at = [&](int k) {  // in y, of channel place.group
      const std::int64_t pixel = image * tiles.area + first_pixel + place.lane + k * kRows;
      return pixel * tiles.channels + first_channel + place.group;
    };
    const auto has = [&](int k) {
      return inside(first_channel + place.group, first_pixel + place.lane + k * kRows);
    };
    T grad[kSteps], y[kSteps];  // all loads are under way before the first arrives
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const std::int64_t channel = first_channel + place.lane + k * kRows;
      const std::int64_t pixel = first_pixel + place.group;
      const std::int64_t row = image * tiles.channels + channel;
      grad[k] = inside(channel, pixel) ? of.grad_y[row * tiles.area + pixel] : T();
      y[k] = has(k) ? of.y[at(k)] : T();
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) tile[place.lane + k * kRows][place.group] = grad[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (!has(k)) continue;
      const C g = static_cast<C>(tile[place.group][place.lane + k * kRows]);
      const C before = functor::Relu{}.bwd(g, static_cast<C>(y[k]));
      of.before[at(k)] = static_cast<T>(before);
      sum += before;
    }
    __syncthreads();
  }
  sum = fold_lanes<Sum>(sum, sums, place, kRows, kEdge);
  of.add_up(sum, strip, chunk);
}

// At least so many packs, or tiles, for a thread: the autoencoder's images fill a GPU with them.
constexpr int kLeastPacks = 4;
// What a large GPU runs at a time.
constexpr std::int64_t kMostBlocks = 128 * kSumming;

Tiles tiles_of(const View& y) {
  const std::int64_t channels = y.shape[1], area = y.shape[2] * y.shape[3];
  const std::int64_t of_image = (area + kEdge - 1) / kEdge, count = y.shape[0] * of_image;
  const auto strips = static_cast<unsigned>((channels + kEdge - 1) / kEdge);
  const std::int64_t most =
      std::min(std::max<std::int64_t>(kMostBlocks / strips, 1), most_sharers(strips, kEdge));
  const std::int64_t chunks = std::clamp<std::int64_t>(count / kLeastPacks, 1, most);
  return {channels, area, of_image, count, strips, static_cast<unsigned>(chunks)};
}

/// Whether grad_y has to be transposed, and by tiles.
bool by_tiles(const ReluBackwardArgs& args) {
  return is_nhwc(args.y) && !is_format(args.grad_y, MemoryFormat::nhwc);
}

template <class T>
void run_by_tiles(const Stream& stream, Gradient<T> of, const View& y) {
  const Tiles tiles = tiles_of(y);
  of.sums.of_strip = kEdge;
  of.sums.blocks = tiles.chunks;
  launch("relu_backward", stream, relu_backward_tiles_kernel<T>, tiles.strips * tiles.chunks,
         kBlock, tiles, of);
}

template <class T, int W, int Own>
void run(const Stream& stream, Gradient<T> of, const View& y) {
  const Packs packs = packs_of(y, W, kLeastPacks);
  of.sums.of_strip = packs.block_groups * Own;
  of.sums.blocks = packs.chunks;
  launch("relu_backward", stream, relu_backward_kernel<T, W, Own>, packs.blocks(), kBlock, packs,
         of);
}

}  // namespace

void add_bias(const Stream& stream, const View& y, const View& bias, Activation then) {
  View broadcast = bias;
  broadcast.shape = y.shape;
  broadcast.strides = Strides{0, bias.strides[0], 0, 0};
  if (then == Activation::none) return binary(stream, BinaryOp::add, y, broadcast, y);
  for_floating("add_bias", stream, y.dtype, [&]<class T>() {
    map<Typed<T>, Typed<T>, Typed<T>>("add_bias", stream, AddThenRelu{}, y, y, broadcast);
  });
}

std::size_t relu_backward_workspace_bytes(const ReluBackwardArgs& args) {
  if (args.y.numel() == 0) return 0;
  if (!by_tiles(args)) return bytes_of_shares<double>(args.y, kLeastPacks);
  return static_cast<std::size_t>(args.y.shape[1]) * tiles_of(args.y).chunks * sizeof(double);
}

void relu_backward(const Stream& stream, const ReluBackwardArgs& args, void* workspace) {
  if (args.y.numel() == 0) return fill(stream, 0, args.bias);
  View grad_y = args.grad_y;
  const bool tiles = by_tiles(args);
  if (!tiles && !is_nhwc(args.y) && !is_format(grad_y, MemoryFormat::nchw)) {
    copy(stream, grad_y, args.before);
    grad_y = args.before;
  }
  for_floating("relu_backward", stream, args.y.dtype, [&]<class T>() {
    const Gradient<T> of{
        grad_y.as<T>(),
        args.y.as<T>(),
        args.before.as<T>(),
        args.bias.as<T>(),
        {static_cast<double*>(workspace), block_counters(stream), args.y.shape[1]}};
    if (tiles) return run_by_tiles<T>(stream, of, args.y);
    with_widths<T>(args.y, {&grad_y, &args.before},
                   [&]<int W, int Own>() { run<T, W, Own>(stream, of, args.y); });
  });
}

}  // namespace weft::cuda
