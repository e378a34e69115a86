// Reading and adding at positions given by an index tensor.
#include "weft/kernels/indexing.h"

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// `at` with another coordinate in dimension dim. A scalar has a single position.
Dims moved(Dims at, int dim, std::int64_t to) {
  if (!at.empty()) at[dim] = to;
  return at;
}

void check_bounds(const Stream&, const IndexBounds& bounds, const View& index_view) {
  const Elements<std::int64_t> index(index_view);
  std::int64_t number = 0;
  for_each_position(index_view.shape, [&](const Dims& at) {
    if (!bounds.accept(index(at))) {
      throw_out_of_range(bounds, index(at), index_view.shape, number);
    }
    ++number;
  });
}

void index_select(const Stream&, const View& x_view, int dim, const View& index_view,
                  const View& y_view) {
  const Elements<std::int64_t> index(index_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) {
      const std::int64_t i = at.empty() ? 0 : at[dim];
      y.set(x(moved(at, dim, index(i))), at);
    });
  });
}

std::size_t workspace_bytes(const Stream&, const View&, int, const View&) { return 0; }

void index_add(const Stream&, const View& x_view, int dim, const View& index_view,
               const View& y_view, void*) {
  const Elements<std::int64_t> index(index_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(x_view.shape, [&](const Dims& at) {
      const std::int64_t i = at.empty() ? 0 : at[dim];
      y.add(x(at), moved(at, dim, index(i)));
    });
  });
}

void gather(const Stream&, const View& x_view, int dim, const View& index_view,
            const View& y_view) {
  const Elements<std::int64_t> index(index_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(index_view.shape,
                      [&](const Dims& at) { y.set(x(moved(at, dim, index(at))), at); });
  });
}

void scatter_add(const Stream&, const View& x_view, int dim, const View& index_view,
                 const View& y_view, void*) {
  const Elements<std::int64_t> index(index_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(index_view.shape,
                      [&](const Dims& at) { y.add(x(at), moved(at, dim, index(at))); });
  });
}

void scatter(const Stream&, const View& x_view, int dim, const View& index_view, const View& y_view,
             void*) {
  const Elements<std::int64_t> index(index_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(index_view.shape,
                      [&](const Dims& at) { y.set(x(at), moved(at, dim, index(at))); });
  });
}

void count_true(const Stream&, const View& mask_view, const View& counts_view) {
  const Elements<bool> mask(mask_view);
  const Elements<std::int64_t> counts(counts_view);
  for (std::int64_t p = 0; p < counts_view.numel(); ++p) counts.set(0, p);
  for (std::int64_t i = 0; i < mask_view.numel(); ++i) counts.add(mask(i), i / kTruePiece);
}

void find_true(const Stream&, const View& mask_view, const View&, const View& y_view) {
  const Elements<bool> mask(mask_view);
  const Elements<std::int64_t> y(y_view);
  for (std::int64_t i = 0, found = 0; i < mask_view.numel(); ++i) {
    if (mask(i)) y.set(i, found++);
  }
}

void one_hot(const Stream&, const View& index_view, const View& y_view) {
  const Elements<std::int64_t> index(index_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) {
      Dims row = at;
      row.erase(at.size() - 1);
      y.set(at[at.size() - 1] == index(row), at);
    });
  });
}

}  // namespace

IndexingKernels indexing_kernels() {
  return {.check_bounds = check_bounds,
          .index_select = index_select,
          .index_add_workspace_bytes = workspace_bytes,
          .index_add = index_add,
          .gather = gather,
          .scatter_workspace_bytes = workspace_bytes,
          .scatter_add = scatter_add,
          .scatter = scatter,
          .count_true = count_true,
          .find_true = find_true,
          .one_hot = one_hot};
}

}  // namespace weft::reference
