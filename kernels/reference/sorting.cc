// Sorting.
#include "weft/kernels/sorting.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// Whether a comes before b where the order ascends: a NaN comes last.
template <class V>
bool before(V a, V b) {
  const bool a_nan = a != a, b_nan = b != b;
  return a < b || (b_nan && !a_nan);
}

std::size_t workspace_bytes(const Stream&, const View&) { return 0; }

void sort(const Stream&, bool descending, const View& x_view, const View& values_view,
          const View& indices_view, void*) {
  const std::int64_t rows = x_view.shape[0], n = x_view.shape[1];
  const Elements<std::int64_t> indices(indices_view);
  dispatch_all(x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), values(values_view);
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t k) {
        const auto first = x(r, descending ? k : i), second = x(r, descending ? i : k);
        return before(first, second) || (!before(second, first) && i < k);
      });
      for (std::int64_t i = 0; i < n; ++i) {
        indices.set(order[i], r, i);
        if (values) values[{r, i}] = x[{r, order[i]}];
      }
    }
  });
}

void search(const Stream&, bool right, const View& sequence_view, const View& values_view,
            const View& y_view) {
  const bool shared = sequence_view.shape[0] == 1;
  const Elements<std::int64_t> y(y_view);
  dispatch_all(values_view.dtype, [&]<class T>() {
    const Elements<T> sequence(sequence_view), values(values_view);
    for_each_position(values_view.shape, [&](const Dims& at) {
      const auto value = values(at);
      std::int64_t count = 0;
      for (std::int64_t i = 0; i < sequence_view.shape[1]; ++i) {
        const auto x = sequence(shared ? 0 : at[0], i);
        count += x < value || (right && x == value) || value != value;
      }
      y.set(count, at);
    });
  });
}

}  // namespace

SortingKernels sorting_kernels() {
  return {.workspace_bytes = workspace_bytes, .sort = sort, .search = search};
}

}  // namespace weft::reference
