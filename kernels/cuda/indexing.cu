// Reading and writing at computed positions. No atomics: one thread computes each sum, in a fixed
// order.
//
// Passes over memory: a check reads the index. What takes reads the index and the taken elements
// and writes y. What puts reads index and x once and reads and writes their elements of y; or, for
// few fibres, reads the index once for each element of y, from the cache. A long list of index_add,
// or the indices of few long fibres, are read once for their keys and sorted (device_wide.cu), some
// fibres after the other; then keys and places are read, for a list by each fibre, and x and what y
// has there once, and that is written once. one_hot reads the index once for each class. The
// positions of what is true: two passes over the mask.
#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/device_wide.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/index_check.cuh"
#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"

namespace weft::cuda {
namespace {

/// One block, so that no second pass is needed: there are few indices compared to the data.
constexpr int kBoundsBlock = 1024;

__global__ void __launch_bounds__(kBoundsBlock)
    check_bounds_kernel(const std::int64_t* index, const __grid_constant__ Offsets<1> offsets,
                        IndexCheck check) {
  check.report<kBoundsBlock>([&](std::int64_t i) { return index[offsets.at_any(i).at[0]]; });
}

/// The strides of a view, with 0 for dimension `dim`.
Strides without(const Strides& strides, int dim) {
  Strides out = strides;
  out[dim] = 0;
  return out;
}

/// The strides of a 1-D view along dimension `dim` of a shape of `ndim` dimensions; 0 for the
/// others.
Strides along(int ndim, int dim, std::int64_t stride) {
  Strides out = Strides::filled(ndim, 0);
  out[dim] = stride;
  return out;
}

/// y[i] = x[i, but with index[i] in the dimension]; for index_select and gather.
template <class T>
__global__ void __launch_bounds__(kBlock)
    take_kernel(std::int64_t n, const __grid_constant__ Offsets<3> offsets, T* y, const T* x,
                std::int64_t x_length, std::int64_t x_stride, const std::int64_t* index,
                T outside) {
  for_each_of_grid(n, [&](std::int64_t i) {
    const OffsetArray<3> o = offsets.at_any(i);
    const std::int64_t at = index[o.at[2]];
    y[o.at[0]] = in_range(at, x_length) ? x[o.at[1] + at * x_stride] : outside;
  });
}

void take(const char* name, const Stream& stream, const View& x, int dim, const View& index,
          const Strides& index_strides, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  const Strides x_strides = without(x.strides, dim);
  const Offsets<3> offsets(index_space<3>(y.shape, {&y.strides, &x_strides, &index_strides}));
  const double outside = is_floating(y.dtype) ? NAN : 0;
  dispatch_bits(y.dtype, [&]<class T>() {
    launch(name, stream, take_kernel<T>, grid_blocks(n), kBlock, n, offsets, y.as<T>(), x.as<T>(),
           x.shape[dim], x.strides[dim], index.as<std::int64_t>(), bits_of<T>(y.dtype, outside));
  });
}

/// How a write combines the element that is there with the new one.
struct Plus {
  template <class A>
  __device__ static A of(A old, A value) {
    return old + value;
  }
};
struct Replacement {
  template <class A>
  __device__ static A of(A, A value) {
    return value;
  }
};

/// What an element would hold after `value` was stored in it.
template <class T, class Compute>
__device__ Compute as_stored(const Access<T, Compute>&, Compute value) {
  return static_cast<Compute>(static_cast<T>(value));
}
__device__ std::int64_t as_stored(const AnyInt&, std::int64_t value) {
  return value;  // sums are modulo 2^bits
}

/// A fibre: the elements that differ only in `dim`. Different fibres write to different elements.
struct PutArgs {
  void* y;
  void* x;
  DType dtype;
  const std::int64_t* index;
  Offsets<3> fibres;  // where a fibre begins in y, x and index
  std::int64_t fibre_count;
  std::int64_t y_length, y_stride;
  std::int64_t x_length, x_stride, index_stride;
};

/// One thread per fibre writes its elements in order. For many fibres: each element is read once.
template <class Write, class Elements>
__global__ void __launch_bounds__(kBlock)
    put_by_fibre_kernel(const __grid_constant__ PutArgs args) {
  const Elements y(args.y, args.dtype), x(args.x, args.dtype);
  for_each_of_grid(args.fibre_count, [&](std::int64_t f) {
    const OffsetArray<3> o = args.fibres.at_any(f);
    for (std::int64_t j = 0; j < args.x_length; ++j) {
      const std::int64_t position = args.index[o.at[2] + j * args.index_stride];
      if (!in_range(position, args.y_length)) continue;
      const std::int64_t at = o.at[0] + position * args.y_stride;
      y.store(at, Write::of(y.load(at), x.load(o.at[1] + j * args.x_stride)));
    }
  });
}

/// One thread per element of y searches the indices of its fibre for its own. For few fibres, where
/// one thread per fibre would leave the GPU idle; the threads of a fibre share the reads of
/// indices. Long fibres are sorted instead, unless there are thousands. Each sum is rounded as
/// put_by_fibre_kernel does when it stores it.
template <class Write, class Elements>
__global__ void __launch_bounds__(kBlock)
    put_by_output_kernel(const __grid_constant__ PutArgs args) {
  const Elements y(args.y, args.dtype), x(args.x, args.dtype);
  const std::int64_t outputs = args.fibre_count * args.y_length;
  for_each_of_grid(outputs, [&](std::int64_t i) {
    const std::int64_t fibre = i / args.y_length, position = i % args.y_length;
    const OffsetArray<3> o = args.fibres.at_any(fibre);
    const std::int64_t at = o.at[0] + position * args.y_stride;
    auto value = y.load(at);
    for (std::int64_t j = 0; j < args.x_length; ++j) {
      if (args.index[o.at[2] + j * args.index_stride] == position) {
        value = as_stored(y, Write::of(value, x.load(o.at[1] + j * args.x_stride)));
      }
    }
    y.store(at, value);
  });
}

// Number of threads that keep a large GPU busy (some 140 SMs x 2048 threads, in a few waves).
constexpr std::int64_t kBusy = std::int64_t{1} << 20;

/// index_strides: strides of index over x's shape.
PutArgs put_args(const View& x, int dim, const View& index, const Strides& index_strides,
                 const View& y) {
  Shape fibre_shape = x.shape;
  fibre_shape[dim] = 1;
  const IndexSpace<3> fibres =
      index_space<3>(fibre_shape, {&y.strides, &x.strides, &index_strides});
  return {y.data,
          x.data,
          y.dtype,
          index.as<std::int64_t>(),
          Offsets<3>(fibres),
          fibres.numel(),
          y.shape[dim],
          y.strides[dim],
          x.shape[dim],
          x.strides[dim],
          index_strides[dim]};
}

/// Writes x's elements into y's, at the index along dim.
template <class Write, class Elements>
void put(const char* name, const Stream& stream, const View& x, int dim, const View& index,
         const Strides& index_strides, const View& y) {
  if (x.numel() == 0 || y.numel() == 0) return;
  const PutArgs args = put_args(x, dim, index, index_strides, y);
  const std::int64_t outputs = args.fibre_count * args.y_length;
  const bool by_output = args.x_length > 1 && args.fibre_count < kBusy / 64 && outputs <= kBusy;
  if (by_output) {
    launch(name, stream, put_by_output_kernel<Write, Elements>, grid_blocks(outputs), kBlock, args);
  } else {
    launch(name, stream, put_by_fibre_kernel<Write, Elements>, grid_blocks(args.fibre_count),
           kBlock, args);
  }
}

/// An element of y is `one` if its class (the offset in the third view) equals the index. Else all
/// its bits are 0, which is the number 0 in every dtype.
template <class T>
__global__ void __launch_bounds__(kBlock)
    one_hot_kernel(std::int64_t n, const __grid_constant__ Offsets<3> offsets, T* y,
                   const std::int64_t* index, T one) {
  for_each_of_grid(n, [&](std::int64_t i) {
    const OffsetArray<3> o = offsets.at_any(i);
    y[o.at[0]] = index[o.at[1]] == o.at[2] ? one : T{};
  });
}

void index_select(const Stream& stream, const View& x, int dim, const View& index, const View& y) {
  take("index_select", stream, x, dim, index, along(y.shape.size(), dim, index.strides[0]), y);
}

void gather(const Stream& stream, const View& x, int dim, const View& index, const View& y) {
  take("gather", stream, x, dim, index, index.strides, y);
}

using Key = std::uint32_t;

/// Fibres of the index, neighbours, that are sorted together.
struct Group {
  std::int64_t first, count;
};

/// Of each entry of a group the key and its place in the fibre. The key is the fibre's number in
/// the group times y_length plus the position in y, so that keys of a fibre are neighbours; entries
/// out of range have the one after all these.
__global__ void __launch_bounds__(kBlock)
    keys_kernel(const __grid_constant__ PutArgs args, Group group, Key* keys,
                std::int64_t* places) {
  const std::int64_t n = group.count * args.x_length;
  for_each_of_grid(n, [&](std::int64_t i) {
    const std::int64_t fibre = i / args.x_length, place = i % args.x_length;
    const std::int64_t begin = args.fibres.at_any(group.first + fibre).at[2];
    const std::int64_t position = args.index[begin + place * args.index_stride];
    keys[i] = static_cast<Key>(in_range(position, args.y_length) ? fibre * args.y_length + position
                                                                 : group.count * args.y_length);
    places[i] = place;
  });
}

/// Adds to y's element `at` those of the fibre of x that begins at `fibre` whose keys, from the
/// first on, are equal: in the order of their places, rounded as put_by_fibre_kernel does.
template <class Elements>
__device__ void add_equal(const PutArgs& args, const Key* keys, const std::int64_t* places,
                          std::int64_t first, std::int64_t count, std::int64_t at,
                          std::int64_t fibre) {
  const Elements y(args.y, args.dtype), x(args.x, args.dtype);
  std::int64_t end = first + 1;
  while (end < count && keys[end] == keys[first]) ++end;
  auto value = y.load(at);
  for (std::int64_t j = first; j < end; ++j) {
    value = as_stored(y, Plus::of(value, x.load(fibre + places[j] * args.x_stride)));
  }
  y.store(at, value);
}

/// For index_add: the thread of the first of equal keys, in a fibre, adds for all of them.
/// `elements` are x's, in y's order, so neighbouring threads have neighbouring fibres, or keys
/// where dim is innermost; the third offset is the place among the keys.
template <class Elements>
__global__ void __launch_bounds__(kBlock)
    add_sorted_kernel(const __grid_constant__ PutArgs args,
                      const __grid_constant__ Offsets<3> elements, const Key* keys,
                      const std::int64_t* places) {
  const std::int64_t numel = args.fibre_count * args.x_length;
  for_each_of_grid(numel, [&](std::int64_t i) {
    const OffsetArray<3> o = elements.at_any(i);
    const std::int64_t first = o.at[2];
    const Key key = keys[first];
    if (key == args.y_length || (first > 0 && keys[first - 1] == key)) return;
    add_equal<Elements>(args, keys, places, first, args.x_length,
                        o.at[0] + (key - first) * args.y_stride, o.at[1] - first * args.x_stride);
  });
}

/// For scatter_add, likewise, and for scatter, where the thread of the last of equal keys writes:
/// all fibres of the group have keys of their own.
template <class Write, class Elements>
__global__ void __launch_bounds__(kBlock)
    put_sorted_kernel(const __grid_constant__ PutArgs args, Group group, const Key* keys,
                      const std::int64_t* places) {
  constexpr bool adds = std::is_same_v<Write, Plus>;
  const std::int64_t numel = group.count * args.x_length;
  for_each_of_grid(numel, [&](std::int64_t i) {
    const Key key = keys[i];
    const std::int64_t beside = adds ? i - 1 : i + 1;
    const bool is_end = beside < 0 || beside == numel || keys[beside] != key;
    if (!is_end || key == group.count * args.y_length) return;
    const OffsetArray<3> o = args.fibres.at_any(group.first + key / args.y_length);
    const std::int64_t at = o.at[0] + key % args.y_length * args.y_stride;
    if constexpr (adds) {
      add_equal<Elements>(args, keys, places, i, numel, at, o.at[1]);
    } else {
      const Elements y(args.y, args.dtype), x(args.x, args.dtype);
      y.store(at, x.load(o.at[1] + places[i] * args.x_stride));
    }
  });
}

/// A list of index_add, and fibres of scatter and scatter_add, are sorted from this length on. By
/// estimate that takes 10 us, of three launches, up to some 2,000 entries, and 30 us, of some ten,
/// beyond. The other kernels take one entry after the other, from 10 ns (another element's, read
/// from the cache) to 0.5 us (a sum is loaded and stored), so 3 to 130 us for 256.
constexpr std::int64_t kSortedLength = 256;

/// So many fibres, and no more, are sorted: by estimate that takes 0.1 ns for each entry. With a
/// thread for each of 4096 fibres an entry takes 0.5 us / 4096, which is as much.
constexpr std::int64_t kSortedFibres = 4096;

/// Fibres of scatter and scatter_add are sorted together while they have no more entries than this,
/// which bounds the workspace: 36 bytes for each entry, so 151 MB, unless one fibre has more. By
/// the estimate above the entries take 0.4 ms, and ten launches a tenth of that.
constexpr std::int64_t kSortedTogether = std::int64_t{1} << 22;

/// With room for the key of entries out of range.
int key_bits(std::int64_t keys) { return std::bit_width(static_cast<std::uint64_t>(keys)); }

/// The largest key is that of entries out of range.
constexpr std::int64_t kMostKeys = std::numeric_limits<Key>::max();

/// fibres: those with keys of their own.
bool sorts(const View& x, int dim, const View& y, std::int64_t fibres) {
  return x.shape[dim] >= kSortedLength && x.numel() > 0 && y.numel() > 0 &&
         fibres <= kSortedFibres && y.shape[dim] <= kMostKeys;
}

/// How many fibres are sorted together.
std::int64_t fibres_together(std::int64_t fibres, std::int64_t x_length, std::int64_t y_length) {
  const std::int64_t most = std::min(kSortedTogether / x_length, kMostKeys / y_length);
  return std::clamp<std::int64_t>(most, 1, fibres);
}

std::int64_t fibres_of(const View& x, int dim) {
  return x.numel() / std::max<std::int64_t>(x.shape[dim], 1);
}

/// The workspace has parts for so many pairs: each is as aligned as memory of cudaMalloc.
std::int64_t room_for(std::int64_t length) { return (length + 63) / 64 * 64; }

std::size_t sorted_workspace_bytes(const Stream& stream, std::int64_t n) {
  return 2 * static_cast<std::size_t>(room_for(n)) * (sizeof(std::int64_t) + sizeof(Key)) +
         sort_pairs_workspace_bytes(stream, sizeof(Key), n);
}

struct SortedEntries {
  const Key* keys;
  const std::int64_t* places;
};

/// The entries of a group by key, and equal ones by place.
SortedEntries sorted_entries(const char* name, const Stream& stream, const PutArgs& args,
                             const Group& group, void* workspace) {
  const std::int64_t n = group.count * args.x_length, room = room_for(n);
  auto* const places = static_cast<std::int64_t*>(workspace);
  auto* const keys = reinterpret_cast<Key*>(places + 2 * room);
  launch(name, stream, keys_kernel, grid_blocks(n), kBlock, args, group, keys, places);
  sort_pairs(stream, sizeof(Key), key_bits(group.count * args.y_length), n, {keys, places},
             {keys + room, places + room}, keys + 2 * room);
  return {keys + room, places + room};
}

std::size_t index_add_workspace_bytes(const Stream& stream, const View& x, int dim, const View& y) {
  return sorts(x, dim, y, 1) ? sorted_workspace_bytes(stream, x.shape[dim]) : 0;
}

void index_add(const Stream& stream, const View& x, int dim, const View& index, const View& y,
               void* workspace) {
  const char* name = "index_add";
  const Strides index_strides = along(x.shape.size(), dim, index.strides[0]);
  if (!sorts(x, dim, y, 1)) {
    return for_access<true>(name, stream, y.dtype, [&]<class Elements>() {
      put<Plus, Elements>(name, stream, x, dim, index, index_strides, y);
    });
  }
  const PutArgs args = put_args(x, dim, index, index_strides, y);
  const SortedEntries sorted = sorted_entries(name, stream, args, {0, 1}, workspace);
  const Strides counted = along(x.shape.size(), dim, 1);
  const Offsets<3> elements(index_space<3>(x.shape, {&y.strides, &x.strides, &counted}));
  for_access<true>(name, stream, y.dtype, [&]<class Elements>() {
    launch(name, stream, add_sorted_kernel<Elements>, grid_blocks(x.numel()), kBlock, args,
           elements, sorted.keys, sorted.places);
  });
}

std::size_t scatter_workspace_bytes(const Stream& stream, const View& x, int dim, const View& y) {
  const std::int64_t fibres = fibres_of(x, dim), length = x.shape[dim];
  if (!sorts(x, dim, y, fibres)) return 0;
  return sorted_workspace_bytes(stream, fibres_together(fibres, length, y.shape[dim]) * length);
}

/// Writes x's elements into y's, each at its own index.
template <class Write, class Elements>
void put_each(const char* name, const Stream& stream, const View& x, int dim, const View& index,
              const View& y, void* workspace) {
  if (!sorts(x, dim, y, fibres_of(x, dim))) {
    return put<Write, Elements>(name, stream, x, dim, index, index.strides, y);
  }
  const PutArgs args = put_args(x, dim, index, index.strides, y);
  const std::int64_t together = fibres_together(args.fibre_count, args.x_length, args.y_length);
  for (std::int64_t first = 0; first < args.fibre_count; first += together) {
    const Group group{first, std::min(together, args.fibre_count - first)};
    const SortedEntries sorted = sorted_entries(name, stream, args, group, workspace);
    launch(name, stream, put_sorted_kernel<Write, Elements>,
           grid_blocks(group.count * args.x_length), kBlock, args, group, sorted.keys,
           sorted.places);
  }
}

void scatter_add(const Stream& stream, const View& x, int dim, const View& index, const View& y,
                 void* workspace) {
  const char* name = "scatter_add";
  for_access<true>(name, stream, y.dtype, [&]<class Elements>() {
    put_each<Plus, Elements>(name, stream, x, dim, index, y, workspace);
  });
}

void scatter(const Stream& stream, const View& x, int dim, const View& index, const View& y,
             void* workspace) {
  dispatch_bits(y.dtype, [&]<class T>() {
    put_each<Replacement, Raw<T>>("scatter", stream, x, dim, index, y, workspace);
  });
}

/// How many neighbouring elements of a piece each thread of a block looks at.
constexpr int kTruePerThread = kTruePiece / kBlock;

/// How many of the thread's elements of the piece are true.
__device__ int true_of_thread(const bool* mask, std::int64_t n, std::int64_t piece) {
  const std::int64_t begin = piece * kTruePiece + std::int64_t{threadIdx.x} * kTruePerThread;
  int count = 0;
  for (std::int64_t i = begin; i < n && i < begin + kTruePerThread; ++i) count += mask[i];
  return count;
}

__global__ void __launch_bounds__(kBlock)
    count_true_kernel(const bool* mask, std::int64_t n, std::int64_t pieces, std::int64_t* counts) {
  for (std::int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int count = block_sum(true_of_thread(mask, n, piece));
    if (threadIdx.x == 0) counts[piece] = count;
  }
}

__global__ void __launch_bounds__(kBlock)
    find_true_kernel(const bool* mask, std::int64_t n, std::int64_t pieces,
                     const std::int64_t* ends, std::int64_t* y) {
  __shared__ int up_to[kBlock];  // how many are true up to a thread's elements, these included
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int mine = true_of_thread(mask, n, piece);
    up_to[thread] = mine;
    __syncthreads();
    for (int distance = 1; distance < kBlock; distance *= 2) {
      const int before = thread >= distance ? up_to[thread - distance] : 0;
      __syncthreads();
      up_to[thread] += before;
      __syncthreads();
    }
    std::int64_t at = (piece > 0 ? ends[piece - 1] : 0) + up_to[thread] - mine;
    const std::int64_t begin = piece * kTruePiece + std::int64_t{thread} * kTruePerThread;
    for (std::int64_t i = begin; i < n && i < begin + kTruePerThread; ++i) {
      if (mask[i]) y[at++] = i;
    }
    // Each thread writes its own up_to next, which no other has read since the last barrier.
  }
}

void count_true(const Stream& stream, const View& mask, const View& counts) {
  const std::int64_t n = mask.numel(), pieces = true_pieces(n);
  launch("count_true", stream, count_true_kernel, grid_blocks(pieces, 1), kBlock, mask.as<bool>(),
         n, pieces, counts.as<std::int64_t>());
}

void find_true(const Stream& stream, const View& mask, const View& ends, const View& y) {
  const std::int64_t n = mask.numel(), pieces = true_pieces(n);
  launch("find_true", stream, find_true_kernel, grid_blocks(pieces, 1), kBlock, mask.as<bool>(), n,
         pieces, ends.as<std::int64_t>(), y.as<std::int64_t>());
}

void one_hot(const Stream& stream, const View& index, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  const int last = y.shape.size() - 1;
  Strides index_strides = index.strides;
  index_strides.push_back(0);
  const Strides classes = along(y.shape.size(), last, 1);
  const Offsets<3> offsets(index_space<3>(y.shape, {&y.strides, &index_strides, &classes}));
  dispatch_all(y.dtype, [&]<class T>() {
    launch("one_hot", stream, one_hot_kernel<T>, grid_blocks(n), kBlock, n, offsets, y.as<T>(),
           index.as<std::int64_t>(), static_cast<T>(1.0f));
  });
}

void check_bounds(const Stream& stream, const IndexBounds& bounds, const View& index) {
  if (index.numel() == 0) return;
  // In row-major order, which index_space would change: the error names the position by it.
  IndexSpace<1> space;
  for (int d = index.shape.size() - 1; d >= 0; --d) {
    space.add_outer(index.shape[d], {index.strides[d]});
  }
  launch_check(stream, bounds, index.shape, [&](const IndexCheck& check) {
    launch("check_bounds", stream, check_bounds_kernel, 1, kBoundsBlock, index.as<std::int64_t>(),
           Offsets<1>(space), check);
  });
}

}  // namespace

IndexingKernels indexing_kernels() {
  return {.check_bounds = check_bounds,
          .index_select = index_select,
          .index_add_workspace_bytes = index_add_workspace_bytes,
          .index_add = index_add,
          .gather = gather,
          .scatter_workspace_bytes = scatter_workspace_bytes,
          .scatter_add = scatter_add,
          .scatter = scatter,
          .count_true = count_true,
          .find_true = find_true,
          .one_hot = one_hot};
}

}  // namespace weft::cuda
