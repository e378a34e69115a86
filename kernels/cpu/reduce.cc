// Reductions. After merging dimensions there are two shapes of work: the innermost dimension is
// reduced (runs, one accumulator each) or kept (columns, a row of accumulators). Few outputs over
// much input are cut into chunks whose number depends on the shapes alone, so that the result is
// the same for every team size.
#include <cstring>
#include <limits>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/families.h"

namespace weft::cpu {
namespace {

// --- kernels of what has no vector code ----------------------------------------------------------

template <ReduceOp op, class A>
constexpr A identity() {
  switch (op) {
    case ReduceOp::prod:
    case ReduceOp::all: return A(1);
    case ReduceOp::max:
      return std::numeric_limits<A>::has_infinity ? -std::numeric_limits<A>::infinity()
                                                  : std::numeric_limits<A>::lowest();
    case ReduceOp::min:
      return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity()
                                                  : std::numeric_limits<A>::max();
    default: return A(0);
  }
}

template <ReduceOp op, class T, class A>
void combine(A& acc, T x) {
  const auto v = load(x);
  // Integers wrap around, which + and * of signed ones must not.
  if constexpr (op == ReduceOp::sum && std::is_integral_v<A>)
    __builtin_add_overflow(acc, static_cast<A>(v), &acc);
  else if constexpr (op == ReduceOp::prod && std::is_integral_v<A>)
    __builtin_mul_overflow(acc, static_cast<A>(v), &acc);
  else if constexpr (op == ReduceOp::sum)
    acc += static_cast<A>(v);
  else if constexpr (op == ReduceOp::prod)
    acc *= static_cast<A>(v);
  else if constexpr (op == ReduceOp::max)
    acc = static_cast<A>(v) > acc ? static_cast<A>(v) : acc;
  else if constexpr (op == ReduceOp::min)
    acc = static_cast<A>(v) < acc ? static_cast<A>(v) : acc;
  else if constexpr (op == ReduceOp::all)
    acc &= static_cast<A>(v != 0);
  else
    acc |= static_cast<A>(v != 0);
}

template <ReduceOp op, class T, class A>
void plain_run(std::int64_t n, const void* data, void* accumulator) {
  const T* x = static_cast<const T*>(data);
  A acc = *static_cast<A*>(accumulator);
  for (std::int64_t i = 0; i < n; ++i) combine<op>(acc, x[i]);
  *static_cast<A*>(accumulator) = acc;
}

template <ReduceOp op, class T, class A>
void plain_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* data,
                   void* accumulators) {
  const T* x = static_cast<const T*>(data);
  A* acc = static_cast<A*>(accumulators);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) combine<op>(acc[c], x[r * row_step + c]);
  }
}

/// How an operation on a dtype runs: in accumulators of f64 or i64.
struct Method {
  ReduceFns fns;
  ReduceFns join;  // of accumulators
  std::uint64_t identity = 0;
  void (*finish)(const void* acc, double count, void* y) = nullptr;
};

template <class A, class Y, bool mean = false>
void finish(const void* accumulator, double count, void* y) {
  A acc;
  std::memcpy(&acc, accumulator, sizeof acc);
  if constexpr (mean) acc /= count;
  *static_cast<Y*>(y) = store<Y>(acc);
}

template <ReduceOp op, class T, class A, class Y>
Method plain_method() {
  const A neutral = identity<op, A>();
  Method m;
  m.fns = {plain_run<op, T, A>, plain_columns<op, T, A>};
  m.join = {plain_run<op, A, A>, plain_columns<op, A, A>};
  std::memcpy(&m.identity, &neutral, sizeof neutral);
  m.finish = finish<A, Y>;
  return m;
}

template <class T>
Method floating_method(ReduceOp op) {
  const ReduceRows& rows = simd().of(dtype_of<T>).reduce;
  const ReduceRows& join = simd().f64.reduce;
  Method m;
  double neutral = 0;
  m.finish = finish<double, T>;
  switch (op) {
    case ReduceOp::mean: m.finish = finish<double, T, true>; [[fallthrough]];
    case ReduceOp::sum: m.fns = rows.sum, m.join = join.sum; break;
    case ReduceOp::max:
      m.fns = rows.max, m.join = join.max;
      neutral = identity<ReduceOp::max, double>();
      break;
    case ReduceOp::min:
      m.fns = rows.min, m.join = join.min;
      neutral = identity<ReduceOp::min, double>();
      break;
    default: return plain_method<ReduceOp::prod, T, double, T>();
  }
  std::memcpy(&m.identity, &neutral, sizeof neutral);
  return m;
}

template <class T>
Method integer_method(ReduceOp op) {
  using I = std::int64_t;
  switch (op) {
    case ReduceOp::max: return plain_method<ReduceOp::max, T, I, T>();
    case ReduceOp::min: return plain_method<ReduceOp::min, T, I, T>();
    case ReduceOp::prod: return plain_method<ReduceOp::prod, T, I, I>();
    default: return plain_method<ReduceOp::sum, T, I, I>();
  }
}

Method method_of(ReduceOp op, DType dtype) {
  return dispatch_all(dtype, [&]<class T>() {
    if (op == ReduceOp::all) return plain_method<ReduceOp::all, T, std::int64_t, bool>();
    if (op == ReduceOp::any) return plain_method<ReduceOp::any, T, std::int64_t, bool>();
    if constexpr (std::is_integral_v<T>)
      return integer_method<T>(op);
    else
      return floating_method<T>(op);
  });
}

// --- shapes --------------------------------------------------------------------------------------

/// Merged dimensions, innermost (in x) first.
struct Group {
  int n = 0;
  std::int64_t count = 1;
  std::array<std::int64_t, kMaxDims> size{}, x{}, y{};

  void add(std::int64_t length, std::int64_t x_stride, std::int64_t y_stride) {
    count *= length;
    int at = n++;
    for (; at > 0 && x_stride < x[at - 1]; --at) {
      size[at] = size[at - 1], x[at] = x[at - 1], y[at] = y[at - 1];
    }
    size[at] = length, x[at] = x_stride, y[at] = y_stride;
  }
  void merge() {
    int last = 0;
    for (int d = 1; d < n; ++d) {
      if (x[d] == x[last] * size[last] && y[d] == y[last] * size[last]) {
        size[last] *= size[d];
      } else {
        ++last;
        size[last] = size[d], x[last] = x[d], y[last] = y[d];
      }
    }
    if (n > 0) n = last + 1;
  }
};

class Reduction {
 public:
  Reduction(const View& x, const View& y) : x_(x), y_(y) {
    for (int d = x.shape.size() - 1; d >= 0; --d) {
      if (x.shape[d] == 1) continue;
      if (y.shape[d] == 1)
        reduced_.add(x.shape[d], x.strides[d], 0);
      else
        kept_.add(x.shape[d], x.strides[d], y.strides[d]);
    }
    reduced_.merge();
    kept_.merge();
    runs_ = reduced_.n > 0 && (kept_.n == 0 || (reduced_.x[0] != 0 && reduced_.x[0] < kept_.x[0]));
    width_ = runs_ || kept_.n == 0 ? 1 : std::min(kept_.size[0], kMaxWidth);
    if (kept_.count == 0) return;
    strips_ = runs_ || kept_.n == 0 ? kept_.count : (kept_.size[0] + width_ - 1) / width_;
    units_ = runs_ || kept_.n == 0 ? kept_.count : kept_.count / kept_.size[0] * strips_;
    const std::int64_t total = kept_.count * reduced_.count;
    if (units_ < kManyUnits && total > kCheapGrain) {
      chunks_ = std::min({total / (kCheapGrain / 2), kMaxChunks, reduced_.count});
    }
  }

  std::size_t workspace_bytes() const {
    return chunks_ == 1 ? 0 : static_cast<std::size_t>(chunks_ * units_ * width_) * 8;
  }

  void run(const Method& method, void* workspace) const {
    if (kept_.count == 0) return;
    if (chunks_ == 1) {
      const std::int64_t work = std::max<std::int64_t>(width_ * reduced_.count, 1);
      parallel_for(units_, std::max<std::int64_t>(kCheapGrain / work, 1),
                   [&](std::int64_t begin, std::int64_t end) {
                     alignas(64) std::uint64_t acc[kMaxWidth];
                     for (std::int64_t u = begin; u < end; ++u) {
                       const Unit unit = locate(u);
                       std::fill_n(acc, unit.width, method.identity);
                       accumulate(method, unit, 0, reduced_.count, acc);
                       finish(method, unit, acc);
                     }
                   });
      return;
    }
    auto* partial = static_cast<std::uint64_t*>(workspace);
    const std::int64_t row = units_ * width_;
    parallel_for(chunks_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::fill(partial + begin * row, partial + end * row, method.identity);
      for (std::int64_t c = begin; c < end; ++c) {
        for (std::int64_t u = 0; u < units_; ++u) {
          accumulate(method, locate(u), reduced_.count * c / chunks_,
                     reduced_.count * (c + 1) / chunks_, partial + c * row + u * width_);
        }
      }
    });
    alignas(64) std::uint64_t acc[kMaxWidth];
    for (std::int64_t u = 0; u < units_; ++u) {
      const Unit unit = locate(u);
      std::fill_n(acc, unit.width, method.identity);
      method.join.columns(chunks_, row, unit.width, partial + u * width_, acc);
      finish(method, unit, acc);
    }
  }

 private:
  static constexpr std::int64_t kMaxWidth = 256;  // accumulators of a strip of columns
  static constexpr std::int64_t kManyUnits = 32;  // enough to share among a team without chunks
  static constexpr std::int64_t kMaxChunks = 64;

  /// One output, or one strip of neighbouring outputs; offsets in elements.
  struct Unit {
    std::int64_t x = 0, y = 0, width = 1;
  };

  Unit locate(std::int64_t u) const {
    Unit unit;
    int d = 0;
    if (!runs_ && kept_.n > 0) {
      const std::int64_t c = u % strips_ * width_;
      u /= strips_;
      unit = {c * kept_.x[0], c * kept_.y[0], std::min(width_, kept_.size[0] - c)};
      d = 1;
    }
    for (; d < kept_.n; ++d) {
      const bool last = d == kept_.n - 1;  // most often the only one: no division
      const std::int64_t at = last ? u : u % kept_.size[d];
      if (!last) u /= kept_.size[d];
      unit.x += at * kept_.x[d];
      unit.y += at * kept_.y[d];
    }
    return unit;
  }

  /// Adds the reduced elements [begin, end) of a unit to its accumulators.
  void accumulate(const Method& method, const Unit& unit, std::int64_t begin, std::int64_t end,
                  std::uint64_t* acc) const {
    const auto bytes = static_cast<std::int64_t>(size_of(x_.dtype));
    const char* base = x_.as<char>() + unit.x * bytes;
    const std::int64_t length = reduced_.n > 0 ? reduced_.size[0] : 1;
    const std::int64_t step = reduced_.n > 0 ? reduced_.x[0] : 0;
    const auto add = [&](std::int64_t offset, std::int64_t n) {
      if (runs_)
        add_run(method, base + offset * bytes, n, step, bytes, acc);
      else
        add_columns(method, base + offset * bytes, n, step, unit.width, bytes, acc);
    };
    if (reduced_.n < 2) return add(begin * step, end - begin);
    while (begin < end) {
      const std::int64_t at = begin % length;
      const std::int64_t n = std::min(length - at, end - begin);
      std::int64_t offset = at * step;
      std::int64_t rest = begin / length;
      for (int d = 1; d < reduced_.n; ++d) {
        offset += rest % reduced_.size[d] * reduced_.x[d];
        rest /= reduced_.size[d];
      }
      add(offset, n);
      begin += n;
    }
  }

  void add_run(const Method& method, const char* x, std::int64_t n, std::int64_t step,
               std::int64_t bytes, std::uint64_t* acc) const {
    if (step == 1) return method.fns.run(n, x, acc);
    constexpr std::int64_t kBlock = 512;
    alignas(64) char buffer[kBlock * 8];
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t here = std::min(kBlock, n - i);
      gather(bytes, 1, here, x + i * step * bytes, step, 0, buffer);
      method.fns.run(here, buffer, acc);
    }
  }

  void add_columns(const Method& method, const char* x, std::int64_t rows, std::int64_t row_step,
                   std::int64_t width, std::int64_t bytes, std::uint64_t* acc) const {
    if (width == 1 || kept_.x[0] == 1) return method.fns.columns(rows, row_step, width, x, acc);
    alignas(64) char buffer[kMaxWidth * 8];
    for (std::int64_t r = 0; r < rows; ++r) {
      gather(bytes, 1, width, x + r * row_step * bytes, kept_.x[0], 0, buffer);
      method.fns.columns(1, width, width, buffer, acc);
    }
  }

  void finish(const Method& method, const Unit& unit, const std::uint64_t* acc) const {
    const auto bytes = static_cast<std::int64_t>(size_of(y_.dtype));
    const std::int64_t step = kept_.n > 0 ? kept_.y[0] : 0;
    char* y = y_.as<char>() + unit.y * bytes;
    for (std::int64_t i = 0; i < unit.width; ++i) {
      method.finish(acc + i, static_cast<double>(reduced_.count), y + i * step * bytes);
    }
  }

  const View& x_;
  const View& y_;
  Group kept_, reduced_;
  bool runs_ = false;
  std::int64_t width_ = 1;   // columns of a unit
  std::int64_t strips_ = 1;  // units along the innermost kept dimension
  std::int64_t units_ = 0;
  std::int64_t chunks_ = 1;
};

std::size_t workspace_bytes(ReduceOp, const View& x, const View& y) {
  return Reduction(x, y).workspace_bytes();
}

void reduce(const Stream& stream, ReduceOp op, const View& x, const View& y, void* workspace) {
  if (op == ReduceOp::mean && !is_floating(x.dtype)) {
    throw_unsupported("mean", stream.device, x.dtype);
  }
  Reduction(x, y).run(method_of(op, x.dtype), workspace);
}

// --- argmax, argmin ------------------------------------------------------------------------------

template <class T, bool largest>
std::int64_t extreme_position(std::int64_t n, const T* x, std::int64_t step) {
  auto best = load(x[0]);
  std::int64_t position = 0;
  for (std::int64_t i = 0; i < n && best == best; ++i) {  // the first NaN ends the search
    const auto v = load(x[i * step]);
    if ((largest ? v > best : v < best) || v != v) {
      best = v;
      position = i;
    }
  }
  return position;
}

void arg_reduce(const Stream&, ArgReduceOp op, const View& x, int dim, const View& y) {
  Group kept;
  for (int d = x.shape.size() - 1; d >= 0; --d) {
    if (d != dim && x.shape[d] != 1) kept.add(x.shape[d], x.strides[d], y.strides[d]);
  }
  kept.merge();
  // A scalar has no dimension; its only position is 0.
  const std::int64_t n = x.shape.empty() ? 1 : x.shape[dim];
  const std::int64_t step = x.shape.empty() ? 1 : x.strides[dim];
  if (kept.count == 0 || n == 0) return;
  dispatch_all(x.dtype, [&]<class T>() {
    parallel_for(kept.count, std::max<std::int64_t>(kCheapGrain / n, 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t o = begin; o < end; ++o) {
                     std::int64_t from = 0, to = 0, rest = o;
                     for (int d = 0; d < kept.n; ++d) {
                       const std::int64_t at = rest % kept.size[d];
                       rest /= kept.size[d];
                       from += at * kept.x[d];
                       to += at * kept.y[d];
                     }
                     y.as<std::int64_t>()[to] =
                         op == ArgReduceOp::argmax
                             ? extreme_position<T, true>(n, x.as<T>() + from, step)
                             : extreme_position<T, false>(n, x.as<T>() + from, step);
                   }
                 });
  });
}

}  // namespace
}  // namespace weft::cpu

namespace weft {

ReduceKernels cpu_reduce_kernels() {
  return {.workspace_bytes = cpu::workspace_bytes,
          .reduce = cpu::reduce,
          .arg_reduce = cpu::arg_reduce};
}

}  // namespace weft
