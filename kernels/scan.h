// Running sums and products.
#pragma once

#include <cstdint>
#include <type_traits>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

enum class ScanOp : std::uint8_t { sum, prod };

/// The order of the operations, which is the same on every backend, for any number of threads, so
/// the results have the same bits. A row is cut into pieces of this length, from where the scan
/// begins. Within a piece the elements are taken one after another, and so are the totals of the
/// pieces. An element of the result is the total of all pieces before its own, op the elements of
/// its piece up to it. So a row that fits into a piece is computed plainly from one end to the
/// other, and sums of numbers that are not negative never decrease.
inline constexpr std::int64_t kScanPiece = 512;

inline std::int64_t scan_pieces(std::int64_t n) { return n / kScanPiece + (n % kScanPiece != 0); }

/// What T is accumulated in: f32 for bf16, f64 for f32 as in PyTorch on the CPU, and integers
/// modulo 2^64.
template <class T>
using scan_t = std::conditional_t<std::is_integral_v<T>, std::uint64_t,
                                  std::conditional_t<std::is_same_v<T, bf16>, float, double>>;

struct ScanSum {
  template <class A>
  static constexpr A identity = A(0);
  template <class A>
  WEFT_HD static A fold(A a, A b) {
    return a + b;
  }
};
struct ScanProd {
  template <class A>
  static constexpr A identity = A(1);
  template <class A>
  WEFT_HD static A fold(A a, A b) {
    return a * b;
  }
};

/// All views are [rows, n], dense and row-major; n is positive.
/// workspace: as many bytes as the function beside it says for this call, null for none.
struct ScanKernels {
  std::size_t (*workspace_bytes)(const View& x);
  /// y[r, i] = x[r, 0] op ... op x[r, i], or with reverse x[r, n - 1] op ... op x[r, i], in the
  /// order above. y has x's dtype, or i64 if that is integer or boolean.
  void (*scan)(const Stream&, ScanOp, bool reverse, const View& x, const View& y, void* workspace);
};

}  // namespace weft
