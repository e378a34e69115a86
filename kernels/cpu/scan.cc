// Running sums and products. A task is one piece of a row (kernels/scan.h). Several tasks are
// computed side by side, because an addition has to wait for the one before it.
#include "weft/kernels/scan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/loop.h"

namespace weft::cpu {
namespace {

/// As many additions as wait for each other on current processors.
constexpr int kWays = 4;

/// The rows of a scan; elements are counted from where it begins.
template <class T, class Y>
struct Rows {
  const T* x;
  Y* y;
  std::int64_t n, pieces, step;  // step: 1, or -1 in reverse

  Rows(bool reverse, const View& x_view, const View& y_view)
      : x(x_view.as<T>()),
        y(y_view.as<Y>()),
        n(x_view.shape[1]),
        pieces(scan_pieces(n)),
        step(reverse ? -1 : 1) {}

  /// Where a task begins, counted in elements of x or y.
  std::int64_t begin(std::int64_t task) const {
    const std::int64_t row = task / pieces, k = task % pieces * kScanPiece;
    return row * n + (step > 0 ? k : n - 1 - k);
  }
  std::int64_t length(std::int64_t task) const {
    return std::min(kScanPiece, n - task % pieces * kScanPiece);
  }
};

template <int... W>
using Ways = std::integer_sequence<int, W...>;
using One = Ways<0>;
using Several = std::make_integer_sequence<int, kWays>;

/// Scans the tasks first, first + stride, ..., which have one length, and returns their totals. If
/// it writes, y = carries op the scan of the task alone.
template <class Op, bool Writes, class A, class T, class Y, int... W>
std::array<A, sizeof...(W)> scan_tasks(const Rows<T, Y>& rows, std::int64_t first,
                                       std::int64_t stride, const A* carries, Ways<W...>) {
  const std::int64_t n = rows.length(first), step = rows.step;
  const T* const from[] = {rows.x + rows.begin(first + W * stride)...};
  Y* const to[] = {rows.y + rows.begin(first + W * stride)...};
  const A carry[] = {carries[W]...};
  A so_far[] = {(static_cast<void>(W), Op::template identity<A>)...};
  for (std::int64_t i = 0; i < n; ++i) {
    ((so_far[W] = Op::fold(so_far[W], element_cast<A>(from[W][i * step]))), ...);
    if constexpr (Writes) {
      ((to[W][i * step] = element_cast<Y>(Op::fold(carry[W], so_far[W]))), ...);
    }
  }
  return {so_far[W]...};
}

/// Whole rows, which the threads share; a thread takes several side by side.
template <class Op, class A, class T, class Y>
void scan_rows(const Rows<T, Y>& rows, std::int64_t count) {
  const auto scan = [&]<int... W>(std::int64_t row, Ways<W...> ways) {
    constexpr int N = sizeof...(W);
    std::array<A, N> carries;
    carries.fill(Op::template identity<A>);
    for (std::int64_t p = 0; p < rows.pieces; ++p) {
      const std::array<A, N> totals =
          scan_tasks<Op, true>(rows, row * rows.pieces + p, rows.pieces, carries.data(), ways);
      for (int w = 0; w < N; ++w) carries[w] = Op::fold(carries[w], totals[w]);
    }
  };
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / rows.n, kWays);
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (; begin + kWays <= end; begin += kWays) scan(begin, Several());
    for (; begin < end; ++begin) scan(begin, One());
  });
}

/// Calls f(task, ways) for all tasks, several at a time if they have one length.
template <class T, class Y, class F>
void for_tasks(const Rows<T, Y>& rows, std::int64_t count, F&& f) {
  parallel_for(
      count * rows.pieces, kCheapGrain / kScanPiece, [&](std::int64_t begin, std::int64_t end) {
        while (begin < end) {
          const bool several = begin + kWays <= end && begin % rows.pieces + kWays < rows.pieces;
          if (several) {
            f(begin, Several());
          } else {
            f(begin, One());
          }
          begin += several ? kWays : 1;
        }
      });
}

/// Few long rows, piece by piece: first their totals, then what comes before each.
template <class Op, class A, class T, class Y>
void scan_pieces_of_rows(const Rows<T, Y>& rows, std::int64_t count, A* carries) {
  for_tasks(rows, count, [&]<int... W>(std::int64_t task, Ways<W...> ways) {
    const std::array<A, kWays> none{};
    const auto totals = scan_tasks<Op, false>(rows, task, 1, none.data(), ways);
    std::copy(totals.begin(), totals.end(), carries + task);
  });
  for (std::int64_t r = 0; r < count; ++r) {
    A carry = Op::template identity<A>;
    for (std::int64_t p = 0; p < rows.pieces; ++p) {
      carry = Op::fold(carry, std::exchange(carries[r * rows.pieces + p], carry));
    }
  }
  for_tasks(rows, count, [&]<int... W>(std::int64_t task, Ways<W...> ways) {
    scan_tasks<Op, true>(rows, task, 1, carries + task, ways);
  });
}

/// Whether to scan piece by piece, which reads x twice: if there are too few rows to compute side
/// by side, or to share among the threads.
bool shares_pieces(const View& x) {
  const std::int64_t team = std::min<std::int64_t>(num_threads(), x.numel() / kCheapGrain);
  return x.shape[1] > kWays * kScanPiece && x.shape[0] < std::max<std::int64_t>(kWays, team / 2);
}

std::size_t workspace_bytes(const View& x) {
  if (!shares_pieces(x)) return 0;
  return static_cast<std::size_t>(x.shape[0] * scan_pieces(x.shape[1])) * sizeof(std::uint64_t);
}

template <class Op, class T, class Y>
void scan_as(bool reverse, const View& x, const View& y, void* workspace) {
  using A = scan_t<T>;
  const Rows<T, Y> rows(reverse, x, y);
  if (shares_pieces(x)) {
    scan_pieces_of_rows<Op>(rows, x.shape[0], static_cast<A*>(workspace));
  } else {
    scan_rows<Op, A>(rows, x.shape[0]);
  }
}

void scan(const Stream&, ScanOp op, bool reverse, const View& x, const View& y, void* workspace) {
  dispatch_all(x.dtype, [&]<class T>() {
    using Y = std::conditional_t<is_floating(dtype_of<T>), T, std::int64_t>;
    if (op == ScanOp::sum) {
      scan_as<ScanSum, T, Y>(reverse, x, y, workspace);
    } else {
      scan_as<ScanProd, T, Y>(reverse, x, y, workspace);
    }
  });
}

}  // namespace

ScanKernels scan_kernels() { return {.workspace_bytes = workspace_bytes, .scan = scan}; }

}  // namespace weft::cpu
