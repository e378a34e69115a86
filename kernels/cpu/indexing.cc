// Reading and adding at computed positions.
#include <cstring>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/families.h"
#include "weft/kernels/cpu/loop.h"

namespace weft::cpu {
namespace {

View without_dimension(View v, int dim) {
  v.shape.erase(dim);
  v.strides.erase(dim);
  return v;
}

/// The calls treat a scalar as a row of one element.
View at_least_1d(View v) {
  if (v.shape.empty()) {
    v.shape.push_back(1);
    v.strides.push_back(1);
  }
  return v;
}

void check_bounds(const Stream&, const char* op, const View& index, std::int64_t bound) {
  const Loop<1> loop({&index});
  bool good = true;
  loop.walk(0, loop.numel(), [&](const Tile<1>& t) {
    const auto* data = reinterpret_cast<const std::int64_t*>(t.data[0]);
    for (std::int64_t r = 0; r < t.rows; ++r) {
      for (std::int64_t i = 0; i < t.n; ++i) {
        const std::int64_t v = data[r * t.row_step[0] + i * t.step[0]];
        good &= v >= 0 && v < bound;
      }
    }
  });
  if (good) return;
  // Only now in row-major order, to name the first one.
  const std::int64_t n = index.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t rest = i, offset = 0;
    Dims at = Dims::filled(index.shape.size(), 0);
    for (int d = index.shape.size() - 1; d >= 0; --d) {
      at[d] = rest % index.shape[d];
      rest /= index.shape[d];
      offset += at[d] * index.strides[d];
    }
    const std::int64_t v = index.as<std::int64_t>()[offset];
    WEFT_CHECK(v >= 0 && v < bound, InvalidArgument, op, "index ", v, " at position ",
               to_string(at), " is out of range [0, ", bound, ")");
  }
}

/// Calls f(y, x) for each pair of elements of the tile.
template <class U, class F>
void for_each_pair(const Tile<2>& t, std::int64_t y_offset, std::int64_t x_offset, F&& f) {
  for (std::int64_t r = 0; r < t.rows; ++r) {
    U* y = reinterpret_cast<U*>(t.data[0]) + y_offset + r * t.row_step[0];
    U* x = reinterpret_cast<U*>(t.data[1]) + x_offset + r * t.row_step[1];
    for (std::int64_t i = 0; i < t.n; ++i) f(y[i * t.step[0]], x[i * t.step[1]]);
  }
}

template <class U>
void select_as(const View& x, int dim, const View& index, const View& y) {
  const std::int64_t k = y.shape[dim];
  const Loop<2> slice = [&] {
    const View to = without_dimension(y, dim), from = without_dimension(x, dim);
    return Loop<2>({&to, &from});
  }();
  const std::int64_t n = slice.numel();
  if (n == 0) return;
  const auto* order = index.as<std::int64_t>();
  const std::int64_t y_step = y.strides[dim], x_step = x.strides[dim], step = index.strides[0];
  // All elements, slice by slice, so that a few large slices and many small ones share alike.
  parallel_for(k * n, kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t i = begin / n, from = begin % n, to = std::min(n, from + end - begin);
      slice.walk(from, to, [&](const Tile<2>& t) {
        const std::int64_t x_offset = order[i * step] * x_step, y_offset = i * y_step;
        if (t.rows == 1 && t.step[0] == 1 && t.step[1] == 1) {
          std::memcpy(reinterpret_cast<U*>(t.data[0]) + y_offset,
                      reinterpret_cast<const U*>(t.data[1]) + x_offset,
                      static_cast<std::size_t>(t.n) * sizeof(U));
        } else {
          for_each_pair<U>(t, y_offset, x_offset, [](U& to, const U& from) { to = from; });
        }
      });
      begin += to - from;
    }
  });
}

void index_select(const Stream&, const View& x_, int dim, const View& index, const View& y_) {
  const View x = at_least_1d(x_), y = at_least_1d(y_);
  switch (size_of(y.dtype)) {
    case 1: return select_as<std::uint8_t>(x, dim, index, y);
    case 2: return select_as<std::uint16_t>(x, dim, index, y);
    case 4: return select_as<std::uint32_t>(x, dim, index, y);
    default: return select_as<std::uint64_t>(x, dim, index, y);
  }
}

template <class T>
void accumulate(T& to, const T& from) {
  to = store<T>(load(to) + load(from));
}

void index_add(const Stream&, const View& x_, int dim, const View& index, const View& y_) {
  const View x = at_least_1d(x_), y = at_least_1d(y_);
  const std::int64_t k = x.shape[dim];
  const View to = without_dimension(y, dim), from = without_dimension(x, dim);
  const Loop<2> slice({&to, &from});
  const auto* order = index.as<std::int64_t>();
  // Each thread owns a part of every slice and adds to it in index order: no races, one order.
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / std::max<std::int64_t>(k, 1), 1);
  dispatch_all(y.dtype, [&]<class T>() {
    parallel_for(slice.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < k; ++i) {
        const std::int64_t y_offset = order[i * index.strides[0]] * y.strides[dim];
        slice.walk(begin, end, [&](const Tile<2>& t) {
          for_each_pair<T>(t, y_offset, i * x.strides[dim], accumulate<T>);
        });
      }
    });
  });
}

/// f(a, b, index) for each position of `index`: b is the element of `full` that index points to
/// along dim, a the one of `dense` at the position itself. Positions that differ only in dim are
/// visited by one thread, in order.
template <class U, class F>
void for_each_indexed(const View& full_, const View& dense_, int dim, const View& index_, F&& f) {
  const View full = at_least_1d(full_), dense = at_least_1d(dense_), index = at_least_1d(index_);
  const std::int64_t k = index.shape[dim];
  // The lines along dim; `full` may be longer than index in the other dimensions, too.
  const View a = without_dimension(dense, dim), i = without_dimension(index, dim);
  View b = without_dimension(full, dim);
  b.shape = i.shape;
  const Loop<3> lines({&a, &i, &b});
  const std::int64_t grain =
      std::max<std::int64_t>(kCheapGrain / 4 / std::max<std::int64_t>(k, 1), 1);
  parallel_for(lines.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    lines.walk(begin, end, [&](const Tile<3>& t) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        for (std::int64_t e = 0; e < t.n; ++e) {
          U* to = reinterpret_cast<U*>(t.data[0]) + r * t.row_step[0] + e * t.step[0];
          const auto* at =
              reinterpret_cast<const std::int64_t*>(t.data[1]) + r * t.row_step[1] + e * t.step[1];
          U* from = reinterpret_cast<U*>(t.data[2]) + r * t.row_step[2] + e * t.step[2];
          for (std::int64_t j = 0; j < k; ++j) {
            f(to[j * dense.strides[dim]], from[at[j * index.strides[dim]] * full.strides[dim]]);
          }
        }
      }
    });
  });
}

void gather_elements(const Stream&, const View& x, int dim, const View& index, const View& y) {
  const auto run = [&]<class U>() {
    for_each_indexed<U>(x, y, dim, index, [](U& to, const U& from) { to = from; });
  };
  switch (size_of(y.dtype)) {
    case 1: return run.operator()<std::uint8_t>();
    case 2: return run.operator()<std::uint16_t>();
    case 4: return run.operator()<std::uint32_t>();
    default: return run.operator()<std::uint64_t>();
  }
}

void scatter_add(const Stream&, const View& x, int dim, const View& index, const View& y) {
  dispatch_all(y.dtype, [&]<class T>() {
    for_each_indexed<T>(y, x, dim, index, [](const T& from, T& to) { accumulate(to, from); });
  });
}

void one_hot(const Stream& stream, const View& index, const View& y) {
  fill(stream, 0, y);
  const int last = y.shape.size() - 1;
  const std::int64_t class_step = y.strides[last];
  const View rows = without_dimension(y, last);
  const Loop<2> loop({&rows, &index});
  dispatch_all(y.dtype, [&]<class T>() {
    loop.walk(0, loop.numel(), [&](const Tile<2>& t) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        for (std::int64_t i = 0; i < t.n; ++i) {
          const std::int64_t hit =
              reinterpret_cast<const std::int64_t*>(t.data[1])[r * t.row_step[1] + i * t.step[1]];
          T* row = reinterpret_cast<T*>(t.data[0]) + r * t.row_step[0] + i * t.step[0];
          row[hit * class_step] = store<T>(1.0);
        }
      }
    });
  });
}

}  // namespace
}  // namespace weft::cpu

namespace weft {

IndexingKernels cpu_indexing_kernels() {
  return {.check_bounds = cpu::check_bounds,
          .index_select = cpu::index_select,
          .index_add = cpu::index_add,
          .gather = cpu::gather_elements,
          .scatter_add = cpu::scatter_add,
          .one_hot = cpu::one_hot};
}

}  // namespace weft
