// Reads and writes at computed positions.
#include <algorithm>

#include "weft/kernels/cpu/copy.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/copy.h"
#include "weft/kernels/cpu/loops/elementwise.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::cpu {
namespace {

View without_dimension(View v, int dim) {
  v.shape.erase(dim);
  v.strides.erase(dim);
  return v;
}

/// The operations treat a scalar as a row of one element.
View at_least_1d(View v) {
  if (v.shape.empty()) {
    v.shape.push_back(1);
    v.strides.push_back(1);
  }
  return v;
}

void check_bounds(const Stream&, const IndexBounds& bounds, const View& index) {
  const Loop<1> loop({&index});
  const auto in_range = copy_loops().in_range;
  bool good = true;
  loop.walk(0, loop.numel(), [&](const Tile<1>& t) {
    const auto* data = reinterpret_cast<const std::int64_t*>(t.data[0]);
    for (std::int64_t r = 0; r < t.rows; ++r, data += t.row_step[0]) {
      if (t.step[0] == 1) {
        good &= in_range(t.n, data, bounds.bound);
      } else {
        for (std::int64_t i = 0; i < t.n; ++i) {
          good &= bounds.accept(data[i * t.step[0]]);
        }
      }
    }
  });
  if (good) return;
  // Searches in row-major order, to name the first bad one; or there are only ignored ones.
  const std::int64_t n = index.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = index.shape.size() - 1; d >= 0; --d) {
      offset += rest % index.shape[d] * index.strides[d];
      rest /= index.shape[d];
    }
    const std::int64_t value = index.as<std::int64_t>()[offset];
    if (!bounds.accept(value)) throw_out_of_range(bounds, value, index.shape, i);
  }
}

/// Calls f(a, b) for each position of `index`: a is the element of `dense` at the same position, b
/// that of `full` with its position along dim replaced by the index. If `in_order`, one thread
/// visits all positions that differ only in dim, in order.
template <class U, class F>
void for_each_indexed(const View& full_, const View& dense_, int dim, const View& index_,
                      bool in_order, F&& f) {
  const View full = at_least_1d(full_), dense = at_least_1d(dense_), index = at_least_1d(index_);
  const std::int64_t k = index.shape[dim];
  const std::int64_t a_step = dense.strides[dim], at_step = index.strides[dim],
                     b_step = full.strides[dim];
  // The lines along dim; `full` may also be longer than index in the other dimensions.
  const View a = without_dimension(dense, dim), at = without_dimension(index, dim);
  View b = without_dimension(full, dim);
  b.shape = at.shape;
  const Loop<3> lines({&a, &at, &b});
  // Elements [from, to) of lines [first, last).
  const auto visit = [&](std::int64_t first, std::int64_t last, std::int64_t from,
                         std::int64_t to) {
    lines.walk(first, last, [&](const Tile<3>& t) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        for (std::int64_t e = 0; e < t.n; ++e) {
          const auto offset = [&](int k) { return r * t.row_step[k] + e * t.step[k]; };
          U* a = reinterpret_cast<U*>(t.data[0]) + offset(0);
          const auto* at = reinterpret_cast<const std::int64_t*>(t.data[1]) + offset(1);
          U* b = reinterpret_cast<U*>(t.data[2]) + offset(2);
          if (a_step == 1 && at_step == 1 && b_step == 1) {
            for (std::int64_t j = from; j < to; ++j) f(a[j], b[at[j]]);
          } else {
            for (std::int64_t j = from; j < to; ++j) f(a[j * a_step], b[at[j * at_step] * b_step]);
          }
        }
      }
    });
  };
  constexpr std::int64_t kGrain = kCheapGrain / 4;
  if (k > kGrain && !in_order) {
    parallel_for(lines.numel() * k, kGrain, [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t line = begin / k, from = begin % k, to = std::min(k, from + end - begin);
        visit(line, line + 1, from, to);
        begin += to - from;
      }
    });
  } else {
    const std::int64_t grain = std::max<std::int64_t>(kGrain / std::max<std::int64_t>(k, 1), 1);
    parallel_for(lines.numel(), grain,
                 [&](std::int64_t begin, std::int64_t end) { visit(begin, end, 0, k); });
  }
}

/// The 1-D index of index_select and index_add as for_each_indexed expects it: `shape` is that of
/// the dense view.
View for_each_line(const View& index, const Shape& shape, int dim) {
  View of_all{index.data, index.dtype, shape, Strides::filled(shape.size(), 0)};
  of_all.strides[dim] = index.strides[0];
  return of_all;
}

/// Calls f(n, a, a_step, b, b_step) for the rows of all slices: a is a row of slice i along dim of
/// `dense`, b that of slice index[i] of `full`. If `in_order`, one thread visits an element of all
/// slices, in order.
template <class U, class F>
void for_each_row(const View& full, const View& dense, int dim, const View& index, bool in_order,
                  F&& f) {
  const std::int64_t k = dense.shape[dim];
  const View a = without_dimension(dense, dim), b = without_dimension(full, dim);
  const Loop<2> slice({&a, &b});
  const std::int64_t row = slice.size(0);
  if (k == 0 || slice.numel() == 0) return;
  const auto* order = index.as<std::int64_t>();
  const std::int64_t a_step = dense.strides[dim], b_step = full.strides[dim],
                     step = index.strides[0];
  // n elements of slices [first, last), from position `at` of a slice; they are in one row.
  const auto visit = [&](std::int64_t at, std::int64_t n, std::int64_t first, std::int64_t last) {
    slice.walk(at, at + n, [&](const Tile<2>& t) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t soon = order[std::min(i + 4, last - 1) * step];
        __builtin_prefetch(reinterpret_cast<U*>(t.data[1]) + soon * b_step);
        f(n, reinterpret_cast<U*>(t.data[0]) + i * a_step, t.step[0],
          reinterpret_cast<U*>(t.data[1]) + order[i * step] * b_step, t.step[1]);
      }
    });
  };
  if (in_order) {
    parallel_for(slice.numel(), std::max<std::int64_t>(kCheapGrain / k, 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   while (begin < end) {
                     const std::int64_t n = std::min(row - begin % row, end - begin);
                     visit(begin, n, 0, k);
                     begin += n;
                   }
                 });
    return;
  }
  // Divides the elements of all rows: few long rows and many short ones are shared equally.
  parallel_for(k * slice.numel(), kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t i = begin / row % k, from = begin % row;
      const std::int64_t at = begin / (row * k) * row + from;
      const bool whole = from == 0 && end - begin >= row;
      const std::int64_t n = whole ? row : std::min(row - from, end - begin);
      const std::int64_t slices = whole ? std::min(k - i, (end - begin) / row) : 1;
      visit(at, n, i, i + slices);
      begin += n * slices;
    }
  });
}

template <class U>
void select_as(const View& x, int dim, const View& index, const View& y) {
  if (y.strides[dim] == 1) {  // rows of slices have gaps
    for_each_indexed<U>(x, y, dim, for_each_line(index, y.shape, dim), false,
                        [](U& to, const U& from) { to = from; });
    return;
  }
  const CopyTile copy = copy_loops().moves(sizeof(U)).tile;
  for_each_row<U>(x, y, dim, index, false,
                  [&](std::int64_t n, U* to, std::int64_t to_step, const U* from,
                      std::int64_t step) { copy(1, n, from, step, 0, to, to_step, 0); });
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

// Sums of integers are modulo 2^bits.
template <class T>
void accumulate(T& to, const T& from) {
  using Sum = accumulate_t<T>;
  if constexpr (std::is_integral_v<Sum>) {
    to = store<T>(static_cast<Sum>(static_cast<std::uint64_t>(load(to)) +
                                   static_cast<std::uint64_t>(load(from))));
  } else {
    to = store<T>(load(to) + load(from));
  }
}

template <class T>
void accumulate_row(std::int64_t n, T* to, std::int64_t to_step, const T* from, std::int64_t step) {
  if (std::is_floating_point_v<accumulate_t<T>> && to_step == 1 && step == 1) {
    char* const data[] = {reinterpret_cast<char*>(to), reinterpret_cast<char*>(to),
                          reinterpret_cast<char*>(const_cast<T*>(from))};
    const ElementwiseLoops& loops = elementwise_loops().of(dtype_of<T>);
    loops.binary[static_cast<int>(BinaryOp::add)](n, data, nullptr);
  } else {
    for (std::int64_t i = 0; i < n; ++i) accumulate(to[i * to_step], from[i * step]);
  }
}

std::size_t workspace_bytes(const Stream&, const View&, int, const View&) { return 0; }

void index_add(const Stream&, const View& x_, int dim, const View& index, const View& y_, void*) {
  const View x = at_least_1d(x_), y = at_least_1d(y_);
  dispatch_all(y.dtype, [&]<class T>() {
    // Slices of one element, or ones whose rows have gaps.
    if (x.shape.size() == 1 || x.strides[dim] == 1) {
      for_each_indexed<T>(y, x, dim, for_each_line(index, x.shape, dim), true,
                          [](const T& from, T& to) { accumulate(to, from); });
    } else {
      for_each_row<T>(y, x, dim, index, true,
                      [](std::int64_t n, const T* from, std::int64_t step, T* to,
                         std::int64_t to_step) { accumulate_row(n, to, to_step, from, step); });
    }
  });
}

void gather_elements(const Stream&, const View& x, int dim, const View& index, const View& y) {
  const auto run = [&]<class U>() {
    for_each_indexed<U>(x, y, dim, index, false, [](U& to, const U& from) { to = from; });
  };
  switch (size_of(y.dtype)) {
    case 1: return run.operator()<std::uint8_t>();
    case 2: return run.operator()<std::uint16_t>();
    case 4: return run.operator()<std::uint32_t>();
    default: return run.operator()<std::uint64_t>();
  }
}

void scatter_add(const Stream&, const View& x, int dim, const View& index, const View& y, void*) {
  dispatch_all(y.dtype, [&]<class T>() {
    for_each_indexed<T>(y, x, dim, index, true, [](const T& from, T& to) { accumulate(to, from); });
  });
}

void scatter(const Stream&, const View& x, int dim, const View& index, const View& y, void*) {
  const auto run = [&]<class U>() {
    for_each_indexed<U>(y, x, dim, index, true, [](const U& from, U& to) { to = from; });
  };
  switch (size_of(y.dtype)) {
    case 1: return run.operator()<std::uint8_t>();
    case 2: return run.operator()<std::uint16_t>();
    case 4: return run.operator()<std::uint32_t>();
    default: return run.operator()<std::uint64_t>();
  }
}

/// Calls f(piece, begin, end) for the pieces of a mask, which the threads share.
template <class F>
void for_pieces(const View& mask, F&& f) {
  const std::int64_t n = mask.numel();
  parallel_for(true_pieces(n), kCheapGrain / kTruePiece,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t p = first; p < last; ++p) {
                   f(p, p * kTruePiece, std::min(n, (p + 1) * kTruePiece));
                 }
               });
}

void count_true(const Stream&, const View& mask, const View& counts) {
  for_pieces(mask, [&](std::int64_t piece, std::int64_t begin, std::int64_t end) {
    const bool* const holds = mask.as<bool>();
    counts.as<std::int64_t>()[piece] = std::count(holds + begin, holds + end, true);
  });
}

void find_true(const Stream&, const View& mask, const View& ends, const View& y) {
  for_pieces(mask, [&](std::int64_t piece, std::int64_t begin, std::int64_t) {
    const bool* const holds = mask.as<bool>();
    const auto* const end = ends.as<std::int64_t>() + piece;
    auto* const at = y.as<std::int64_t>();
    // Writes each position, and the next one over it if this one is false: a branch would be
    // mispredicted.
    for (std::int64_t i = begin, n = piece > 0 ? end[-1] : 0; n < *end; ++i) {
      at[n] = i;
      n += holds[i];
    }
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

IndexingKernels indexing_kernels() {
  return {.check_bounds = check_bounds,
          .index_select = index_select,
          .index_add_workspace_bytes = workspace_bytes,
          .index_add = index_add,
          .gather = gather_elements,
          .scatter_workspace_bytes = workspace_bytes,
          .scatter_add = scatter_add,
          .scatter = scatter,
          .count_true = count_true,
          .find_true = find_true,
          .one_hot = one_hot};
}

}  // namespace weft::cpu
