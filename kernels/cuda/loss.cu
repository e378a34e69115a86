// Cross entropy and mean squared error, each in a kernel forward and one backward. Cross entropy
// passes over the logits three times, for the maximum, the sum of exp, and the logarithms of the
// probabilities, which it writes. Sums have an order fixed by the shapes; the losses of rows and of
// blocks are added up in f64.
#include <algorithm>
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/index_check.cuh"
#include "weft/kernels/cuda/rows.cuh"

namespace weft::cuda {
namespace {

/// Where the blocks of a grid add up a loss.
template <class T>
struct Total {
  Shares<Pair> shares;  // a sum and a count
  Reduction reduction;
  T* loss;  // that of each row, or the sum, or the sum over the count
};

/// All threads of the block must call it with the block's sum and count. One thread of the grid
/// calls store(all); in its block all threads get true.
template <class T, class Store>
__device__ bool add_up(const Total<T>& to, Pair sum, const Store& store) {
  return fold_blocks<Sum>(
      to.shares, 0, blockIdx.x, threadIdx.x == 0 ? 0 : -1, sum, Pair{}, [&](int, Pair all) {
        const double loss = to.reduction == Reduction::mean ? all.a / all.b : all.a;
        if (to.reduction != Reduction::none) {
          *to.loss = element_cast<T>(loss);
        }
        store(all);
      });
}

constexpr unsigned kMostBlocks = 1024;

std::size_t partial_bytes(unsigned blocks) { return blocks == 1 ? 0 : blocks * sizeof(Pair); }

Shares<Pair> shares_of(const Stream& stream, void* workspace, unsigned blocks) {
  return {static_cast<Pair*>(workspace), block_counters(stream), 1, 1, blocks};
}

struct Targets {
  const std::int64_t* data;
  std::int64_t stride, classes, ignored;
  double smoothing;
  __device__ std::int64_t of(std::int64_t row) const { return data[row * stride]; }
  __device__ bool is_class(std::int64_t target) const { return in_range(target, classes); }
};

/// The loss of a row is (1-e) nll + e/C sum_c(-log_probs), NaN if its target is not a class.
template <class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_kernel(const Rows rows, const T* logits, T* log_probs, const Targets targets,
                         std::int64_t loss_stride, double* count, const Total<T> to,
                         const IndexCheck check) {
  using C = accumulate_t<T>;
  Pair sum{};
  rows.for_each([&](std::int64_t row, bool exists, Place place) {
    const T* const x = logits + row * rows.n;
    const C shift = exponentials(rows, x, exists, place).shift();
    const auto log_prob = [&](std::int64_t c) {
      return static_cast<T>(static_cast<C>(x[c]) - shift);
    };
    C smooth = 0;
    const C share = static_cast<C>(targets.smoothing / static_cast<double>(rows.n));
    if (targets.smoothing > 0) {  // all threads alike
      smooth = rows.sum<C>(place, exists, [&]<class A>(std::int64_t c) {
        return share * -static_cast<A>(log_probs[row * rows.n + c] = log_prob(c));
      });
    } else {
      rows.for_lane(place, exists,
                    [&](std::int64_t c) { log_probs[row * rows.n + c] = log_prob(c); });
    }
    if (!exists || place.lane != 0) return;
    const std::int64_t t = targets.of(row);
    const bool counts = t != targets.ignored;
    C loss = 0;
    if (counts && targets.is_class(t)) {
      loss = static_cast<C>(1 - targets.smoothing) * -static_cast<C>(log_prob(t)) + smooth;
    } else if (counts) {
      loss = static_cast<C>(NAN);
    }
    if (to.reduction == Reduction::none) to.loss[row * loss_stride] = static_cast<T>(loss);
    // The counts are integers far below 2^53.
    sum = sum + Pair{static_cast<double>(loss), counts ? 1.0 : 0.0};
  });
  __shared__ bool good;
  const auto store = [&](Pair all) { *count = all.b, good = !isnan(all.a); };
  if (!add_up(to, block_sum(sum), store)) return;
  __syncthreads();
  if (!good) {
    check.report<kBlock>([&](std::int64_t row) { return targets.of(row); });
  } else if (threadIdx.x == 0) {
    check.report_good();
  }
}

/// grad = scale (softmax - (1-e) [c == target] - e/C), scale = dL/dloss of the row (/ count).
template <class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_backward_kernel(const Rows rows, const T* grad_loss, std::int64_t grad_stride,
                                  Reduction reduction, const double* count, const T* log_probs,
                                  const Targets targets, T* grad_logits) {
  using C = accumulate_t<T>;
  const C uniform = static_cast<C>(targets.smoothing / static_cast<double>(rows.n));
  const C on_target = static_cast<C>(1 - targets.smoothing);
  rows.for_each([&](std::int64_t row, bool exists, Place place) {
    if (!exists) return;
    const std::int64_t t = targets.of(row);
    C scale = 0;
    if (t != targets.ignored) {
      scale = targets.is_class(t) ? static_cast<C>(grad_loss[row * grad_stride]) : NAN;
      if (reduction == Reduction::mean) scale /= static_cast<C>(*count);
    }
    const std::int64_t at = row * rows.n;
    rows.for_lane(place, true, [&](std::int64_t c) {
      const C softmax = std::exp(static_cast<C>(log_probs[at + c]));
      const C wanted = uniform + (c == t ? on_target : C(0));
      // The gradient of an ignored row is 0 even if its softmax is NaN.
      grad_logits[at + c] =
          static_cast<T>(t == targets.ignored ? C(0) : scale * (softmax - wanted));
    });
  });
}

Rows rows_of(const View& logits) { return {logits.shape[0], logits.shape[1]}; }

Targets targets_of(const CrossEntropyParams& params, const View& target, const View& logits) {
  return {target.as<std::int64_t>(), target.strides[0], logits.shape[1], params.ignore_index,
          params.label_smoothing};
}

unsigned cross_entropy_blocks(const View& logits) {
  return std::min(rows_of(logits).blocks(), kMostBlocks);
}

std::size_t cross_entropy_workspace_bytes(const CrossEntropyParams&, const View& logits) {
  return partial_bytes(cross_entropy_blocks(logits));
}

void cross_entropy(const Stream& stream, const CrossEntropyParams& params, const View& logits,
                   const View& target, const View& log_probs, const View& loss, const View& count,
                   void* workspace) {
  const unsigned blocks = cross_entropy_blocks(logits);
  for_floating("cross_entropy", stream, logits.dtype, [&]<class T>() {
    const Total<T> to{shares_of(stream, workspace, blocks), params.reduction, loss.as<T>()};
    const IndexBounds classes{"cross_entropy", logits.shape[1], "target", params.ignore_index};
    // Also launched without rows: then the count is 0 and the mean NaN.
    launch_check(stream, classes, target.shape, [&](const IndexCheck& check) {
      launch("cross_entropy", stream, cross_entropy_kernel<T>, blocks, kBlock, rows_of(logits),
             logits.as<T>(), log_probs.as<T>(), targets_of(params, target, logits),
             params.reduction == Reduction::none ? loss.strides[0] : 0, count.as<double>(), to,
             check);
    });
  });
}

void cross_entropy_backward(const Stream& stream, const CrossEntropyParams& params,
                            const View& grad_loss, const View& log_probs, const View& target,
                            const View& count, const View& grad_logits) {
  if (grad_logits.numel() == 0) return;
  const Rows rows = rows_of(log_probs);
  for_floating("cross_entropy_backward", stream, log_probs.dtype, [&]<class T>() {
    launch("cross_entropy_backward", stream, cross_entropy_backward_kernel<T>, rows.blocks(),
           kBlock, rows, grad_loss.as<T>(),
           params.reduction == Reduction::none ? grad_loss.strides[0] : 0, params.reduction,
           count.as<double>(), log_probs.as<T>(), targets_of(params, target, log_probs),
           grad_logits.as<T>());
  });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    mse_kernel(std::int64_t n, const T* x, const T* target, Total<T> to) {
  using C = accumulate_t<T>;
  const auto sum_in = [&]<class Type>() -> double {
    return block_sum(static_cast<Type>(
        add_runs<Type>(std::int64_t{blockIdx.x} * kBlock + threadIdx.x, n,
                       std::int64_t{gridDim.x} * kBlock, [&]<class A>(std::int64_t i) {
                         const A difference = static_cast<C>(x[i]) - static_cast<C>(target[i]);
                         return difference * difference;
                       })));
  };
  double sum = sum_in.template operator()<C>();
  if (!isfinite(sum)) sum = sum_in.template operator()<double>();  // the mean may fit into f32
  add_up(to, Pair{sum, blockIdx.x == 0 ? static_cast<double>(n) : 0}, [](Pair) {});
}

// A thread takes 8 elements before there is a second block: waiting for the last one costs as much.
unsigned mse_blocks(const View& x) {
  return std::min(grid_blocks(x.numel(), 8 * kBlock), kMostBlocks);
}

std::size_t mse_workspace_bytes(const View& x) { return partial_bytes(mse_blocks(x)); }

void mse(const Stream& stream, Reduction reduction, const View& x, const View& target,
         const View& loss, void* workspace) {
  const std::int64_t n = x.numel();
  const unsigned blocks = mse_blocks(x);
  for_floating("mse", stream, x.dtype, [&]<class T>() {
    const Total<T> to{shares_of(stream, workspace, blocks), reduction, loss.as<T>()};
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
