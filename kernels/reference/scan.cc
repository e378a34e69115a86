// Running sums and products.
#include "weft/kernels/scan.h"

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

std::size_t workspace_bytes(const View&) { return 0; }

/// T: the dtype of x; Y: that of y; A: f64, or unsigned for sums modulo 2^64.
template <class T, class Y, class A>
void scan_as(ScanOp op, bool reverse, const View& x_view, const View& y_view) {
  const std::int64_t rows = x_view.shape[0], n = x_view.shape[1];
  const Elements<T> x(x_view);
  const Elements<Y> y(y_view);
  for (std::int64_t r = 0; r < rows; ++r) {
    A so_far = op == ScanOp::sum ? 0 : 1;
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t i = reverse ? n - 1 - k : k;
      const A value = static_cast<A>(x(r, i));
      so_far = op == ScanOp::sum ? so_far + value : so_far * value;
      y.set(static_cast<value_t<Y>>(so_far), r, i);
    }
  }
}

void scan(const Stream&, ScanOp op, bool reverse, const View& x, const View& y, void*) {
  dispatch_all(x.dtype, [&]<class T>() {
    if constexpr (is_floating(dtype_of<T>)) {
      scan_as<T, T, double>(op, reverse, x, y);
    } else {
      scan_as<T, std::int64_t, std::uint64_t>(op, reverse, x, y);
    }
  });
}

}  // namespace

ScanKernels scan_kernels() { return {.workspace_bytes = workspace_bytes, .scan = scan}; }

}  // namespace weft::reference
