// Operations without arithmetic: moving, converting, comparing.
#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/kernels/cpu/copy.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/copy.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::cpu {
namespace {

// --- conversion ----------------------------------------------------------------------------------

template <class From, class To>
void convert_row(std::int64_t n, char* const* data, const void*) {
  To* y = reinterpret_cast<To*>(data[0]);
  const From* x = reinterpret_cast<const From*>(data[1]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<To>(load(x[i]));
}

RowFn conversion(DType from, DType to) {
  if (from == DType::u8 && to == DType::f32) return copy_loops().u8_to_f32;
  if (from == DType::f32 && to == DType::bf16) return copy_loops().f32_to_bf16;
  if (from == DType::bf16 && to == DType::f32) return copy_loops().bf16_to_f32;
  return dispatch_all(from, [&]<class From>() {
    return dispatch_all(to, []<class To>() -> RowFn { return convert_row<From, To>; });
  });
}

// --- copies within one dtype ---------------------------------------------------------------------

/// y[j * y_step + i] = x[i * x_step + j], in blocks that stay in the L1 cache.
template <class U>
void transpose_words(std::int64_t rows, std::int64_t cols, const U* x, std::int64_t x_step, U* y,
                     std::int64_t y_step) {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t j0 = 0; j0 < cols; j0 += kBlock) {
    const std::int64_t j1 = std::min(j0 + kBlock, cols);
    for (std::int64_t i0 = 0; i0 < rows; i0 += kBlock) {
      const std::int64_t i1 = std::min(i0 + kBlock, rows);
      for (std::int64_t j = j0; j < j1; ++j) {
        for (std::int64_t i = i0; i < i1; ++i) y[j * y_step + i] = x[i * x_step + j];
      }
    }
  }
}

/// The dimension that is contiguous in x, if dimension 0 is contiguous in y. 0 if there is none, or
/// if one of them is too short for blocks to help: copies of rows load up to kShort elements of x
/// for one of y as fast.
int transposed_dimension(const Loop<2>& loop) {
  constexpr std::int64_t kShort = 4;
  if (loop.stride(0, 0) != 1 || loop.stride(1, 0) <= kShort || loop.size(0) < kShort) return 0;
  for (int d = 1; d < loop.ndim(); ++d) {
    if (loop.stride(1, d) == 1 && loop.size(d) >= kShort) return d;
  }
  return 0;
}

/// A layout change such as [N,C,H,W] to [N,H,W,C]: transposes dimensions 0 and `d` in tiles, and
/// loops over the others.
template <class U>
void copy_transposed(const Loop<2>& loop, int d) {
  constexpr std::int64_t kTile = 64;
  const std::int64_t rows = loop.size(0), cols = loop.size(d);
  const std::int64_t x_step = loop.stride(1, 0), y_step = loop.stride(0, d);
  const std::int64_t strips = (cols + kTile - 1) / kTile;
  const std::int64_t outer = loop.numel() / (rows * cols);
  const std::int64_t strip_elements = std::min(kTile, cols) * rows;
  const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / strip_elements, 1);
  parallel_for(outer * strips, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t j = unit % strips * kTile;
      std::int64_t x_offset = j, y_offset = j * y_step;
      std::int64_t rest = unit / strips;
      for (int e = 1; e < loop.ndim(); ++e) {
        if (e == d) continue;
        const std::int64_t at = rest % loop.size(e);
        rest /= loop.size(e);
        x_offset += at * loop.stride(1, e);
        y_offset += at * loop.stride(0, e);
      }
      const U* x = reinterpret_cast<const U*>(loop.data(1)) + x_offset;
      U* y = reinterpret_cast<U*>(loop.data(0)) + y_offset;
      const std::int64_t width = std::min(kTile, cols - j);
      for (std::int64_t i = 0; i < rows; i += kTile) {
        const std::int64_t height = std::min(kTile, rows - i);
        if constexpr (sizeof(U) == 4) {
          copy_loops().transpose4(height, width, x + i * x_step, x_step, y + i, y_step);
        } else {
          transpose_words(height, width, x + i * x_step, x_step, y + i, y_step);
        }
      }
    }
  });
}

/// Calls f with an unsigned integer of so many bytes, which is enough to move elements.
template <class F>
decltype(auto) dispatch_size(std::int64_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    default: return f.template operator()<std::uint64_t>();
  }
}

template <class U>
void copy_words(const Loop<2>& loop) {
  if (const int d = transposed_dimension(loop)) {
    if (loop.numel() > 0) copy_transposed<U>(loop, d);
    return;
  }
  const CopyTile copy = copy_loops().moves(sizeof(U)).tile;
  parallel_for(loop.numel(), kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
    loop.walk(begin, end, [&](const Tile<2>& t) {
      copy(t.rows, t.n, t.data[1], t.step[1], t.row_step[1], t.data[0], t.step[0], t.row_step[0]);
    });
  });
}

/// Copies operand 1 to operand 0 of the same dtype.
void copy_elements(const Loop<2>& loop) {
  dispatch_size(loop.bytes(0), [&]<class U>() { copy_words<U>(loop); });
}

// --- several copies ------------------------------------------------------------------------------

/// Copies whose rows may lie side by side in one result, as those of the parts of cat(x, 1). One
/// after the other they would each pass through the whole result; here a few rows of all of them
/// are copied at a time.
class RowCopies {
 public:
  /// Whether a copy is one of several rows, which are short.
  static bool takes(const Loop<2>& loop) {
    return loop.numel() > 0 && loop.ndim() == 2 && loop.stride(0, 0) == 1 &&
           loop.stride(1, 0) == 1 && loop.size(0) * loop.bytes(0) <= kLongRow;
  }

  /// Adds a copy, before which those with other rows run.
  void add(const Loop<2>& loop) {
    const Rows rows{loop.size(1), loop.stride(0, 1), loop.bytes(0)};
    if (count_ == kMost || rows != rows_) run();
    rows_ = rows;
    pieces_[count_++] = {loop.size(0), loop.data(1), loop.stride(1, 1), loop.data(0)};
    width_ += loop.size(0);
  }

  /// Runs the copies, and has none afterwards.
  void run() {
    if (count_ == 0) return;
    const auto [count, y_step, bytes] = rows_;
    const CopyTile copy = copy_loops().moves(static_cast<std::size_t>(bytes)).tile;
    const std::int64_t block = std::max<std::int64_t>(kBlockBytes / (width_ * bytes), 1);
    const std::int64_t grain = std::max<std::int64_t>(kCheapGrain / width_, 1);
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; r += block) {
        for (int i = 0; i < count_; ++i) {
          const Piece& p = pieces_[i];
          copy(std::min(block, end - r), p.n, p.x + r * p.x_step * bytes, 1, p.x_step,
               p.y + r * y_step * bytes, 1, y_step);
        }
      }
    });
    count_ = 0;
    width_ = 0;
  }

 private:
  static constexpr int kMost = 32;
  /// Longer rows are as fast alone, and the team shares them better.
  static constexpr std::int64_t kLongRow = 16 << 10;
  /// Rows of the result that stay in the L1 cache.
  static constexpr std::int64_t kBlockBytes = 16 << 10;

  struct Rows {
    std::int64_t count, y_step, bytes;  // bytes of an element
    bool operator==(const Rows&) const = default;
  };
  struct Piece {
    std::int64_t n;
    const char* x;
    std::int64_t x_step;
    char* y;
  };

  Rows rows_{};
  std::array<Piece, kMost> pieces_;
  int count_ = 0;
  std::int64_t width_ = 0;  // of all pieces
};

// --- compare -------------------------------------------------------------------------------------

template <class T, CompareOp op>
void compare_row(std::int64_t n, char* const* data, const void*) {
  auto* y = reinterpret_cast<std::uint8_t*>(data[0]);
  const T* u = reinterpret_cast<const T*>(data[1]);
  const T* v = reinterpret_cast<const T*>(data[2]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const auto a = load(u[i]), b = load(v[i]);
    bool holds = false;
#define X(value, name, expression) \
  if constexpr (op == CompareOp::value) holds = expression;
    WEFT_COMPARE_OPS(X)
#undef X
    y[i] = holds;
  }
}

template <class T>
RowFn compare_fn(CompareOp op) {
  switch (op) {
#define X(value, ...) \
  case CompareOp::value: return compare_row<T, CompareOp::value>;
    WEFT_COMPARE_OPS(X)
#undef X
  }
  WEFT_THROW(Internal, "compare", "unknown operation ", static_cast<int>(op));
}

}  // namespace

void copy(const Stream&, const View& x, const View& y) {
  if (x.dtype == y.dtype) {
    copy_elements(Loop<2>({&y, &x}));
  } else {
    run_loop<2>({&y, &x}, kCheapGrain, conversion(x.dtype, y.dtype), nullptr);
  }
}

void copy_all(const Stream& stream, std::span<const CopyPair> pairs) {
  RowCopies rows;
  for (const CopyPair& pair : pairs) {
    if (pair.x.dtype != pair.y.dtype) {
      copy(stream, pair.x, pair.y);
      continue;
    }
    const Loop<2> loop({&pair.y, &pair.x});
    RowCopies::takes(loop) ? rows.add(loop) : copy_elements(loop);
  }
  rows.run();
}

void fill(const Stream&, double value, const View& y) {
  std::uint64_t bits = 0;
  dispatch_all(y.dtype, [&]<class T>() {
    const T v = store<T>(value);
    std::memcpy(&bits, &v, sizeof v);
  });
  run_loop<1>({&y}, kCheapGrain, copy_loops().moves(size_of(y.dtype)).fill, &bits);
}

void where(const Stream&, const View& condition, const View& a, const View& b, const View& y) {
  const RowFn f = copy_loops().moves(size_of(y.dtype)).where;
  run_loop<4>({&y, &condition, &a, &b}, kCheapGrain, f, nullptr);
}

void compare(const Stream&, CompareOp op, const View& a, const View& b, const View& y) {
  const RowFn f = dispatch_all(a.dtype, [&]<class T>() { return compare_fn<T>(op); });
  run_loop<3>({&y, &a, &b}, kCheapGrain, f, nullptr);
}

void arange(const Stream&, double start, double step, const View& y) {
  const std::int64_t stride = y.strides[0];
  dispatch_all(y.dtype, [&]<class T>() {
    T* out = y.as<T>();
    parallel_for(y.shape[0], kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        out[i * stride] = store<T>(start + static_cast<double>(i) * step);
      }
    });
  });
}

}  // namespace weft::cpu
