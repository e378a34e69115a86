// Reductions. After merging dimensions there are two shapes of work: the innermost dimension is
// reduced (runs, one accumulator each) or kept (columns, a row of accumulators). Few outputs over
// much input are cut into chunks whose number depends on the shapes alone, so that the result is
// the same for every team size.
#include <cmath>
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

/// Where the elements of neighbouring outputs begin and lie, in elements.
struct Columns {
  const char* x;
  std::int64_t count, step;
};

/// How an operation on a dtype runs: in accumulators of f64 or i64.
struct Method {
  static constexpr std::int64_t kSums = 1;  // accumulators of an output
  ReduceFns fns;
  ReduceFns join;  // of accumulators
  std::uint64_t identity = 0;
  void (*finish_one)(const void* acc, double count, void* y) = nullptr;
  char* y = nullptr;
  std::int64_t y_bytes = 0;

  const ReduceFns& terms(const Columns&) const { return fns; }
  void finish(const Columns&, std::int64_t i, const std::uint64_t* acc, double count,
              std::int64_t at) const {
    finish_one(acc + i, count, y + at * y_bytes);
  }
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
  m.finish_one = finish<A, Y>;
  return m;
}

template <class T>
Method floating_method(ReduceOp op) {
  const ReduceRows& rows = simd().of(dtype_of<T>).reduce;
  const ReduceRows& join = simd().f64.reduce;
  Method m;
  double neutral = 0;
  m.finish_one = finish<double, T>;
  switch (op) {
    case ReduceOp::mean: m.finish_one = finish<double, T, true>; [[fallthrough]];
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

// --- moments -------------------------------------------------------------------------------------

/// Two sums of each output: those of x - shift, then those of the squares. The shift is the
/// output's first element, or 0: without a mean, and lest an infinite one make the mean NaN.
template <class T>
struct Moments {
  static constexpr std::int64_t kSums = 2;
  static constexpr std::int64_t kMaxColumns = 256;

  const NormRows& rows;
  const ReduceFns& join;
  double* mean;  // null: not wanted, and the shift is 0
  double* squares;
  std::uint64_t identity = 0;

  struct Terms {
    decltype(NormRows::moments) run_of;
    decltype(NormRows::moments_each) columns_of;
    std::array<accumulate_t<T>, kMaxColumns> shift;  // of the columns there are

    Terms(const Moments& m, const Columns& of)
        : run_of(m.mean ? m.rows.moments : m.rows.squares),
          columns_of(m.mean ? m.rows.moments_each : m.rows.squares_each) {
      for (std::int64_t i = 0; i < of.count; ++i) shift[i] = m.shift(of, i);
    }
    void run(std::int64_t n, const void* x, void* acc) const {
      run_of(n, x, static_cast<double>(shift[0]), static_cast<double*>(acc));
    }
    void columns(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
                 void* acc) const {
      const T* x = static_cast<const T*>(data);
      double* const sum = static_cast<double*>(acc);
      // Narrow rows that lie densely: several of them look like one wide row.
      const std::int64_t many = step == n && n <= kMaxColumns / 4 ? kMaxColumns / n : 1;
      if (many > 1 && count >= 2 * many) {
        std::array<accumulate_t<T>, kMaxColumns> wide{};
        for (std::int64_t i = 0; i < many * n; ++i) wide[i] = shift[i % n];
        std::array<double, 2 * kMaxColumns> sums{};
        double* const more = sums.data() + kMaxColumns;
        columns_of(count / many, many * n, many * n, x, wide.data(), sums.data(), more);
        for (std::int64_t i = 0; i < many * n; ++i) {
          sum[i % n] += sums[i];
          sum[n + i % n] += more[i];
        }
        x += count / many * many * n;
        count %= many;
      }
      columns_of(count, step, n, x, shift.data(), sum, sum + n);
    }
  };

  accumulate_t<T> shift(const Columns& of, std::int64_t i) const {
    const auto first = load(reinterpret_cast<const T*>(of.x)[i * of.step]);
    return mean && std::isfinite(first) ? first : accumulate_t<T>(0);
  }
  Terms terms(const Columns& of) const { return Terms(*this, of); }
  void finish(const Columns& of, std::int64_t i, const std::uint64_t* acc, double count,
              std::int64_t at) const {
    double sum, square;
    std::memcpy(&sum, acc + i, sizeof sum);
    std::memcpy(&square, acc + of.count + i, sizeof square);
    squares[at] = square;
    if (!mean) return;
    mean[at] = static_cast<double>(shift(of, i)) + sum / count;
    // Infinite squares of finite numbers, in f64, stay infinite; of infinite ones they are NaN.
    if (std::isinf(square) && std::isfinite(sum)) return;
    squares[at] = std::max(square - sum * (sum / count), 0.0);
  }
};

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
  /// y: any of the outputs; `sums`: accumulators of each.
  Reduction(const View& x, const View& y, std::int64_t sums) : x_(x), sums_(sums) {
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
    return chunks_ == 1 ? 0 : static_cast<std::size_t>(chunks_ * units_ * width_ * sums_) * 8;
  }

  template <class Method>
  void run(const Method& method, void* workspace) const {
    constexpr std::int64_t kSums = Method::kSums;
    if (kept_.count == 0) return;
    if (chunks_ == 1) {
      const std::int64_t work = std::max<std::int64_t>(width_ * reduced_.count, 1);
      parallel_for(units_, std::max<std::int64_t>(kCheapGrain / work, 1),
                   [&](std::int64_t begin, std::int64_t end) {
                     alignas(64) std::uint64_t acc[kSums * kMaxWidth];
                     for (std::int64_t u = begin; u < end; ++u) {
                       const Unit unit = locate(u);
                       std::fill_n(acc, kSums * unit.width, method.identity);
                       accumulate(method, unit, 0, reduced_.count, acc);
                       finish(method, unit, acc);
                     }
                   });
      return;
    }
    auto* partial = static_cast<std::uint64_t*>(workspace);
    const std::int64_t step = width_ * kSums, row = units_ * step;
    parallel_for(chunks_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::fill(partial + begin * row, partial + end * row, method.identity);
      for (std::int64_t c = begin; c < end; ++c) {
        for (std::int64_t u = 0; u < units_; ++u) {
          accumulate(method, locate(u), reduced_.count * c / chunks_,
                     reduced_.count * (c + 1) / chunks_, partial + c * row + u * step);
        }
      }
    });
    alignas(64) std::uint64_t acc[kSums * kMaxWidth];
    for (std::int64_t u = 0; u < units_; ++u) {
      const Unit unit = locate(u);
      std::fill_n(acc, kSums * unit.width, method.identity);
      method.join.columns(chunks_, row, kSums * unit.width, partial + u * step, acc);
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

  Columns columns_of(const Unit& unit) const {
    const auto bytes = static_cast<std::int64_t>(size_of(x_.dtype));
    return {x_.as<char>() + unit.x * bytes, unit.width, kept_.n > 0 ? kept_.x[0] : 0};
  }

  /// Adds the reduced elements [begin, end) of a unit to its accumulators.
  template <class Method>
  void accumulate(const Method& method, const Unit& unit, std::int64_t begin, std::int64_t end,
                  std::uint64_t* acc) const {
    const auto bytes = static_cast<std::int64_t>(size_of(x_.dtype));
    const Columns of = columns_of(unit);
    const auto& terms = method.terms(of);
    const std::int64_t length = reduced_.n > 0 ? reduced_.size[0] : 1;
    const std::int64_t step = reduced_.n > 0 ? reduced_.x[0] : 0;
    const auto add = [&](std::int64_t offset, std::int64_t n) {
      if (runs_)
        add_run(terms, of.x + offset * bytes, n, step, bytes, acc);
      else
        add_columns(terms, of.x + offset * bytes, n, step, unit.width, bytes, acc);
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

  template <class Terms>
  void add_run(const Terms& terms, const char* x, std::int64_t n, std::int64_t step,
               std::int64_t bytes, std::uint64_t* acc) const {
    if (step == 1) return terms.run(n, x, acc);
    constexpr std::int64_t kBlock = 512;
    alignas(64) char buffer[kBlock * 8];
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t here = std::min(kBlock, n - i);
      gather(bytes, 1, here, x + i * step * bytes, step, 0, buffer);
      terms.run(here, buffer, acc);
    }
  }

  template <class Terms>
  void add_columns(const Terms& terms, const char* x, std::int64_t rows, std::int64_t row_step,
                   std::int64_t width, std::int64_t bytes, std::uint64_t* acc) const {
    if (width == 1 || kept_.x[0] == 1) return terms.columns(rows, row_step, width, x, acc);
    alignas(64) char buffer[kMaxWidth * 8];
    for (std::int64_t r = 0; r < rows; ++r) {
      gather(bytes, 1, width, x + r * row_step * bytes, kept_.x[0], 0, buffer);
      terms.columns(1, width, width, buffer, acc);
    }
  }

  template <class Method>
  void finish(const Method& method, const Unit& unit, const std::uint64_t* acc) const {
    const std::int64_t step = kept_.n > 0 ? kept_.y[0] : 0;
    const Columns of = columns_of(unit);
    for (std::int64_t i = 0; i < unit.width; ++i) {
      method.finish(of, i, acc, static_cast<double>(reduced_.count), unit.y + i * step);
    }
  }

  const View& x_;
  const std::int64_t sums_;
  Group kept_, reduced_;
  bool runs_ = false;
  std::int64_t width_ = 1;   // columns of a unit
  std::int64_t strips_ = 1;  // units along the innermost kept dimension
  std::int64_t units_ = 0;
  std::int64_t chunks_ = 1;
};

std::size_t workspace_bytes(ReduceOp, const View& x, const View& y) {
  return Reduction(x, y, 1).workspace_bytes();
}

void reduce(const Stream& stream, ReduceOp op, const View& x, const View& y, void* workspace) {
  if (op == ReduceOp::mean && !is_floating(x.dtype)) {
    throw_unsupported("mean", stream.device, x.dtype);
  }
  Method method = method_of(op, x.dtype);
  method.y = y.as<char>();
  method.y_bytes = static_cast<std::int64_t>(size_of(y.dtype));
  Reduction(x, y, Method::kSums).run(method, workspace);
}

std::size_t moments_workspace_bytes(const View& x, const View& squares) {
  return Reduction(x, squares, Moments<float>::kSums).workspace_bytes();
}

void moments(const Stream& stream, const View& x, const View& mean, const View& squares,
             void* workspace) {
  if (!is_floating(x.dtype)) throw_unsupported("moments", stream.device, x.dtype);
  dispatch_floating(x.dtype, "moments", [&]<class T>() {
    const Moments<T> method{simd().of(x.dtype).norm, simd().f64.reduce.sum, mean.as<double>(),
                            squares.as<double>()};
    Reduction(x, squares, Moments<T>::kSums).run(method, workspace);
  });
}

void scaled_deviation(const Stream& stream, const View& x, const View& center, const View& factor,
                      const View& y) {
  if (!is_floating(x.dtype)) throw_unsupported("scaled_deviation", stream.device, x.dtype);
  double zero = 0;
  const View zeros{&zero, DType::f64, y.shape, Strides::filled(y.shape.size(), 0)};
  run_loop<4>({&y, &x, center ? &center : &zeros, &factor}, kCheapGrain,
              simd().of(x.dtype).reduce.scaled_deviation, nullptr);
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
          .moments_workspace_bytes = cpu::moments_workspace_bytes,
          .moments = cpu::moments,
          .scaled_deviation = cpu::scaled_deviation,
          .arg_reduce = cpu::arg_reduce};
}

}  // namespace weft
