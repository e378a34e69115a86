// Reductions, in one pass over x. If several blocks share an output, the last one folds their
// results. Sums and means of f32 and bf16 are in compensated f32 within a thread's runs, else in
// f64: so the order of the terms, as that of conv_relu.cu, shows only where they cancel to
// rounding. Products, and moments, which keep the digits of f64, are in f64 throughout.
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/reduce_plan.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

struct Product {
  template <class A>
  __device__ static A identity() {
    return A(1);
  }
  template <class A>
  __device__ static A fold(A a, A b) {
    return a * b;
  }
};

/// max and min of no elements are refused before; the identities are only for idle lanes.
template <bool max>
struct Extreme {
  template <class A>
  __device__ static A identity() {
    if constexpr (std::is_same_v<A, double>)
      return max ? -INFINITY : INFINITY;
    else
      return max ? INT64_MIN : INT64_MAX;
  }
  template <class A>
  __device__ static A fold(A a, A b) {
    return max ? functor::Maximum{}.fwd(a, b) : functor::Minimum{}.fwd(a, b);
  }
};

/// Reads any type as 0 or 1: `all` is then a product, `any` a sum.
struct Truth {
  void* data;
  DType dtype;
  __device__ Truth(void* p, DType type) : data(p), dtype(type) {}
  __device__ std::int64_t load(std::int64_t i) const {
    return is_floating(dtype) ? AnyFloat(data, dtype).load(i) != 0
                              : AnyInt(data, dtype).load(i) != 0;
  }
};

struct ReduceArgs {
  void* x;
  void* y;
  DType x_dtype, y_dtype;
  Offsets<2> kept;
  Offsets<1> reduced;
  std::int64_t outputs, count, per_split;
  int lanes, groups;
  bool lanes_inner;
  int of_strip;        // outputs that blocks in y share
  double divisor = 1;  // for floating results: the count for a mean, else 1
  void* partial;       // [outputs][gridDim.y], what the blocks found, if there are several in y
  unsigned* done;
};

/// Folds load(r) for r = begin, begin + step, ... below end, `loads` at once.
template <class Op, class A, int loads, class F>
__device__ A fold_range(std::int64_t begin, std::int64_t end, int step, const F& load) {
  if constexpr (std::is_same_v<Op, Sum> && std::is_same_v<decltype(load(begin)), float>) {
    const auto term = [&]<class>(std::int64_t r) { return Compensated<float>{load(r), 0}; };
    const double sum = add_runs<float>(begin, end, step, term);
    if (isfinite(sum)) return sum;  // what is too large for f32 may yet meet its opposite
  }
  A value = Op::template identity<A>();
#pragma unroll loads
  for (std::int64_t r = begin; r < end; r += step) value = Op::fold(value, static_cast<A>(load(r)));
  return value;
}

/// Folds elements begin, begin + step, ... below end of the reduced range.
template <class Op, class A, class Load>
__device__ A fold_elements(const Load& x, std::int64_t base, const Offsets<1>& reduced,
                           std::int64_t begin, std::int64_t end, int step) {
  if (reduced.ndim <= 1) {
    // The most common case by far; the memory needs four loads in flight per thread.
    const std::int64_t stride = reduced.stride[0][0];
    return fold_range<Op, A, 4>(begin, end, step,
                                [&](std::int64_t r) { return x.load(base + r * stride); });
  }
  return fold_range<Op, A, 1>(
      begin, end, step, [&](std::int64_t r) { return x.load(base + reduced.at_any(r).at[0]); });
}

/// Calls store(output, offsets, value) for each output: the fold of what
/// gather(output, offsets, begin, end) returns in each lane of its group, which is for elements
/// begin, begin + lanes, ... below end. An idle lane has `nothing`. Blocks in y share outputs; then
/// a block has no more outputs than it has groups.
template <class Fold, class A, class Gather, class Store>
__device__ void fold_outputs(const ReduceArgs& args, A* shared, A nothing, Gather&& gather,
                             Store&& store) {
  const Place place(args.lanes, args.groups, args.lanes_inner);
  const std::int64_t begin = blockIdx.y * args.per_split;
  const std::int64_t end = min(begin + args.per_split, args.count);
  const Shares<A> shares{static_cast<A*>(args.partial), args.done, args.outputs, args.of_strip,
                         gridDim.y};
  // All threads of a block need the same number of iterations for fold_lanes.
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.groups; first < args.outputs;
       first += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t output = first + place.group;
    const bool exists = output < args.outputs;
    OffsetArray<2> at{};
    A value = nothing;
    if (exists) {
      at = args.kept.at_any(output);
      value = gather(output, at, begin + place.lane, end);
    }
    value = fold_lanes<Fold>(value, shared, place, args.lanes, args.groups);
    const bool stores = exists && place.lane == 0;
    if (!args.partial) {
      if (stores) store(output, at, value);
      continue;
    }
    fold_blocks<Fold>(shares, blockIdx.x, blockIdx.y, stores ? place.group : -1, value, nothing,
                      [&](int i, A all) { store(first + i, args.kept.at_any(first + i), all); });
  }
}

template <class Load, class Op, class A>
__global__ void __launch_bounds__(kBlock) reduce_kernel(const __grid_constant__ ReduceArgs args) {
  __shared__ A shared[kBlock];
  const Load x(args.x, args.x_dtype);
  fold_outputs<Op>(
      args, shared, Op::template identity<A>(),
      [&](auto, const auto& at, auto begin, auto end) {
        return fold_elements<Op, A>(x, at.at[0], args.reduced, begin, end, args.lanes);
      },
      [&](auto, const auto& at, A value) {
        if constexpr (std::is_same_v<A, double>) {
          AnyFloat(args.y, args.y_dtype).store(at.at[1], value / args.divisor);
        } else {
          AnyInt(args.y, args.y_dtype).store(at.at[1], value);
        }
      });
}

ReduceArgs make_args(const Stream& stream, const ReducePlan& plan, const View& x, const View& y,
                     void* workspace) {
  const bool shared = plan.splits > 1;
  return {.x = x.data,
          .y = y.data,
          .x_dtype = x.dtype,
          .y_dtype = y.dtype,
          .kept = Offsets<2>(plan.kept),
          .reduced = Offsets<1>(plan.reduced),
          .outputs = plan.outputs,
          .count = plan.count,
          .per_split = plan.per_split(),
          .lanes = plan.lanes,
          .groups = plan.groups,
          .lanes_inner = plan.lanes_inner,
          .of_strip = plan.of_strip(),
          .partial = shared ? workspace : nullptr,
          .done = shared ? block_counters(stream) : nullptr};
}

dim3 grid_of(const ReducePlan& plan) {
  return dim3(grid_blocks(plan.outputs, plan.groups), static_cast<unsigned>(plan.splits));
}

/// Load reads x, A is the type that is folded.
template <class Load, class Op, class A>
void run(const char* name, const Stream& stream, const ReducePlan& plan, const View& x,
         const View& y, void* workspace, double divisor = 1) {
  ReduceArgs args = make_args(stream, plan, x, y, workspace);
  args.divisor = divisor;
  launch(name, stream, reduce_kernel<Load, Op, A>, grid_of(plan), kBlock, args);
}

/// Sums are frequent in training, so they have a kernel for each type.
void run_sum(const char* name, const Stream& stream, const ReducePlan& plan, const View& x,
             const View& y, void* workspace, double divisor = 1) {
  for_floating(name, stream, x.dtype, [&]<class T>() {
    run<Typed<T>, Sum, double>(name, stream, plan, x, y, workspace, divisor);
  });
}

template <class Op>
void run_any(const char* name, const Stream& stream, const ReducePlan& plan, const View& x,
             const View& y, void* workspace) {
  if (is_floating(x.dtype)) {
    run<AnyFloat, Op, double>(name, stream, plan, x, y, workspace);
  } else {
    run<AnyInt, Op, std::int64_t>(name, stream, plan, x, y, workspace);
  }
}

struct MomentsArgs {
  ReduceArgs terms;
  double* mean;  // null: not wanted; the shift is 0 then
  double* squares;
};

/// The sums run over x - shift: the output's first element, or 0 without a mean, and if that
/// element is infinite, which would make the mean NaN.
template <class T>
__device__ double shift_of(const MomentsArgs& args, std::int64_t output) {
  if (!args.mean) return 0;
  const double first =
      Typed<T>(args.terms.x, dtype_of<T>).load(args.terms.kept.at_any(output).at[0]);
  return isfinite(first) ? first : 0;
}

template <class T>
__global__ void __launch_bounds__(kBlock) moments_kernel(const __grid_constant__ MomentsArgs all) {
  __shared__ Pair shared[kBlock];
  const ReduceArgs& args = all.terms;
  const Typed<T> x(args.x, args.x_dtype);
  fold_outputs<Sum>(
      args, shared, Pair{},
      [&](auto output, const auto& at, auto begin, auto end) {
        const double shift = shift_of<T>(all, output);
        Pair sum{};
        for (std::int64_t r = begin; r < end; r += args.lanes) {
          const double d =
              static_cast<double>(x.load(at.at[0] + args.reduced.at_any(r).at[0])) - shift;
          sum = sum + Pair{d, d * d};
        }
        return sum;
      },
      [&](auto output, const auto& at, Pair sum) {
        const auto n = static_cast<double>(args.count);
        // If finite numbers have squares beyond f64, the result is infinite; for infinite numbers
        // it is NaN.
        const bool beyond = isinf(sum.b) && isfinite(sum.a);
        all.squares[at.at[1]] =
            all.mean && !beyond ? not_negative(sum.b - sum.a * (sum.a / n)) : sum.b;
        if (all.mean) all.mean[at.at[1]] = shift_of<T>(all, output) + sum.a / n;
      });
}

/// The extreme so far of one lane or group, and its position.
template <class A>
struct Found {
  A value;
  std::int64_t at;  // -1: nothing yet
};

/// A NaN beats any number; among equal values the first wins.
template <bool max>
struct FirstExtreme {
  template <class A>
  __device__ static Found<A> fold(Found<A> a, Found<A> b) {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && a.value != b.value) {
      return (max ? a.value > b.value : a.value < b.value) ? a : b;
    }
    return a.at < b.at ? a : b;
  }
};

template <class Load, class A, bool max>
__global__ void __launch_bounds__(kBlock)
    arg_reduce_kernel(const __grid_constant__ ReduceArgs args) {
  __shared__ Found<A> shared[kBlock];
  const Load x(args.x, args.x_dtype);
  fold_outputs<FirstExtreme<max>>(
      args, shared, Found<A>{A(0), -1},
      [&](auto, const auto& at, auto begin, auto end) {
        Found<A> found{A(0), -1};
        // One dimension, or none with a length > 1.
        const std::int64_t stride = args.reduced.stride[0][0];
        for (std::int64_t r = begin; r < end; r += args.lanes) {
          found =
              FirstExtreme<max>::fold(found, {static_cast<A>(x.load(at.at[0] + r * stride)), r});
        }
        return found;
      },
      [&](auto, const auto& at, const Found<A>& found) {
        static_cast<std::int64_t*>(args.y)[at.at[1]] = found.at;
      });
}

template <class Load, class A, bool max>
void run_arg(const char* name, const Stream& stream, const View& x, const View& y,
             void* workspace) {
  const ReducePlan plan = plan_reduce(x, y);  // finds the dimension: y has length 1 there
  launch(name, stream, arg_reduce_kernel<Load, A, max>, grid_of(plan), kBlock,
         make_args(stream, plan, x, y, workspace));
}

}  // namespace

std::size_t reduce_workspace_bytes(ReduceOp, const View& x, const View& y) {
  return plan_reduce(x, y).workspace_bytes();
}

void reduce(const Stream& stream, ReduceOp op, const View& x, const View& y, void* workspace) {
  if (y.numel() == 0) return;
  const ReducePlan plan = plan_reduce(x, y);
  switch (op) {
    case ReduceOp::sum:
      if (is_floating(x.dtype)) return run_sum("sum", stream, plan, x, y, workspace);
      return run<AnyInt, Sum, std::int64_t>("sum", stream, plan, x, y, workspace);
    case ReduceOp::mean:
      return run_sum("mean", stream, plan, x, y, workspace, static_cast<double>(plan.count));
    case ReduceOp::prod: return run_any<Product>("prod", stream, plan, x, y, workspace);
    case ReduceOp::max: return run_any<Extreme<true>>("max", stream, plan, x, y, workspace);
    case ReduceOp::min: return run_any<Extreme<false>>("min", stream, plan, x, y, workspace);
    case ReduceOp::all:
      return run<Truth, Product, std::int64_t>("all", stream, plan, x, y, workspace);
    case ReduceOp::any: return run<Truth, Sum, std::int64_t>("any", stream, plan, x, y, workspace);
  }
}

namespace {

std::size_t moments_workspace_bytes(const View& x, const View& squares) {
  return 2 * plan_reduce(x, squares).workspace_bytes();  // Pairs
}

void moments(const Stream& stream, const View& x, const View& mean, const View& squares,
             void* workspace) {
  if (squares.numel() == 0) return;
  const ReducePlan plan = plan_reduce(x, squares);
  const MomentsArgs args{make_args(stream, plan, x, squares, workspace), mean.as<double>(),
                         squares.as<double>()};
  for_floating("moments", stream, x.dtype, [&]<class T>() {
    launch("moments", stream, moments_kernel<T>, grid_of(plan), kBlock, args);
  });
}

template <class T>
struct ScaledDeviation {
  bool centred;
  __device__ accumulate_t<T> operator()(accumulate_t<T> x, double center, double factor) const {
    return static_cast<accumulate_t<T>>((centred ? x - center : x) * factor);
  }
};

void scaled_deviation(const Stream& stream, const View& x, const View& center, const View& factor,
                      const View& y) {
  for_floating("scaled_deviation", stream, x.dtype, [&]<class T>() {
    map<Typed<T>, Typed<T>, Typed<double>, Typed<double>>(
        "scaled_deviation", stream, ScaledDeviation<T>{static_cast<bool>(center)}, y, x,
        center ? center : factor, factor);
  });
}

std::size_t arg_workspace_bytes(const View& x, const View& y) {
  return 2 * plan_reduce(x, y).workspace_bytes();  // a value and its position
}

template <bool max>
void arg_reduce_as(const char* name, const Stream& stream, const View& x, const View& y,
                   void* workspace) {
  if (is_floating(x.dtype)) {
    run_arg<AnyFloat, double, max>(name, stream, x, y, workspace);
  } else {
    run_arg<AnyInt, std::int64_t, max>(name, stream, x, y, workspace);
  }
}

void arg_reduce(const Stream& stream, ArgReduceOp op, const View& x, int, const View& y,
                void* workspace) {
  if (y.numel() == 0) return;
  op == ArgReduceOp::argmax ? arg_reduce_as<true>("argmax", stream, x, y, workspace)
                            : arg_reduce_as<false>("argmin", stream, x, y, workspace);
}

}  // namespace

ReduceKernels reduce_kernels() {
  return {.workspace_bytes = reduce_workspace_bytes,
          .reduce = reduce,
          .moments_workspace_bytes = moments_workspace_bytes,
          .moments = moments,
          .scaled_deviation = scaled_deviation,
          .arg_reduce = arg_reduce,
          .arg_workspace_bytes = arg_workspace_bytes};
}

}  // namespace weft::cuda
