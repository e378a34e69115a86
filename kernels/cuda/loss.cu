// Cross entropy and mean squared error. Sums are in double, in an order fixed by the shapes.
#include <algorithm>
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"

namespace weft::cuda {
namespace {

struct RowArgs {
  std::int64_t rows, classes;
  int lanes, groups;
  std::int64_t ignore_index;
  double smoothing;
};

RowArgs row_args(const CrossEntropyParams& params, const View& logits) {
  const int lanes = lanes_of_row(logits.shape[1]);
  return {logits.shape[0], logits.shape[1],     lanes,
          kBlock / lanes,  params.ignore_index, params.label_smoothing};
}

/// Whether `target` is a class. It has not been checked before, since a check would stop the queue.
__device__ bool is_class(const RowArgs& args, std::int64_t target) {
  return target >= 0 && target < args.classes;
}

/// (1-e) nll + e/C sum_c(-log_probs) of one row, NaN if the target is not a class. All lanes of the
/// row's group must call it.
template <class T>
__device__ double row_loss(const RowArgs& args, const T* log_probs, std::int64_t row, bool counts,
                           std::int64_t target, double* shared, Place place) {
  using C = accumulate_t<T>;
  const T* const p = log_probs + row * args.classes;
  double smooth = 0;
  if (args.smoothing > 0) {  // the same for all threads
    if (counts) {
      for (std::int64_t c = place.lane; c < args.classes; c += args.lanes) {
        smooth -= static_cast<double>(static_cast<C>(p[c]));
      }
    }
    smooth = fold_lanes<Sum>(smooth, shared, place, args.lanes, args.groups);
  }
  if (!counts) return 0;
  if (!is_class(args, target)) return NAN;
  const double nll = -static_cast<double>(static_cast<C>(p[target]));
  return (1 - args.smoothing) * nll + args.smoothing / static_cast<double>(args.classes) * smooth;
}

/// One block processes all rows: with the log-probabilities in memory, a row is one load, or one
/// pass over log_probs with smoothing; and the sum needs no second pass. losses: one per row, or
/// null; total: their sum (for mean divided by the number of rows that count), or null.
template <class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_kernel(RowArgs args, const T* log_probs, const std::int64_t* target,
                         std::int64_t target_stride, T* losses, std::int64_t loss_stride, T* total,
                         bool mean, double* count) {
  using C = accumulate_t<T>;
  __shared__ double shared[kBlock];
  const Place place(args.lanes, args.groups, true);
  double sum = 0, counted = 0;
  for (std::int64_t first = 0; first < args.rows; first += args.groups) {
    const std::int64_t row = first + place.group;
    const bool exists = row < args.rows;
    const std::int64_t t = exists ? target[row * target_stride] : args.ignore_index;
    const bool counts = t != args.ignore_index;
    const double loss = row_loss(args, log_probs, row, counts, t, shared, place);
    if (place.lane == 0 && exists) {
      if (losses) losses[row * loss_stride] = static_cast<T>(static_cast<C>(loss));
      sum += loss;
      counted += counts;  // integers far below 2^53
    }
  }
  sum = block_sum(sum, shared);
  counted = block_sum(counted, shared);
  if (threadIdx.x == 0) {
    *count = counted;
    if (total) *total = static_cast<T>(static_cast<C>(mean ? sum / counted : sum));
  }
}

/// grad = scale (softmax - (1-e) [c == target] - e/C), scale = dL/dloss of the row (/ count).
template <class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_backward_kernel(RowArgs args, const T* grad_loss, std::int64_t grad_stride,
                                  const double* count, const T* log_probs,
                                  const std::int64_t* target, std::int64_t target_stride,
                                  T* grad_logits) {
  using C = accumulate_t<T>;
  const Place place(args.lanes, args.groups, true);
  const C uniform = static_cast<C>(args.smoothing / static_cast<double>(args.classes));
  const C on_target = static_cast<C>(1 - args.smoothing);
  for (std::int64_t row = std::int64_t{blockIdx.x} * args.groups + place.group; row < args.rows;
       row += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t t = target[row * target_stride];
    C scale = 0;
    if (t != args.ignore_index) {
      scale = is_class(args, t) ? static_cast<C>(grad_loss[row * grad_stride]) : NAN;
      if (count) scale /= static_cast<C>(*count);
    }
    const std::int64_t at = row * args.classes;
    for (std::int64_t c = place.lane; c < args.classes; c += args.lanes) {
      const C softmax = std::exp(static_cast<C>(log_probs[at + c]));
      const C wanted = uniform + (c == t ? on_target : C(0));
      // The gradient of an ignored row is 0 even if its softmax is NaN.
      grad_logits[at + c] =
          static_cast<T>(t == args.ignore_index ? C(0) : scale * (softmax - wanted));
    }
  }
}

void cross_entropy(const Stream& stream, const CrossEntropyParams& params, const View& logits,
                   const View& target, const View& log_probs, const View& loss, const View& count) {
  const RowArgs args = row_args(params, logits);
  const bool per_row = params.reduction == Reduction::none;
  for_floating("cross_entropy", stream, logits.dtype, [&]<class T>() {
    if (args.rows > 0 && args.classes > 0) {
      softmax(stream, SoftmaxOp::log_softmax, logits, log_probs);
    }
    RowArgs loss_args = args;
    if (args.smoothing == 0) {  // then a row is one load: one thread per row
      loss_args.lanes = 1;
      loss_args.groups = kBlock;
    }
    // Also launched without rows: then the count is 0 and the mean NaN.
    launch("cross_entropy", stream, cross_entropy_kernel<T>, 1, kBlock, loss_args,
           log_probs.as<T>(), target.as<std::int64_t>(), target.strides[0],
           per_row ? loss.as<T>() : nullptr, per_row ? loss.strides[0] : 0,
           per_row ? nullptr : loss.as<T>(), params.reduction == Reduction::mean,
           count.as<double>());
  });
}

void cross_entropy_backward(const Stream& stream, const CrossEntropyParams& params,
                            const View& grad_loss, const View& log_probs, const View& target,
                            const View& count, const View& grad_logits) {
  if (grad_logits.numel() == 0) return;
  const RowArgs args = row_args(params, log_probs);
  for_floating("cross_entropy_backward", stream, log_probs.dtype, [&]<class T>() {
    launch("cross_entropy_backward", stream, cross_entropy_backward_kernel<T>,
           grid_blocks(args.rows, args.groups), kBlock, args, grad_loss.as<T>(),
           params.reduction == Reduction::none ? grad_loss.strides[0] : 0,
           params.reduction == Reduction::mean ? count.as<double>() : nullptr, log_probs.as<T>(),
           target.as<std::int64_t>(), target.strides[0], grad_logits.as<T>());
  });
}

// Each block adds up its part of the squares; a second launch with one block adds the blocks' sums.
constexpr std::int64_t kMsePerBlock = 8 * kBlock;
constexpr std::int64_t kMseMaxBlocks = 1024;

unsigned mse_blocks(std::int64_t n) {
  return static_cast<unsigned>(std::min<std::int64_t>(grid_blocks(n, kMsePerBlock), kMseMaxBlocks));
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    mse_kernel(std::int64_t n, const T* x, const T* target, double* partial) {
  using C = accumulate_t<T>;
  __shared__ double shared[kBlock];
  double sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const double difference = static_cast<C>(x[i]) - static_cast<C>(target[i]);
    sum += difference * difference;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    mse_total_kernel(int blocks, const double* partial, double divisor, T* loss) {
  __shared__ double shared[kBlock];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kBlock) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *loss = static_cast<T>(static_cast<accumulate_t<T>>(sum / divisor));
}

std::size_t mse_workspace_bytes(const View& x) { return mse_blocks(x.numel()) * sizeof(double); }

void mse(const Stream& stream, Reduction reduction, const View& x, const View& target,
         const View& loss, void* workspace) {
  const std::int64_t n = x.numel();
  const unsigned blocks = mse_blocks(n);
  auto* const partial = static_cast<double*>(workspace);
  const double divisor = reduction == Reduction::mean ? static_cast<double>(n) : 1;
  for_floating("mse", stream, x.dtype, [&]<class T>() {
    launch("mse", stream, mse_kernel<T>, blocks, kBlock, n, x.as<T>(), target.as<T>(), partial);
    launch("mse", stream, mse_total_kernel<T>, 1, kBlock, static_cast<int>(blocks), partial,
           divisor, loss.as<T>());
  });
}

template <class T>
struct MseGradient {
  using C = accumulate_t<T>;
  const T* grad_loss;
  C scale;
  __device__ C operator()(C x, C target) const {
    return (x - target) * (static_cast<C>(*grad_loss) * scale);
  }
};

void mse_backward(const Stream& stream, Reduction reduction, const View& grad_loss, const View& x,
                  const View& target, const View& grad_x) {
  const double scale = reduction == Reduction::mean
                           ? 2 / static_cast<double>(std::max<std::int64_t>(x.numel(), 1))
                           : 2;
  for_floating("mse_backward", stream, x.dtype, [&]<class T>() {
    const MseGradient<T> f{grad_loss.as<T>(), static_cast<accumulate_t<T>>(scale)};
    map<Typed<T>, Typed<T>, Typed<T>>("mse_backward", stream, f, grad_x, x, target);
  });
}

}  // namespace

LossKernels loss_kernels() {
  return {.cross_entropy = cross_entropy,
          .cross_entropy_backward = cross_entropy_backward,
          .mse = mse,
          .mse_workspace_bytes = mse_workspace_bytes,
          .mse_backward = mse_backward};
}

}  // namespace weft::cuda
