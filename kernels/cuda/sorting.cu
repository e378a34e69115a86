// Sorting: all elements by their keys, then by their rows. Both sorts keep the order of equal ones,
// so within a row the keys stay sorted.
//
// Passes over memory besides the sorts' own (device_wide.cu): one reads x and writes keys and
// positions; with several rows one reads the positions and writes their rows; one reads the
// positions and the elements there, and writes both outputs. A search reads log2(n) elements of the
// sequence for each value.
#include <algorithm>
#include <bit>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/device_wide.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/memory_parts.h"

namespace weft::cuda {
namespace {

template <class T>
using KeyOf = decltype(sort_key(T{}, false));

/// Of each element the key, and the position in x.
template <class T>
__global__ void __launch_bounds__(kBlock)
    keys_kernel(std::int64_t numel, bool descending, const T* x, KeyOf<T>* keys,
                std::int64_t* positions) {
  for_each_of_grid(numel, [&](std::int64_t i) {
    keys[i] = sort_key(x[i], descending);
    positions[i] = i;
  });
}

template <class Row>
__global__ void __launch_bounds__(kBlock)
    rows_kernel(std::int64_t numel, std::int64_t n, const std::int64_t* positions, Row* rows) {
  for_each_of_grid(numel, [&](std::int64_t i) { rows[i] = static_cast<Row>(positions[i] / n); });
}

/// values[i] = x[indices[i]]; afterwards the index counts from the beginning of its row.
template <class Bits>
__global__ void __launch_bounds__(kBlock)
    take_kernel(std::int64_t numel, std::int64_t n, const Bits* x, Bits* values,
                std::int64_t* indices) {
  for_each_of_grid(numel, [&](std::int64_t i) {
    const std::int64_t position = indices[i];
    if (values) values[i] = x[position];
    indices[i] = position % n;
  });
}

int row_bytes(const View& x) { return x.shape[0] <= std::int64_t{1} << 32 ? 4 : 8; }

/// Where the parts of the workspace begin.
struct Parts : MemoryParts {
  std::size_t keys, sorted_keys, positions, sort;

  Parts(const Stream& stream, const View& x) {
    const bool by_row = x.shape[0] > 1;
    const int key = static_cast<int>(size_of(x.dtype)), row = by_row ? row_bytes(x) : 0;
    const auto n = static_cast<std::size_t>(x.numel());
    const std::size_t buffer = n * static_cast<std::size_t>(std::max(key, row));
    keys = add(buffer);
    sorted_keys = add(buffer);
    positions = add(n * sizeof(std::int64_t));
    sort = add(std::max(sort_pairs_workspace_bytes(stream, key, x.numel()),
                        by_row ? sort_pairs_workspace_bytes(stream, row, x.numel()) : 0));
  }
};

std::size_t workspace_bytes(const Stream& stream, const View& x) { return Parts(stream, x).bytes; }

/// The positions from `from`, which are sorted by key, go to `to`, sorted by row and key.
template <class Row>
void sort_by_row(const Stream& stream, const View& x, const Pairs& from, const Pairs& to,
                 void* workspace) {
  launch("sort", stream, rows_kernel<Row>, grid_blocks(x.numel()), kBlock, x.numel(), x.shape[1],
         from.values, static_cast<Row*>(from.keys));
  const int bits = std::bit_width(static_cast<std::uint64_t>(x.shape[0] - 1));
  sort_pairs(stream, sizeof(Row), bits, x.numel(), from, to, workspace);
}

void sort(const Stream& stream, bool descending, const View& x, const View& values,
          const View& indices, void* workspace) {
  const std::int64_t rows = x.shape[0], numel = x.numel();
  if (numel == 0) return;
  const Parts parts(stream, x);
  const auto at = [&](std::size_t offset) { return static_cast<char*>(workspace) + offset; };
  Pairs first{at(parts.keys), indices.as<std::int64_t>()};
  Pairs second{at(parts.sorted_keys), reinterpret_cast<std::int64_t*>(at(parts.positions))};
  // One sort or two; in the end the positions are in `indices`.
  if (rows == 1) std::swap(first.values, second.values);
  dispatch_all(x.dtype, [&]<class T>() {
    launch("sort", stream, keys_kernel<T>, grid_blocks(numel), kBlock, numel, descending, x.as<T>(),
           static_cast<KeyOf<T>*>(first.keys), first.values);
  });
  const int key_bytes = static_cast<int>(size_of(x.dtype));
  sort_pairs(stream, key_bytes, 8 * key_bytes, numel, first, second, at(parts.sort));
  if (rows > 1 && row_bytes(x) == 4) {
    sort_by_row<std::uint32_t>(stream, x, second, first, at(parts.sort));
  } else if (rows > 1) {
    sort_by_row<std::uint64_t>(stream, x, second, first, at(parts.sort));
  }
  dispatch_bits(x.dtype, [&]<class Bits>() {
    launch("sort", stream, take_kernel<Bits>, grid_blocks(numel), kBlock, numel, x.shape[1],
           x.as<Bits>(), values.as<Bits>(), indices.as<std::int64_t>());
  });
}

/// step: from one row of the sequence to the next; 0 if all rows share one.
template <class T>
__global__ void __launch_bounds__(kBlock)
    search_kernel(std::int64_t numel, std::int64_t columns, bool right, const T* sequence,
                  std::int64_t n, std::int64_t step, const T* values, std::int64_t* y) {
  for_each_of_grid(numel, [&](std::int64_t i) {
    y[i] = searched(sequence + i / columns * step, n, values[i], right);
  });
}

void search(const Stream& stream, bool right, const View& sequence, const View& values,
            const View& y) {
  const std::int64_t numel = values.numel(), n = sequence.shape[1];
  if (numel == 0) return;
  const std::int64_t step = sequence.shape[0] == 1 ? 0 : n;
  dispatch_all(values.dtype, [&]<class T>() {
    launch("searchsorted", stream, search_kernel<T>, grid_blocks(numel), kBlock, numel,
           values.shape[1], right, sequence.as<T>(), n, step, values.as<T>(), y.as<std::int64_t>());
  });
}

}  // namespace

SortingKernels sorting_kernels() {
  return {.workspace_bytes = workspace_bytes, .sort = sort, .search = search};
}

}  // namespace weft::cuda
