// Attention by tiles of kTile queries x kTile keys, whose scores stay in shared memory. A block
// sums kTile rows and kTile columns of one result, in an order fixed by the shapes. Backward has a
// kernel for each gradient, which computes the scores again: so no two blocks add to one sum.
//
// Passes over memory: in forward each tile of queries goes once through k and v, with its rows of q
// in the cache, and writes its rows of y. In backward one kernel reads y and grad_y, for what the
// gradients have in common; in each of three others a tile of one gradient goes once through the
// rows of the other side. All of it once for each kTile columns of the result.
//
// Sums of f32 and bf16 are in f32, but from run to run in common_kernel. A weight is divided by a
// sum in which an exponential passes through 17 additions in its tile and one for each further
// tile. Products are added up one after another.
#include <algorithm>
#include <cmath>

#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

// The threads are kSide x kSide. Thread (x, y) has elements (y + kSide i, x + kSide j) of a tile.
constexpr int kSide = 16;
static_assert(kSide * kSide == kBlock);

template <class C>
constexpr int kTile = sizeof(C) == 8 ? 32 : 64;  // tiles fit in 48 KiB of shared memory
template <class C>
constexpr int kPatch = kTile<C> / kSide;

/// The rows of [A,B,n,width], by their number in the batch A B.
struct Rows {
  const void* data;
  std::int64_t inner, outer_step, inner_step, row_step, step;
  std::int64_t n, width;

  explicit Rows(const View& x)
      : data(x.data),
        inner(x.shape.size() > 1 ? std::max<std::int64_t>(x.shape[1], 1) : 1),
        outer_step(x.shape.size() > 3 ? x.strides[0] : 0),
        inner_step(x.shape.size() > 3 ? x.strides[1] : 0),
        row_step(x.shape.size() > 3 ? x.strides[2] : 0),
        step(x.shape.size() > 3 ? x.strides[3] : 0),
        n(x.shape.size() > 3 ? x.shape[2] : 0),
        width(x.shape.size() > 3 ? x.shape[3] : 0) {}

  template <class T>
  __device__ const T* row(std::int64_t at, std::int64_t i) const {
    return static_cast<const T*>(data) + at / inner * outer_step + at % inner * inner_step +
           i * row_step;
  }
};

struct Operands {
  Rows q, k, v, mask, kept;
  bool bool_mask, causal;
  double scale, keep_scale;
  std::int64_t batch;

  explicit Operands(const AttentionArgs& args)
      : q(args.q),
        k(args.k),
        v(args.v),
        mask(args.mask),
        kept(args.kept),
        bool_mask(args.mask.dtype == DType::boolean),
        causal(args.causal),
        scale(args.scale),
        keep_scale(args.keep_scale),
        batch(args.q.shape[0] * args.q.shape[1]) {}

  /// Whether there are such a query and key, and causal does not hide the key.
  __device__ bool has(std::int64_t i, std::int64_t j) const {
    return i < q.n && j < k.n && !(causal && j > i);
  }
  /// What is added to their score.
  template <class C>
  __device__ C bias(std::int64_t at, std::int64_t i, std::int64_t j) const {
    if (mask.data == nullptr) return 0;
    if (!bool_mask) return mask.row<C>(at, i)[j * mask.step];
    return mask.row<bool>(at, i)[j * mask.step] ? C(0) : -static_cast<C>(INFINITY);
  }
  /// What dropout multiplies the weight by.
  template <class C>
  __device__ C factor(std::int64_t at, std::int64_t i, std::int64_t j) const {
    if (kept.data == nullptr) return 1;
    return kept.row<bool>(at, i)[j] ? static_cast<C>(keep_scale) : C(0);
  }
};

template <class C>
using Patch = C[kPatch<C>][kPatch<C>];

template <class C>
struct ProductMemory {
  C a[kTile<C>][kSide + 1], b[kTile<C>][kSide + 1];
};

/// patch = the products of rows a0 + r of a and b0 + c of b; those beyond the last row count as 0.
/// All threads of the block must call it, also for rows without elements: it has barriers.
template <class T, class C>
__device__ void multiply_rows(const Rows& a, std::int64_t a0, const Rows& b, std::int64_t b0,
                              std::int64_t at, ProductMemory<C>& memory, Patch<C>& patch) {
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  for (auto& row : patch) {
    for (C& value : row) value = 0;
  }
  std::int64_t e0 = 0;
  do {
    __syncthreads();
    for (int r = y; r < kTile<C>; r += kSide) {
      const bool inside = e0 + x < a.width;
      memory.a[r][x] = inside && a0 + r < a.n ? static_cast<C>(a.row<T>(at, a0 + r)[e0 + x]) : C(0);
      memory.b[r][x] = inside && b0 + r < b.n ? static_cast<C>(b.row<T>(at, b0 + r)[e0 + x]) : C(0);
    }
    __syncthreads();
    for (int e = 0; e < kSide; ++e) {
      for (int i = 0; i < kPatch<C>; ++i) {
        for (int j = 0; j < kPatch<C>; ++j) {
          patch[i][j] += memory.a[y + kSide * i][e] * memory.b[x + kSide * j][e];
        }
      }
    }
    e0 += kSide;
  } while (e0 < a.width);
}

template <class C>
struct SumMemory {
  C weights[kTile<C>][kTile<C> + 1];  // [row of the sum][row of what is summed]
  C rows[kTile<C>][kTile<C>];
};

/// Loads columns d0 + c of the rows from r0 on, 0 where there are none.
template <class T, class C>
__device__ void load_rows(const Rows& x, std::int64_t at, std::int64_t r0, std::int64_t d0,
                          C (&to)[kTile<C>][kTile<C>]) {
  for (int t = static_cast<int>(threadIdx.x); t < kTile<C> * kTile<C>; t += kBlock) {
    const std::int64_t r = r0 + t / kTile<C>, d = d0 + t % kTile<C>;
    const bool inside = r < x.n && d < x.width;
    to[t / kTile<C>][t % kTile<C>] = inside ? static_cast<C>(x.row<T>(at, r)[d]) : C(0);
  }
}

/// sums += weights times the first n rows, or all of the tile if that is less. The caller has
/// synchronised the threads since both were written.
template <class C>
__device__ void add_rows(const SumMemory<C>& memory, std::int64_t n, Patch<C>& sums) {
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const int count = n < kTile<C> ? static_cast<int>(n) : kTile<C>;
  for (int c = 0; c < count; ++c) {
    for (int i = 0; i < kPatch<C>; ++i) {
      for (int j = 0; j < kPatch<C>; ++j) {
        sums[i][j] += memory.weights[y + kSide * i][c] * memory.rows[c][x + kSide * j];
      }
    }
  }
}

__host__ __device__ std::int64_t tiles_of(std::int64_t n, int tile) {
  return n / tile + (n % tile != 0);
}

// --- Forward -------------------------------------------------------------------------------------

struct Most {
  template <class A>
  __device__ static A fold(A a, A b) {
    return functor::Maximum{}.fwd(a, b);  // a NaN wins
  }
};

/// The running softmax of a tile's rows.
template <class C>
struct RunningMemory {
  C folded[kBlock];
  C most[kTile<C>], shrink[kTile<C>], sum[kTile<C>];
  bool seen[kTile<C>][kSide];
};

/// One step of the softmax over tiles of keys: the scores in `scores` become exponentials. A group
/// of threads takes each row.
template <class C>
__device__ void take_exponentials(C (&scores)[kTile<C>][kTile<C> + 1], RunningMemory<C>& running) {
  constexpr int kLanes = kBlock / kTile<C>;
  const Place place(kLanes, kTile<C>, true);
  C* const row = scores[place.group];
  const C before = running.most[place.group];
  C most = before;
  for (int c = place.lane; c < kTile<C>; c += kLanes) most = Most::fold(most, row[c]);
  most = fold_lanes<Most>(most, running.folded, place, kLanes, kTile<C>);
  // While all scores are -infinity, all exponentials are 0.
  const C shift = most == -static_cast<C>(INFINITY) ? C(0) : most;
  C sum = 0;
  for (int c = place.lane; c < kTile<C>; c += kLanes) sum += row[c] = std::exp(row[c] - shift);
  sum = fold_lanes<Sum>(sum, running.folded, place, kLanes, kTile<C>);
  if (place.lane > 0) return;
  const C shrink = before == most ? C(1) : std::exp(before - shift);
  running.sum[place.group] = running.sum[place.group] * shrink + sum;
  running.most[place.group] = most;
  running.shrink[place.group] = shrink;
}

template <class T, class C = accumulate_t<T>>
__global__ void __launch_bounds__(kBlock)
    attention_kernel(const __grid_constant__ Operands in, T* y_data, C* log_sums) {
  constexpr int tile = kTile<C>;
  __shared__ ProductMemory<C> products;
  __shared__ SumMemory<C> memory;
  __shared__ RunningMemory<C> running;
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const std::int64_t queries = in.q.n, keys = in.k.n, values = in.v.width;
  const std::int64_t row_tiles = tiles_of(queries, tile);
  const std::int64_t column_tiles = values > 0 ? tiles_of(values, tile) : 1;
  for (std::int64_t unit = blockIdx.x; unit < in.batch * row_tiles * column_tiles;
       unit += gridDim.x) {
    const std::int64_t d0 = unit % column_tiles * tile;
    const std::int64_t i0 = unit / column_tiles % row_tiles * tile;
    const std::int64_t at = unit / (column_tiles * row_tiles);
    Patch<C> sums{};
    __syncthreads();  // the last unit's threads have read `running`
    for (int r = static_cast<int>(threadIdx.x); r < tile; r += kBlock) {
      running.sum[r] = 0;
      running.most[r] = -static_cast<C>(INFINITY);
    }
    for (int i = 0; i < kPatch<C>; ++i) running.seen[y + kSide * i][x] = false;
    const std::int64_t last = in.causal && i0 + tile < keys ? i0 + tile : keys;
    for (std::int64_t j0 = 0; j0 < last; j0 += tile) {
      Patch<C> scores;
      multiply_rows<T, C>(in.q, i0, in.k, j0, at, products, scores);
      for (int i = 0; i < kPatch<C>; ++i) {
        for (int j = 0; j < kPatch<C>; ++j) {
          const int r = y + kSide * i, c = x + kSide * j;
          C score = -static_cast<C>(INFINITY);
          if (in.has(i0 + r, j0 + c)) {
            const C bias = in.bias<C>(at, i0 + r, j0 + c);
            score = static_cast<C>(in.scale) * scores[i][j] + bias;
            if (bias != -static_cast<C>(INFINITY)) running.seen[r][x] = true;
          }
          memory.weights[r][c] = score;
        }
      }
      load_rows<T, C>(in.v, at, j0, d0, memory.rows);
      __syncthreads();
      take_exponentials<C>(memory.weights, running);
      __syncthreads();
      for (int i = 0; i < kPatch<C>; ++i) {
        for (int j = 0; j < kPatch<C>; ++j) {
          sums[i][j] *= running.shrink[y + kSide * i];
          if (in.kept.data == nullptr) continue;
          const std::int64_t query = i0 + y + kSide * i, key = j0 + x + kSide * j;
          if (query >= queries || key >= keys) continue;
          memory.weights[y + kSide * i][x + kSide * j] *= in.factor<C>(at, query, key);
        }
      }
      __syncthreads();
      add_rows<C>(memory, keys - j0, sums);
    }
    __syncthreads();
    for (int i = 0; i < kPatch<C>; ++i) {
      const int r = y + kSide * i;
      if (i0 + r >= queries) continue;
      bool sees = false;
      for (int c = 0; c < kSide; ++c) sees |= running.seen[r][c];
      const std::int64_t row = at * queries + i0 + r;
      const C inverse = 1 / running.sum[r];
      for (int j = 0; j < kPatch<C>; ++j) {
        const std::int64_t d = d0 + x + kSide * j;
        if (d < values)
          y_data[row * values + d] = static_cast<T>(sees ? sums[i][j] * inverse : C(0));
      }
      if (d0 > 0 || x > 0) continue;
      log_sums[row] = sees ? running.most[r] + std::log(running.sum[r]) : static_cast<C>(INFINITY);
    }
  }
}

// --- Backward ------------------------------------------------------------------------------------

/// common[row] = the product of a row of y and of grad_y.
template <class T, class C = accumulate_t<T>>
__global__ void __launch_bounds__(kBlock)
    common_kernel(std::int64_t rows, std::int64_t n, const T* grad_y, const T* y, C* common) {
  for (std::int64_t row = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; row < rows;
       row += std::int64_t{gridDim.x} * kBlock) {
    const double sum = add_runs<C>(0, n, 1, [&]<class A>(std::int64_t e) {
      return static_cast<A>(grad_y[row * n + e]) * static_cast<A>(y[row * n + e]);
    });
    common[row] = static_cast<C>(sum);
  }
}

enum class Of { q, k, v };

template <class T>
struct GradPointers {
  const accumulate_t<T>* log_sums;
  const accumulate_t<T>* common;
  T* grad;
};

/// The gradient of q, k or v: its rows belong to queries or to keys, and a block goes through the
/// tiles of the other ones.
template <class T, Of of, class C = accumulate_t<T>>
__global__ void __launch_bounds__(kBlock)
    attention_backward_kernel(const __grid_constant__ Operands in,
                              const __grid_constant__ Rows grad_y, const GradPointers<T> data) {
  constexpr int tile = kTile<C>;
  __shared__ ProductMemory<C> products;
  __shared__ SumMemory<C> memory;
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const std::int64_t queries = in.q.n, keys = in.k.n;
  const std::int64_t rows = of == Of::q ? queries : keys, others = of == Of::q ? keys : queries;
  const std::int64_t columns = of == Of::v ? in.v.width : in.q.width;
  const std::int64_t row_tiles = tiles_of(rows, tile), column_tiles = tiles_of(columns, tile);
  const Rows& summed = of == Of::q ? in.k : of == Of::k ? in.q : grad_y;
  for (std::int64_t unit = blockIdx.x; unit < in.batch * row_tiles * column_tiles;
       unit += gridDim.x) {
    const std::int64_t d0 = unit % column_tiles * tile;
    const std::int64_t r0 = unit / column_tiles % row_tiles * tile;
    const std::int64_t at = unit / (column_tiles * row_tiles);
    Patch<C> sums{};
    for (std::int64_t o0 = 0; o0 < others; o0 += tile) {
      const std::int64_t i0 = of == Of::q ? r0 : o0, j0 = of == Of::q ? o0 : r0;
      if (in.causal && j0 >= i0 + tile) continue;
      Patch<C> scores, grads;
      multiply_rows<T, C>(in.q, i0, in.k, j0, at, products, scores);
      if (of != Of::v) multiply_rows<T, C>(grad_y, i0, in.v, j0, at, products, grads);
      for (int i = 0; i < kPatch<C>; ++i) {
        for (int j = 0; j < kPatch<C>; ++j) {
          const std::int64_t query = i0 + y + kSide * i, key = j0 + x + kSide * j;
          C value = 0;
          const std::int64_t row = at * queries + query;
          if (in.has(query, key) && data.log_sums[row] != static_cast<C>(INFINITY)) {
            const C bias = in.bias<C>(at, query, key);
            const C weight =
                std::exp(static_cast<C>(in.scale) * scores[i][j] + bias - data.log_sums[row]);
            const C factor = in.factor<C>(at, query, key);
            value =
                of == Of::v ? weight * factor : weight * (factor * grads[i][j] - data.common[row]);
          }
          const int a = y + kSide * i, b = x + kSide * j;
          (of == Of::q ? memory.weights[a][b] : memory.weights[b][a]) = value;
        }
      }
      load_rows<T, C>(summed, at, o0, d0, memory.rows);
      __syncthreads();
      add_rows<C>(memory, others - o0, sums);
    }
    const C factor = of == Of::v ? C(1) : static_cast<C>(in.scale);
    for (int i = 0; i < kPatch<C>; ++i) {
      for (int j = 0; j < kPatch<C>; ++j) {
        const std::int64_t r = r0 + y + kSide * i, d = d0 + x + kSide * j;
        if (r < rows && d < columns) {
          data.grad[(at * rows + r) * columns + d] = static_cast<T>(sums[i][j] * factor);
        }
      }
    }
  }
}

// --- The table -----------------------------------------------------------------------------------

std::int64_t units(std::int64_t batch, std::int64_t rows, std::int64_t columns, int tile) {
  return batch * tiles_of(rows, tile) * std::max<std::int64_t>(tiles_of(columns, tile), 1);
}

std::size_t workspace_bytes(const AttentionArgs&) { return 0; }

std::size_t backward_workspace_bytes(const AttentionArgs& args) {
  const std::int64_t rows = args.q.shape[0] * args.q.shape[1] * args.q.shape[2];
  return static_cast<std::size_t>(rows) * (args.q.dtype == DType::f64 ? 8 : 4);
}

void forward(const Stream& stream, const AttentionArgs& args, const View& y, const View& log_sums,
             void*) {
  const Operands in(args);
  for_floating("attention", stream, args.q.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    if (log_sums.numel() == 0) return;
    launch("attention", stream, attention_kernel<T>,
           grid_blocks(units(in.batch, in.q.n, in.v.width, kTile<C>), 1), kBlock, in, y.as<T>(),
           log_sums.as<C>());
  });
}

void backward(const Stream& stream, const AttentionArgs& args, const AttentionGradArgs& grads,
              void* workspace) {
  const Operands in(args);
  for_floating("attention_backward", stream, args.q.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const std::int64_t rows = grads.log_sums.numel();
    C* const common = static_cast<C*>(workspace);
    if (rows > 0) {
      launch("attention_backward", stream, common_kernel<T>, grid_blocks(rows), kBlock, rows,
             in.v.width, grads.grad_y.as<T>(), grads.y.as<T>(), common);
    }
    const Rows grad_y(grads.grad_y);
    const auto run = [&]<Of of>(const View& grad) {
      if (!grad || grad.numel() == 0) return;
      launch("attention_backward", stream, attention_backward_kernel<T, of>,
             grid_blocks(units(in.batch, grad.shape[2], grad.shape[3], kTile<C>), 1), kBlock, in,
             grad_y, GradPointers<T>{grads.log_sums.as<C>(), common, grad.as<T>()});
    };
    run.template operator()<Of::q>(grads.grad_q);
    run.template operator()<Of::k>(grads.grad_k);
    run.template operator()<Of::v>(grads.grad_v);
  });
}

}  // namespace

AttentionKernels attention_kernels() {
  const AttentionKernels own{.workspace_bytes = workspace_bytes,
                             .forward = forward,
                             .backward_workspace_bytes = backward_workspace_bytes,
                             .backward = backward};
  return chosen_attention ? chosen_attention(own) : own;
}

}  // namespace weft::cuda
