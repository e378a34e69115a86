// Reductions. After merging dimensions there are two shapes of work: the innermost dimension is
// reduced (runs, one accumulator each) or kept (columns, a row of accumulators). Few outputs of
// much input are cut into chunks whose number depends only on the shapes, so that the result is the
// same for every team size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/norm.h"
#include "weft/kernels/cpu/loops/reduce.h"

namespace weft::cpu {
namespace {

// --- kernels of what has no vector code ----------------------------------------------------------

template <ReduceOp op, class T>
void combine(std::int64_t& acc, T x) {
  const auto v = load(x);
  if constexpr (op == ReduceOp::prod)
    __builtin_mul_overflow(acc, v, &acc);  // wraps around
  else if constexpr (op == ReduceOp::max)
    acc = v > acc ? v : acc;
  else if constexpr (op == ReduceOp::min)
    acc = v < acc ? v : acc;
  else if constexpr (op == ReduceOp::all)
    acc &= v != 0;
  else
    acc |= v != 0;
}

template <ReduceOp op, class T>
void plain_runs(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
                void* accumulators) {
  const T* x = static_cast<const T*>(data);
  auto* acc = static_cast<std::int64_t*>(accumulators);
  for (std::int64_t r = 0; r < count; ++r, x += step) {
    std::int64_t a = acc[r];
    for (std::int64_t i = 0; i < n; ++i) combine<op>(a, x[i]);
    acc[r] = a;
  }
}

template <ReduceOp op, class T>
void plain_columns(std::int64_t rows, std::int64_t row_step, std::int64_t cols, const void* data,
                   void* accumulators) {
  const T* x = static_cast<const T*>(data);
  auto* acc = static_cast<std::int64_t*>(accumulators);
  for (std::int64_t r = 0; r < rows; ++r, x += row_step) {
    for (std::int64_t c = 0; c < cols; ++c) combine<op>(acc[c], x[c]);
  }
}

/// Neighbouring outputs: where their inputs begin, their number, and the step between them.
struct Outputs {
  const char* x;
  std::int64_t count, step;
};

/// How an operation runs on a dtype, with accumulators A: double or std::int64_t.
template <class A>
struct Method {
  using Accumulator = A;
  static constexpr std::int64_t kSums = 1;  // accumulators per output
  ReduceFns fns;
  ReduceColumns join = nullptr;  // joins accumulators
  A identity = 0;
  /// y[i * step] = the result of acc[i], for i < n; `count` elements are behind each.
  void (*finish_all)(std::int64_t n, const A* acc, double count, char* y,
                     std::int64_t step) = nullptr;
  char* y = nullptr;
  std::int64_t y_bytes = 0;

  const ReduceFns& terms(const Outputs&) const { return fns; }
  void finish(const Outputs& of, const A* acc, double count, std::int64_t at,
              std::int64_t step) const {
    finish_all(of.count, acc, count, y + at * y_bytes, step);
  }
};

template <class A, class Y, bool mean = false>
void finish_all(std::int64_t n, const A* acc, double count, char* out, std::int64_t step) {
  Y* y = reinterpret_cast<Y*>(out);
  for (std::int64_t i = 0; i < n; ++i) {
    // Not by ?:, which would make a double of an integer sum.
    if constexpr (mean) {
      y[i * step] = store<Y>(acc[i] / count);
    } else {
      y[i * step] = store<Y>(acc[i]);
    }
  }
}

template <class T>
Method<double> floating_method(ReduceOp op) {
  const ReduceLoops& loops = reduce_loops().of(dtype_of<T>);
  const ReduceLoops& join = reduce_loops().f64;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto of = [](const ReduceFns& fns, const ReduceFns& join, double identity, auto* finish) {
    return Method<double>{fns, join.columns, identity, finish};
  };
  constexpr auto* finish = finish_all<double, T>;
  switch (op) {
    case ReduceOp::mean: return of(loops.sum, join.sum, 0, finish_all<double, T, true>);
    case ReduceOp::sum: return of(loops.sum, join.sum, 0, finish);
    case ReduceOp::max: return of(loops.max, join.max, -kInfinity, finish);
    case ReduceOp::min: return of(loops.min, join.min, kInfinity, finish);
    default: return of(loops.prod, join.prod, 1, finish);
  }
}

template <ReduceOp op, class T, class Y>
Method<std::int64_t> plain_method(std::int64_t identity) {
  return {{plain_runs<op, T>, plain_columns<op, T>},
          plain_columns<op, std::int64_t>,
          identity,
          finish_all<std::int64_t, Y>};
}

template <class T>
Method<std::int64_t> integer_method(ReduceOp op) {
  using I = std::int64_t;
  const IntegerSums& sums = integer_sums();
  switch (op) {
    case ReduceOp::max: return plain_method<ReduceOp::max, T, T>(std::numeric_limits<I>::lowest());
    case ReduceOp::min: return plain_method<ReduceOp::min, T, T>(std::numeric_limits<I>::max());
    case ReduceOp::prod: return plain_method<ReduceOp::prod, T, I>(1);
    default: return {sums.of(dtype_of<T>), sums.i64.columns, 0, finish_all<I, I>};
  }
}

/// Calls f(method), with the operation's accumulators for this dtype.
template <class F>
void with_method(ReduceOp op, DType dtype, const F& f) {
  dispatch_all(dtype, [&]<class T>() {
    if (op == ReduceOp::all) return f(plain_method<ReduceOp::all, T, bool>(1));
    if (op == ReduceOp::any) return f(plain_method<ReduceOp::any, T, bool>(0));
    if constexpr (std::is_integral_v<T>)
      f(integer_method<T>(op));
    else
      f(floating_method<T>(op));
  });
}

// --- moments -------------------------------------------------------------------------------------

/// Two sums per output: of x - shift, and of its squares. The shift is the output's first element.
/// It is 0 if no mean is wanted, or if that element is infinite, which would make the mean NaN.
template <class T>
struct Moments {
  using Accumulator = double;
  static constexpr std::int64_t kSums = 2;
  static constexpr std::int64_t kMaxColumns = 256;

  const NormLoops& rows;
  ReduceColumns join;
  double* mean;  // null: not wanted, and the shift is 0
  double* squares;
  double identity = 0;

  struct Terms {
    decltype(NormLoops::moments) run_of;
    decltype(NormLoops::moments_each) columns_of;
    std::array<accumulate_t<T>, kMaxColumns> shift;  // one per column in use

    Terms(const Moments& m, const Outputs& of)
        : run_of(m.mean ? m.rows.moments : m.rows.squares),
          columns_of(m.mean ? m.rows.moments_each : m.rows.squares_each) {
      for (std::int64_t i = 0; i < of.count; ++i) shift[i] = m.shift(of, i);
    }
    void runs(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
              void* acc) const {
      double* const sum = static_cast<double*>(acc);
      for (std::int64_t r = 0; r < count; ++r) {
        double both[] = {sum[r], sum[count + r]};
        run_of(n, static_cast<const T*>(data) + r * step, static_cast<double>(shift[r]), both);
        sum[r] = both[0];
        sum[count + r] = both[1];
      }
    }
    void columns(std::int64_t count, std::int64_t step, std::int64_t n, const void* data,
                 void* acc) const {
      const T* x = static_cast<const T*>(data);
      double* const sum = static_cast<double*>(acc);
      // Several narrow rows without gaps are treated as one wide row.
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

  accumulate_t<T> shift(const Outputs& of, std::int64_t i) const {
    const auto first = load(reinterpret_cast<const T*>(of.x)[i * of.step]);
    return mean && std::isfinite(first) ? first : accumulate_t<T>(0);
  }
  Terms terms(const Outputs& of) const { return Terms(*this, of); }
  void finish(const Outputs& of, const double* acc, double count, std::int64_t at,
              std::int64_t step) const {
    for (std::int64_t i = 0; i < of.count; ++i, at += step) {
      const double sum = acc[i], square = acc[of.count + i];
      squares[at] = square;
      if (!mean) continue;
      mean[at] = static_cast<double>(shift(of, i)) + sum / count;
      // Infinite squares of finite numbers stay infinite in f64; those of infinite ones give NaN.
      if (std::isinf(square) && std::isfinite(sum)) continue;
      squares[at] = std::max(square - sum * (sum / count), 0.0);
    }
  }
};

// --- shapes --------------------------------------------------------------------------------------

/// Merged dimensions, the innermost one (in x) first.
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
  /// y: any of the outputs; `sums`: accumulators per output.
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
    if (kept_.count == 0) return;
    units_ = 1;
    const std::int64_t total = kept_.count * reduced_.count;
    if (kept_.n > 0) {
      width_ = std::min(kept_.size[0], kMaxWidth);
      // Short runs of neighbouring outputs are read in the order of the memory.
      constexpr std::int64_t kShort = 1024;
      const bool interleaved =
          reduced_.n > 1 && reduced_.size[0] < kShort && kept_.x[0] < reduced_.x[1];
      if (runs_ && reduced_.x[0] != 1) {  // gathered one at a time
        width_ = 1;
      } else if (runs_ && !interleaved) {  // as many as leave work for a team
        const std::int64_t most = kCheapGrain / 4 / std::max<std::int64_t>(reduced_.count, 1);
        width_ = std::clamp(std::min(most, kept_.count / kManyUnits), std::int64_t{1}, width_);
      }
      strips_ = (kept_.size[0] + width_ - 1) / width_;
      units_ = kept_.count / kept_.size[0] * strips_;
    }
    if (units_ < kManyUnits && total > kCheapGrain) {
      chunks_ = std::min({total / (kCheapGrain / 2), kMaxTasks / units_, reduced_.count});
    }
  }

  std::size_t workspace_bytes() const {
    return chunks_ == 1 ? 0 : static_cast<std::size_t>(chunks_ * units_ * width_ * sums_) * 8;
  }

  template <class Method>
  void run(const Method& method, void* workspace) const {
    using Accumulator = typename Method::Accumulator;
    constexpr std::int64_t kSums = Method::kSums;
    if (kept_.count == 0) return;
    if (chunks_ == 1) {
      const std::int64_t work = std::max<std::int64_t>(width_ * reduced_.count, 1);
      parallel_for(units_, std::max<std::int64_t>(kCheapGrain / work, 1),
                   [&](std::int64_t begin, std::int64_t end) {
                     alignas(64) Accumulator acc[kSums * kMaxWidth];
                     for (std::int64_t u = begin; u < end; ++u) {
                       const Unit unit = locate(u);
                       std::fill_n(acc, kSums * unit.width, method.identity);
                       accumulate(method, unit, 0, reduced_.count, acc);
                       finish(method, unit, acc);
                     }
                   });
      return;
    }
    auto* partial = static_cast<Accumulator*>(workspace);
    const std::int64_t step = width_ * kSums, row = units_ * step;
    parallel_for(chunks_ * units_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t c = task / units_, u = task % units_;
        Accumulator* const acc = partial + c * row + u * step;
        std::fill_n(acc, step, method.identity);
        accumulate(method, locate(u), reduced_.count * c / chunks_,
                   reduced_.count * (c + 1) / chunks_, acc);
      }
    });
    alignas(64) Accumulator acc[kSums * kMaxWidth];
    for (std::int64_t u = 0; u < units_; ++u) {
      const Unit unit = locate(u);
      std::fill_n(acc, kSums * unit.width, method.identity);
      method.join(chunks_, row, kSums * unit.width, partial + u * step, acc);
      finish(method, unit, acc);
    }
  }

 private:
  static constexpr std::int64_t kMaxWidth = 256;  // accumulators in a strip of columns
  static constexpr std::int64_t kManyUnits = 32;  // enough for a team without chunks
  static constexpr std::int64_t kMaxTasks = 64;   // (chunk, unit): each has sums in the workspace

  /// One output, or one strip of neighbouring outputs; offsets in elements.
  struct Unit {
    std::int64_t x = 0, y = 0, width = 1;
  };

  Unit locate(std::int64_t u) const {
    Unit unit;
    int d = 0;
    if (kept_.n > 0) {
      const std::int64_t c = (kept_.n == 1 ? u : u % strips_) * width_;
      u /= strips_;
      unit = {c * kept_.x[0], c * kept_.y[0], std::min(width_, kept_.size[0] - c)};
      d = 1;
    }
    for (; d < kept_.n; ++d) {
      const bool last = d == kept_.n - 1;  // usually the only one: no division
      const std::int64_t at = last ? u : u % kept_.size[d];
      if (!last) u /= kept_.size[d];
      unit.x += at * kept_.x[d];
      unit.y += at * kept_.y[d];
    }
    return unit;
  }

  Outputs outputs_of(const Unit& unit) const {
    const auto bytes = static_cast<std::int64_t>(size_of(x_.dtype));
    return {x_.as<char>() + unit.x * bytes, unit.width, kept_.n > 0 ? kept_.x[0] : 0};
  }

  /// Combines the reduced elements [begin, end) of a unit with its accumulators.
  template <class Method>
  void accumulate(const Method& method, const Unit& unit, std::int64_t begin, std::int64_t end,
                  typename Method::Accumulator* acc) const {
    const auto bytes = static_cast<std::int64_t>(size_of(x_.dtype));
    const Outputs of = outputs_of(unit);
    const auto& terms = method.terms(of);
    const std::int64_t length = reduced_.n > 0 ? reduced_.size[0] : 1;
    const std::int64_t step = reduced_.n > 0 ? reduced_.x[0] : 0;
    const auto add = [&](std::int64_t offset, std::int64_t n) {
      if (runs_)
        add_runs(terms, of.x + offset * bytes, n, step, unit.width, bytes, acc);
      else
        add_columns(terms, of.x + offset * bytes, n, step, unit.width, bytes, acc);
    };
    if (reduced_.n < 2) return add(begin * step, end - begin);
    if (begin == end) return;  // a size may be 0
    std::array<std::int64_t, kMaxDims> at{};
    for (std::int64_t d = 0, rest = begin; d < reduced_.n; ++d) {
      at[d] = rest % reduced_.size[d];
      rest /= reduced_.size[d];
    }
    while (begin < end) {
      const std::int64_t n = std::min(length - at[0], end - begin);
      std::int64_t offset = 0;
      for (int d = 0; d < reduced_.n; ++d) offset += at[d] * reduced_.x[d];
      add(offset, n);
      begin += n;
      at[0] = 0;
      for (int d = 1; d < reduced_.n && ++at[d] == reduced_.size[d]; ++d) at[d] = 0;
    }
  }

  template <class Terms>
  void add_runs(const Terms& terms, const char* x, std::int64_t n, std::int64_t step,
                std::int64_t width, std::int64_t bytes, void* acc) const {
    if (step == 1) return terms.runs(width, kept_.x[0], n, x, acc);
    constexpr std::int64_t kBlock = 512;
    alignas(64) char buffer[kBlock * 8];
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t here = std::min(kBlock, n - i);
      gather(bytes, 1, here, x + i * step * bytes, step, 0, buffer);
      terms.runs(1, 0, here, buffer, acc);
    }
  }

  template <class Terms>
  void add_columns(const Terms& terms, const char* x, std::int64_t rows, std::int64_t row_step,
                   std::int64_t width, std::int64_t bytes, void* acc) const {
    if (width == 1 || kept_.x[0] == 1) return terms.columns(rows, row_step, width, x, acc);
    alignas(64) char buffer[kMaxWidth * 8];
    for (std::int64_t r = 0; r < rows; ++r) {
      gather(bytes, 1, width, x + r * row_step * bytes, kept_.x[0], 0, buffer);
      terms.columns(1, width, width, buffer, acc);
    }
  }

  template <class Method>
  void finish(const Method& method, const Unit& unit,
              const typename Method::Accumulator* acc) const {
    method.finish(outputs_of(unit), acc, static_cast<double>(reduced_.count), unit.y,
                  kept_.n > 0 ? kept_.y[0] : 0);
  }

  const View& x_;
  const std::int64_t sums_;
  Group kept_, reduced_;
  bool runs_ = false;
  std::int64_t width_ = 1;   // outputs of a unit
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
  with_method(op, x.dtype, [&](auto method) {
    method.y = y.as<char>();
    method.y_bytes = static_cast<std::int64_t>(size_of(y.dtype));
    Reduction(x, y, method.kSums).run(method, workspace);
  });
}

std::size_t moments_workspace_bytes(const View& x, const View& squares) {
  return Reduction(x, squares, Moments<float>::kSums).workspace_bytes();
}

void moments(const Stream& stream, const View& x, const View& mean, const View& squares,
             void* workspace) {
  if (!is_floating(x.dtype)) throw_unsupported("moments", stream.device, x.dtype);
  dispatch_floating(x.dtype, "moments", [&]<class T>() {
    const Moments<T> method{norm_loops().of(x.dtype), reduce_loops().f64.sum.columns,
                            mean.as<double>(), squares.as<double>()};
    Reduction(x, squares, Moments<T>::kSums).run(method, workspace);
  });
}

void scaled_deviation(const Stream& stream, const View& x, const View& center, const View& factor,
                      const View& y) {
  if (!is_floating(x.dtype)) throw_unsupported("scaled_deviation", stream.device, x.dtype);
  double zero = 0;
  const View zeros{&zero, DType::f64, y.shape, Strides::filled(y.shape.size(), 0)};
  run_loop<4>({&y, &x, center ? &center : &zeros, &factor}, kCheapGrain,
              reduce_loops().of(x.dtype).scaled_deviation, nullptr);
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

template <class T>
void arg_reduce_as(bool largest, const View& x, int dim, const View& y) {
  Group kept;
  for (int d = x.shape.size() - 1; d >= 0; --d) {
    if (d != dim && x.shape[d] != 1) kept.add(x.shape[d], x.strides[d], y.strides[d]);
  }
  kept.merge();
  // A scalar has no dimension; its only position is 0.
  const std::int64_t n = x.shape.empty() ? 1 : x.shape[dim];
  const std::int64_t step = x.shape.empty() ? 1 : x.strides[dim];
  if (kept.count == 0 || n == 0) return;
  const std::int64_t x_step = kept.x[0], y_step = kept.y[0];
  const auto find = [&](const T* from, std::int64_t count, std::int64_t* positions) {
    if constexpr (!std::is_integral_v<T>) {
      const ReduceLoops& loops = reduce_loops().of(dtype_of<T>);
      const ExtremeFns& fns = largest ? loops.argmax : loops.argmin;
      if (x_step == 1) return fns.columns(n, step, count, from, positions);
      if (step == 1) {
        for (std::int64_t i = 0; i < count; ++i) positions[i] = fns.run(n, from + i * x_step);
        return;
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const T* const line = from + i * x_step;
      positions[i] = largest ? extreme_position<T, true>(n, line, step)
                             : extreme_position<T, false>(n, line, step);
    }
  };
  // Neighbouring outputs are found together.
  constexpr std::int64_t kMaxWidth = 256;
  const std::int64_t row = kept.n > 0 ? kept.size[0] : 1;
  const std::int64_t some = x_step == 1 ? kMaxWidth : kCheapGrain / 8 / n;
  const std::int64_t width = std::clamp(some, std::int64_t{1}, std::min(row, kMaxWidth));
  const std::int64_t strips = (row + width - 1) / width;
  parallel_for(kept.count / row * strips, std::max<std::int64_t>(kCheapGrain / (n * width), 1),
               [&](std::int64_t begin, std::int64_t end) {
                 std::int64_t positions[kMaxWidth];
                 for (std::int64_t u = begin; u < end; ++u) {
                   const std::int64_t first = u % strips * width;
                   const std::int64_t count = std::min(width, row - first);
                   std::int64_t from = first * x_step, to = first * y_step, rest = u / strips;
                   for (int d = 1; d < kept.n; ++d) {
                     const std::int64_t at = rest % kept.size[d];
                     rest /= kept.size[d];
                     from += at * kept.x[d];
                     to += at * kept.y[d];
                   }
                   find(x.as<T>() + from, count, positions);
                   for (std::int64_t i = 0; i < count; ++i) {
                     y.as<std::int64_t>()[to + i * y_step] = positions[i];
                   }
                 }
               });
}

std::size_t arg_workspace_bytes(const View&, const View&) { return 0; }

void arg_reduce(const Stream&, ArgReduceOp op, const View& x, int dim, const View& y, void*) {
  dispatch_all(x.dtype, [&]<class T>() { arg_reduce_as<T>(op == ArgReduceOp::argmax, x, dim, y); });
}

}  // namespace

ReduceKernels reduce_kernels() {
  return {.workspace_bytes = workspace_bytes,
          .reduce = reduce,
          .moments_workspace_bytes = moments_workspace_bytes,
          .moments = moments,
          .scaled_deviation = scaled_deviation,
          .arg_reduce = arg_reduce,
          .arg_workspace_bytes = arg_workspace_bytes};
}

}  // namespace weft::cpu
