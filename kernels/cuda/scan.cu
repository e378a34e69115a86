// Running sums and products, in the order of kernels/scan.h. A task is one piece of a row, and a
// thread computes it from its beginning to its end. Rows of one piece are one pass, which reads x
// and writes y; longer ones have one more before it, which reads x for the pieces' totals.
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"

namespace weft::cuda {
namespace {

// A block works on a tile of its tasks' elements at a time: all threads load it and store it, in
// neighbouring addresses, and in between each of the first kTasks scans its own task's part.
constexpr int kScanBlock = 128;
constexpr int kTasks = 32;
constexpr int kTile = 32;

struct ScanArgs {
  std::int64_t rows, n, pieces;
  bool reverse;

  __host__ __device__ std::int64_t tasks() const { return rows * pieces; }
  /// The place in x and y of element i of a task, or -1 if the task has fewer.
  __device__ std::int64_t at(std::int64_t task, std::int64_t i) const {
    const std::int64_t row = task / pieces, k = task % pieces * kScanPiece + i;
    if (row >= rows || k >= n) return -1;
    return row * n + (reverse ? n - 1 - k : k);
  }
};

/// With totals: totals[task] = the scan of all its elements. Without: y = carries[task] op the scan
/// up to each element; no carries means that rows are single pieces.
template <class Op, class T, class Y, class A>
__global__ void __launch_bounds__(kScanBlock)
    scan_kernel(const __grid_constant__ ScanArgs args, const T* x, const A* carries, A* totals,
                Y* y) {
  __shared__ A tile[kTasks][kTile + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t length = args.n < kScanPiece ? args.n : kScanPiece;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kTasks; first < args.tasks();
       first += std::int64_t{gridDim.x} * kTasks) {
    const bool mine = thread < kTasks && first + thread < args.tasks();
    A so_far = Op::template identity<A>, carry = so_far;
    if (mine && carries) carry = carries[first + thread];
    for (std::int64_t begin = 0; begin < length; begin += kTile) {
      for (int e = thread; e < kTasks * kTile; e += kScanBlock) {
        const std::int64_t at = args.at(first + e / kTile, begin + e % kTile);
        tile[e / kTile][e % kTile] = at >= 0 ? element_cast<A>(x[at]) : Op::template identity<A>;
      }
      __syncthreads();
      if (mine) {
        for (int i = 0; i < kTile; ++i) {
          so_far = Op::fold(so_far, tile[thread][i]);
          tile[thread][i] = Op::fold(carry, so_far);
        }
      }
      __syncthreads();
      for (int e = thread; !totals && e < kTasks * kTile; e += kScanBlock) {
        const std::int64_t at = args.at(first + e / kTile, begin + e % kTile);
        if (at >= 0) y[at] = element_cast<Y>(tile[e / kTile][e % kTile]);
      }
      // No barrier: a thread next overwrites only those elements of the tile that it has just read.
    }
    if (mine && totals) totals[first + thread] = so_far;
  }
}

/// In each row, each total becomes the scan of those before it. A block has a row, and its first
/// thread does the sums, while the others load and store for it.
template <class Op, class A>
__global__ void __launch_bounds__(kScanBlock)
    carries_kernel(const __grid_constant__ ScanArgs args, A* totals) {
  __shared__ A tile[kScanBlock];
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    A carry = Op::template identity<A>;
    for (std::int64_t begin = 0; begin < args.pieces; begin += kScanBlock) {
      const bool mine = begin + thread < args.pieces;
      A* const at = totals + r * args.pieces + begin + thread;
      tile[thread] = mine ? *at : Op::template identity<A>;
      __syncthreads();
      if (thread == 0) {
        for (int i = 0; i < kScanBlock; ++i) {
          const A total = tile[i];
          tile[i] = carry;
          carry = Op::fold(carry, total);
        }
      }
      __syncthreads();
      if (mine) *at = tile[thread];  // no barrier: only this thread writes tile[thread] next
    }
  }
}

std::size_t workspace_bytes(const View& x) {
  const std::int64_t pieces = scan_pieces(x.shape[1]);
  return pieces == 1 ? 0 : static_cast<std::size_t>(x.shape[0] * pieces) * sizeof(std::uint64_t);
}

template <class Op, class T, class Y>
void scan_as(const Stream& stream, bool reverse, const View& x, const View& y, void* workspace) {
  using A = scan_t<T>;
  const ScanArgs args{x.shape[0], x.shape[1], scan_pieces(x.shape[1]), reverse};
  const unsigned blocks = grid_blocks(args.tasks(), kTasks);
  A* const none = nullptr;
  A* const carries = args.pieces > 1 ? static_cast<A*>(workspace) : none;
  if (carries) {
    launch("scan", stream, scan_kernel<Op, T, Y, A>, blocks, kScanBlock, args, x.as<T>(), none,
           carries, y.as<Y>());
    launch("scan", stream, carries_kernel<Op, A>, grid_blocks(args.rows, 1), kScanBlock, args,
           carries);
  }
  launch("scan", stream, scan_kernel<Op, T, Y, A>, blocks, kScanBlock, args, x.as<T>(), carries,
         none, y.as<Y>());
}

void scan(const Stream& stream, ScanOp op, bool reverse, const View& x, const View& y,
          void* workspace) {
  if (x.numel() == 0) return;
  dispatch_all(x.dtype, [&]<class T>() {
    using Y = std::conditional_t<is_floating(dtype_of<T>), T, std::int64_t>;
    if (op == ScanOp::sum) {
      scan_as<ScanSum, T, Y>(stream, reverse, x, y, workspace);
    } else {
      scan_as<ScanProd, T, Y>(stream, reverse, x, y, workspace);
    }
  });
}

}  // namespace

ScanKernels scan_kernels() { return {.workspace_bytes = workspace_bytes, .scan = scan}; }

}  // namespace weft::cuda
