// Comparisons, selection, copies and fills: operations that move or convert rather than compute.
// Each makes one pass over its operands; a copy between layouts goes through tiles in shared
// memory. Conversions between f32 and bf16 that are called for together share a launch.
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "weft/kernels/cuda/elementwise.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/slot_table.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::cuda {
namespace {

#define X(value, name, expression)               \
  struct Compare_##value {                       \
    template <class T>                           \
    __device__ bool operator()(T a, T b) const { \
      return expression;                         \
    }                                            \
  };
WEFT_COMPARE_OPS(X)
#undef X

// f32 is the common type, so bf16, f64 and the integers have no kernels of their own.
template <class F>
void compare_as(const char* name, const Stream& stream, const View& a, const View& b,
                const View& y) {
  if (a.dtype == DType::f32) {
    map<Raw<bool>, Typed<float>, Typed<float>>(name, stream, F{}, y, a, b);
  } else if (is_floating(a.dtype)) {
    map<Raw<bool>, AnyFloat, AnyFloat>(name, stream, F{}, y, a, b);
  } else {
    map<Raw<bool>, AnyInt, AnyInt>(name, stream, F{}, y, a, b);
  }
}

struct Select {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

struct Identity {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

/// A value between two types. Integers stay integers: not all i64 fit in a double, and rounding
/// twice, i64 -> f64 -> f32, does not always give the nearest f32.
struct Number {
  bool floating;
  double real;
  std::int64_t integer;
};

/// Elements of any type, read as a Number and written from one.
struct AnyNumber {
  static constexpr int bytes = 0;
  void* data;
  DType dtype;

  __device__ AnyNumber(void* p, DType type) : data(p), dtype(type) {}

  __device__ Number load(std::int64_t i) const {
    if (is_floating(dtype)) return {true, AnyFloat(data, dtype).load(i), 0};
    return {false, 0, AnyInt(data, dtype).load(i)};
  }
  __device__ void store(std::int64_t i, Number v) const {
    if (!is_floating(dtype)) {
      v.floating ? AnyInt(data, dtype).store(i, v.real) : AnyInt(data, dtype).store(i, v.integer);
    } else if (v.floating) {
      AnyFloat(data, dtype).store(i, v.real);
    } else if (dtype == DType::f64) {
      static_cast<double*>(data)[i] = static_cast<double>(v.integer);
    } else {
      AnyFloat(data, dtype).store(i, static_cast<float>(v.integer));
    }
  }
};

/// Matrices of which y has the rows dense in memory and x the columns.
struct TransposeArgs {
  const void* x;
  void* y;
  std::int64_t rows, columns;
  std::int64_t y_row, x_column;  // strides
  std::uint32_t tiles;
  FastDivider row_tiles, column_tiles;  // of one matrix
  Offsets<2> matrices;                  // of y and x
};

/// A tile keeps what a conversion computes in.
template <class To, class From>
using InTile = std::conditional_t<std::is_same_v<To, From>, To, float>;
// Elements on a side of a tile.
template <class T>
constexpr int kSide = sizeof(T) < 4 ? 64 : 32;

template <class To, class From>
__global__ void __launch_bounds__(kBlock)
    transpose_kernel(const __grid_constant__ TransposeArgs args) {
  using T = InTile<To, From>;
  constexpr int kEdge = kSide<T>, kStep = kBlock / kEdge;
  // The lines have a word more, so that the elements of a column are in different banks.
  __shared__ T tile[kEdge][kEdge + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
  const int lane = static_cast<int>(threadIdx.x) % kEdge;
  const int first = static_cast<int>(threadIdx.x) / kEdge;
  for (std::uint32_t t = blockIdx.x; t < args.tiles; t += gridDim.x) {
    const std::uint32_t above = args.column_tiles.div(t), matrix = args.row_tiles.div(above);
    const std::int64_t row = std::int64_t{above - matrix * args.row_tiles.divisor} * kEdge;
    const std::int64_t column = std::int64_t{t - above * args.column_tiles.divisor} * kEdge;
    const OffsetArray<2> at = args.matrices.at(matrix);
    const auto* const x = static_cast<const From*>(args.x) + at.at[1] + row + lane;
    auto* const y = static_cast<To*>(args.y) + at.at[0] + column + lane;
    T held[kEdge / kStep];  // so that all loads are under way before the first arrives
#pragma unroll
    for (int k = 0; k < kEdge / kStep; ++k) {
      const std::int64_t c = column + first + k * kStep;
      const bool inside = row + lane < args.rows && c < args.columns;
      held[k] = inside ? static_cast<T>(x[c * args.x_column]) : T();
    }
#pragma unroll
    for (int k = 0; k < kEdge / kStep; ++k) tile[first + k * kStep][lane] = held[k];
    __syncthreads();
    for (std::int64_t r = row + first; r < min(row + kEdge, args.rows); r += kStep) {
      if (column + lane < args.columns) y[r * args.y_row] = static_cast<To>(tile[lane][r - row]);
    }
    __syncthreads();
  }
}

/// Copies matrices that lie transposed in memory by tiles; false if x and y are no such matrices.
template <class To, class From>
bool transpose(const Stream& stream, const View& x, const View& y) {
  const IndexSpace<2> whole = index_space<2>(y.shape, {&y.strides, &x.strides});
  int rows = 1;  // the dimension along which x is dense
  while (rows < whole.ndim && whole.stride[rows][1] != 1) ++rows;
  constexpr std::int64_t kLeast = kSide<InTile<To, From>> / 2;  // else a tile is mostly empty
  if (whole.numel() == 0 || rows >= whole.ndim ||
      std::min(whole.size[0], whole.size[rows]) < kLeast || whole.stride[0][0] != 1 ||
      std::abs(whole.stride[0][1]) <= 1) {
    return false;
  }
  for_each_part(whole, [&](const IndexSpace<2>& part, const IndexSpace<2>::Row& base) {
    IndexSpace<2> others;
    for (int d = 1; d < part.ndim; ++d) {
      if (d != rows) others.add_outer(part.size[d], part.stride[d]);
    }
    const auto tiles = [](std::int64_t n) {
      return static_cast<std::uint32_t>(ceil_div(n, kSide<InTile<To, From>>));
    };
    const std::uint32_t row_tiles = tiles(part.size[rows]), column_tiles = tiles(part.size[0]);
    const TransposeArgs args{x.as<From>() + base[1],
                             y.as<To>() + base[0],
                             part.size[rows],
                             part.size[0],
                             part.stride[rows][0],
                             part.stride[0][1],
                             static_cast<std::uint32_t>(others.numel()) * row_tiles * column_tiles,
                             FastDivider(row_tiles),
                             FastDivider(column_tiles),
                             Offsets<2>(others)};
    launch("copy", stream, transpose_kernel<To, From>, grid_blocks(args.tiles, 1), kBlock, args);
  });
  return true;
}

template <template <class> class Access, class To, class From>
void copy_as(const Stream& stream, const View& x, const View& y) {
  if (!transpose<To, From>(stream, x, y)) {
    map<Access<To>, Access<From>>("copy", stream, Identity{}, y, x);
  }
}

/// A conversion of n elements that lie in the same order.
struct Conversion {
  void* x = nullptr;
  void* y = nullptr;
  std::int64_t n = 0;
};

template <class To, class From>
__global__ void __launch_bounds__(kBlock)
    convert_all_kernel(const __grid_constant__ TableOf<Conversion> table) {
  constexpr int W = kPackBytes / 4;  // f32 is the wider of the two
  const std::int64_t chunks = table.chunks();
  for (std::int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const auto [part, begin, end] = table.chunk(c);
    const Typed<From> x(part.x, dtype_of<From>);
    const Typed<To> y(part.y, dtype_of<To>);
    const bool aligned = reinterpret_cast<std::uintptr_t>(part.x) % (W * sizeof(From)) == 0 &&
                         reinterpret_cast<std::uintptr_t>(part.y) % (W * sizeof(To)) == 0;
    // A chunk begins at a multiple of W.
    const std::int64_t packed = aligned ? begin + (end - begin) / W * W : begin;
    for (std::int64_t i = begin + threadIdx.x * W; i < packed; i += kBlock * W) {
      apply_packs<W>(Identity{}, y, i / W, x.template load_pack<W>(i / W, false));
    }
    for (std::int64_t i = packed + threadIdx.x; i < end; i += kBlock) y.store(i, x.load(i));
  }
}

/// The conversions of To from From among the pairs of copy_all: launched together, as many as a
/// table has room for.
template <class To, class From>
class Conversions {
 public:
  explicit Conversions(const Stream& stream) : stream_(stream) {}

  /// Takes the pair, if it is such a conversion and both have their elements in one order.
  bool take(const CopyPair& pair) {
    if (pair.x.dtype != dtype_of<From> || pair.y.dtype != dtype_of<To>) return false;
    const auto space = index_space<2>(pair.y.shape, {&pair.y.strides, &pair.x.strides});
    if (!space.dense(0) || !space.dense(1)) return false;
    table_.add({pair.x.data, pair.y.data, space.numel()});
    if (table_.full()) run();
    return true;
  }
  void run() {
    if (table_.count == 0) return;
    launch("copy", stream_, convert_all_kernel<To, From>, grid_blocks(table_.chunks(), 1), kBlock,
           table_);
    table_.count = 0;
  }

 private:
  Stream stream_;
  TableOf<Conversion> table_;
};

__global__ void __launch_bounds__(kBlock)
    arange_kernel(double start, double step, std::int64_t n, std::int64_t stride, void* data,
                  DType dtype) {
  const AnyNumber y(data, dtype);
  for_each_of_grid(n, [&](std::int64_t i) {
    y.store(i * stride, {true, start + static_cast<double>(i) * step, 0});
  });
}

}  // namespace

void compare(const Stream& stream, CompareOp op, const View& a, const View& b, const View& y) {
  switch (op) {
#define X(value, ...) \
  case CompareOp::value: return compare_as<Compare_##value>(#value, stream, a, b, y);
    WEFT_COMPARE_OPS(X)
#undef X
  }
}

void where(const Stream& stream, const View& condition, const View& a, const View& b,
           const View& y) {
  dispatch_bits(y.dtype, [&]<class T>() {
    map<Raw<T>, Raw<bool>, Raw<T>, Raw<T>>("where", stream, Select{}, y, condition, a, b);
  });
}

void copy(const Stream& stream, const View& x, const View& y) {
  if (x.dtype == y.dtype) {
    dispatch_bits(y.dtype, [&]<class T>() { copy_as<Raw, T, T>(stream, x, y); });
  } else if (x.dtype == DType::f32 && y.dtype == DType::bf16) {
    copy_as<Typed, bf16, float>(stream, x, y);
  } else if (x.dtype == DType::bf16 && y.dtype == DType::f32) {
    copy_as<Typed, float, bf16>(stream, x, y);
  } else {
    map<AnyNumber, AnyNumber>("copy", stream, Identity{}, y, x);
  }
}

void copy_all(const Stream& stream, std::span<const CopyPair> pairs) {
  if (pairs.size() == 1) return copy(stream, pairs[0].x, pairs[0].y);
  Conversions<bf16, float> narrower(stream);
  Conversions<float, bf16> wider(stream);
  for (const CopyPair& pair : pairs) {
    if (!narrower.take(pair) && !wider.take(pair)) copy(stream, pair.x, pair.y);
  }
  narrower.run();
  wider.run();
}

void fill(const Stream& stream, double value, const View& y) {
  dispatch_bits(y.dtype, [&]<class Bits>() {
    map<Raw<Bits>>("fill", stream, Constant<Bits>{bits_of<Bits>(y.dtype, value)}, y);
  });
}

void arange(const Stream& stream, double start, double step, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  launch("arange", stream, arange_kernel, grid_blocks(n), kBlock, start, step, n, y.strides[0],
         y.data, y.dtype);
}

}  // namespace weft::cuda
