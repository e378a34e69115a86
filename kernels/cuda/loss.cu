// Cross entropy and mean squared error, each in one pass over its operands once the logarithms of
// the probabilities are there. Sums are in double, in an order fixed by the shapes.
#include <algorithm>
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/index_check.cuh"

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
  if (!in_range(target, args.classes)) return NAN;
  const double nll = -static_cast<double>(static_cast<C>(p[target]));
  return (1 - args.smoothing) * nll + args.smoothing / static_cast<double>(args.classes) * smooth;
}

/// Where the blocks of a grid add up a loss.
template <class T>
struct Total {
  Pair* partial;     // a sum and a count for each block of a grid with more than one
  unsigned* blocks;  // those that have left them there (comes_last)
  bool mean;
  T* total;       // the sum, or the sum over the count; null: not wanted
  double* count;  // null: not wanted
};

/// All threads of the block must call it, each with its sum and count. Returns the block's, or the
/// grid's in the last block.
template <class T>
__device__ Pair add_up(const Total<T>& to, Pair sum) {
  __shared__ Pair shared[kBlock];
  const Place place(kBlock, 1, true);
  sum = fold_lanes<AddPairs>(sum, shared, place, kBlock, 1);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) to.partial[blockIdx.x] = sum;
    if (!comes_last(to.blocks, gridDim.x)) return sum;
    sum = {};
    for (unsigned i = threadIdx.x; i < gridDim.x; i += kBlock) {
      sum = AddPairs::fold(sum, to.partial[i]);
    }
    sum = fold_lanes<AddPairs>(sum, shared, place, kBlock, 1);
  }
  if (threadIdx.x != 0) return sum;
  if (to.count) *to.count = sum.b;
  if (to.total)
    *to.total = static_cast<T>(static_cast<accumulate_t<T>>(to.mean ? sum.a / sum.b : sum.a));
  return sum;
}

// A block takes its items so many times before there is a second block: to wait for the last one
// costs as much, where an item is not a row that is long enough for a block of its own.
constexpr std::int64_t kInTurn = 8;
constexpr std::int64_t kMostBlocks = 1024;

unsigned loss_blocks(std::int64_t items, std::int64_t at_once) {
  return static_cast<unsigned>(std::min<std::int64_t>(
      grid_blocks(items, at_once == 1 ? 1 : kInTurn * at_once), kMostBlocks));
}

std::size_t partial_bytes(unsigned blocks) { return blocks == 1 ? 0 : blocks * sizeof(Pair); }

/// With the log-probabilities in memory, a row is one load, or one pass over log_probs with
/// smoothing. losses: one per row, or null. check: of the targets, if one block does all rows.
template <class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_kernel(RowArgs args, const T* log_probs, const std::int64_t* target,
                         std::int64_t target_stride, T* losses, std::int64_t loss_stride,
                         Total<T> to, IndexCheck check) {
  using C = accumulate_t<T>;
  __shared__ double shared[kBlock];
  const Place place(args.lanes, args.groups, true);
  Pair sum{};
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.groups; first < args.rows;
       first += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t row = first + place.group;
    const bool exists = row < args.rows;
    const std::int64_t t = exists ? target[row * target_stride] : args.ignore_index;
    const bool counts = t != args.ignore_index;
    const double loss = row_loss(args, log_probs, row, counts, t, shared, place);
    if (place.lane == 0 && exists) {
      if (losses) losses[row * loss_stride] = static_cast<T>(static_cast<C>(loss));
      sum = AddPairs::fold(sum, {loss, counts ? 1.0 : 0.0});  // integers far below 2^53
    }
  }
  sum = add_up(to, sum);
  if (!check.result) return;
  if (isnan(sum.a)) {  // the same for all threads
    check.report<kBlock>([&](std::int64_t row) { return target[row * target_stride]; });
  } else if (threadIdx.x == 0) {
    check.report_good();
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
      scale = in_range(t, args.classes) ? static_cast<C>(grad_loss[row * grad_stride]) : NAN;
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

/// Without smoothing a row is one load: one thread per row.
RowArgs loss_args(const CrossEntropyParams& params, const View& logits) {
  RowArgs args = row_args(params, logits);
  if (args.smoothing == 0) {
    args.lanes = 1;
    args.groups = kBlock;
  }
  return args;
}

std::size_t cross_entropy_workspace_bytes(const CrossEntropyParams& params, const View& logits) {
  return partial_bytes(loss_blocks(logits.shape[0], loss_args(params, logits).groups));
}

void cross_entropy(const Stream& stream, const CrossEntropyParams& params, const View& logits,
                   const View& target, const View& log_probs, const View& loss, const View& count,
                   void* workspace) {
  const RowArgs args = loss_args(params, logits);
  const unsigned blocks = loss_blocks(args.rows, args.groups);
  const bool per_row = params.reduction == Reduction::none;
  for_floating("cross_entropy", stream, logits.dtype, [&]<class T>() {
    if (args.rows > 0 && args.classes > 0) {
      softmax(stream, SoftmaxOp::log_softmax, logits, log_probs);
    }
    const Total<T> to{static_cast<Pair*>(workspace), block_counters(stream),
                      params.reduction == Reduction::mean, per_row ? nullptr : loss.as<T>(),
                      count.as<double>()};
    const IndexBounds classes{"cross_entropy", args.classes, "target", args.ignore_index};
    const bool alone = blocks == 1 && args.rows > 0;
    if (!alone) check_bounds(stream, classes, target);
    // Also launched without rows: then the count is 0 and the mean NaN.
    launch("cross_entropy", stream, cross_entropy_kernel<T>, blocks, kBlock, args,
           log_probs.as<T>(), target.as<std::int64_t>(), target.strides[0],
           per_row ? loss.as<T>() : nullptr, per_row ? loss.strides[0] : 0, to,
           alone ? queued_check(stream, classes, target.shape) : IndexCheck());
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

template <class T>
__global__ void __launch_bounds__(kBlock)
    mse_kernel(std::int64_t n, const T* x, const T* target, Total<T> to) {
  using C = accumulate_t<T>;
  const std::int64_t first = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  Pair sum{0, first == 0 ? static_cast<double>(n) : 0};
  for (std::int64_t i = first; i < n; i += std::int64_t{gridDim.x} * kBlock) {
    const double difference = static_cast<C>(x[i]) - static_cast<C>(target[i]);
    sum.a += difference * difference;
  }
  add_up(to, sum);
}

std::size_t mse_workspace_bytes(const View& x) {
  return partial_bytes(loss_blocks(x.numel(), kBlock));
}

void mse(const Stream& stream, Reduction reduction, const View& x, const View& target,
         const View& loss, void* workspace) {
  const std::int64_t n = x.numel();
  const unsigned blocks = loss_blocks(n, kBlock);
  for_floating("mse", stream, x.dtype, [&]<class T>() {
    const Total<T> to{static_cast<Pair*>(workspace), block_counters(stream),
                      reduction == Reduction::mean, loss.as<T>(), nullptr};
    launch("mse", stream, mse_kernel<T>, blocks, kBlock, n, x.as<T>(), target.as<T>(), to);
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
          .cross_entropy_workspace_bytes = cross_entropy_workspace_bytes,
          .cross_entropy_backward = cross_entropy_backward,
          .mse = mse,
          .mse_workspace_bytes = mse_workspace_bytes,
          .mse_backward = mse_backward};
}

}  // namespace weft::cuda
