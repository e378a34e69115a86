// Reductions against plain loops in long double: a plain f64 sum would be less exact than the
// kernels'.
#include <algorithm>
#include <cmath>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::prod, ReduceOp::max,
                             ReduceOp::min, ReduceOp::all,  ReduceOp::any};
const char* const kNames[] = {"sum", "mean", "prod", "max", "min", "all", "any"};

struct Case {
  Shape x;
  std::vector<int> dims;  // reduced
};

// Full, inner, outer, middle and mixed; short and long; widths around those of vectors, of strips
// and of the special code for narrow rows; and enough elements for several chunks.
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {{}, {}},
      {{1}, {0}},
      {{0}, {0}},
      {{3, 0}, {1}},
      {{0, 3}, {1}},
      {{5}, {0}},
      {{64}, {0}},
      {{1000}, {0}},
      {{70001}, {0}},
      {{10, 10}, {1}},
      {{10, 10}, {0}},
      {{33, 100}, {1}},
      {{33, 100}, {0}},
      {{4, 3000}, {0}},
      {{700, 3}, {0}},
      {{700, 8}, {0}},
      {{37, 17}, {0}},
      {{9000, 8}, {0}},
      {{6000, 10}, {1}},
      {{3, 20000}, {1}},
      {{20, 3, 40}, {1}},
      {{20, 3, 40}, {0, 2}},
      {{2, 3, 4, 5}, {1, 3}},
      {{2, 3, 4, 5}, {0, 2}},
      {{2, 3, 4, 5}, {0, 1, 2, 3}},
      {{2, 3, 4, 5}, {}},
      {{1, 7, 1}, {0, 2}},
      {{8, 5, 30, 40}, {0, 2, 3}},  // a convolution's bias gradient
      {{16, 8, 26, 26}, {0, 2, 3}},
      {{300, 300}, {0}},
      {{40, 7, 300}, {1}},
      {{8400, 17}, {0}},       // on CUDA, teams of blocks
      {{700, 49}, {1}},        // a mean over small images
      {{9, 300, 49}, {0, 2}},  // short runs of neighbouring outputs
      {{3, 5, 60, 70}, {1, 3}},
  };
  return all;
}

class Reduce : public TargetTest {
 protected:
  struct Result {
    std::vector<long double> values;
    std::vector<double> magnitude;  // sum of |x|: rounding errors are relative to it
    double count = 1;
  };

  static Result reference(ReduceOp op, const Shape& x, const Shape& y,
                          const std::vector<double>& values) {
    Strides to = contiguous_strides(y);
    Result r;
    r.count = 1;
    for (int d = 0; d < x.size(); ++d) {
      if (y[d] == 1 && x[d] != 1) {
        to[d] = 0;
        r.count *= static_cast<double>(x[d]);
      }
    }
    const double start[] = {0, 0, 1, -kInf, kInf, 1, 0};
    const auto outputs = static_cast<std::size_t>(numel(y));
    r.values.assign(outputs, start[static_cast<int>(op)]);
    r.magnitude.assign(outputs, 0);
    const auto offsets = Buffer::element_offsets(x, to);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double v = values[i];
      long double& acc = r.values[static_cast<std::size_t>(offsets[i])];
      r.magnitude[static_cast<std::size_t>(offsets[i])] += std::abs(v);
      switch (op) {
        case ReduceOp::sum:
        case ReduceOp::mean: acc += v; break;
        case ReduceOp::prod: acc *= v; break;
        case ReduceOp::max: acc = v > acc || v != v ? v : acc; break;
        case ReduceOp::min: acc = v < acc || v != v ? v : acc; break;
        case ReduceOp::all: acc = acc != 0 && v != 0; break;
        case ReduceOp::any: acc = acc != 0 || v != 0; break;
      }
    }
    if (op == ReduceOp::mean) {
      for (long double& v : r.values) v /= r.count;
      for (double& v : r.magnitude) v /= r.count;
    }
    return r;
  }

  static DType output_dtype(ReduceOp op, DType x) {
    if (op == ReduceOp::all || op == ReduceOp::any) return DType::boolean;
    const bool counts = op == ReduceOp::sum || op == ReduceOp::prod;
    return counts && !is_floating(x) ? DType::i64 : x;
  }

  std::vector<double> run(ReduceOp op, const Buffer& x, Buffer& y) {
    const std::size_t bytes = kernels().reduce.workspace_bytes(op, x.view(), y.view());
    const DeviceBytes workspace(device(), bytes);
    kernels().reduce.reduce(stream, op, x.view(), y.view(), workspace.data());
    return y.values();
  }

  void check(ReduceOp op, DType dtype, const Shape& shape, const Strides& strides,
             const std::vector<int>& dims) {
    Shape out = shape;
    for (const int d : dims) out[d] = 1;
    const bool extreme = op == ReduceOp::max || op == ReduceOp::min;
    if (extreme && (numel(shape) == 0) != (numel(out) == 0)) return;  // never reaches a kernel
    // Products stay near 1; all and any get mostly ones and mostly zeros.
    std::vector<double> v = op == ReduceOp::prod && is_floating(dtype)
                                ? values_for(dtype, numel(shape), 0.97, 1.03, 11)
                                : values_for(dtype, numel(shape), -3, 3, 11);
    if (op == ReduceOp::prod && !is_floating(dtype)) {
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = i % 5 == 0 ? v[i] : 1;
    }
    if (op == ReduceOp::all || op == ReduceOp::any) {
      for (std::size_t i = 0; i < v.size(); ++i) {
        const bool odd = i % 23 == 7;
        v[i] = (op == ReduceOp::all) != odd;
      }
    }
    Buffer x(device(), dtype, shape, strides, rounded(dtype, v));
    Buffer y(device(), output_dtype(op, dtype), out);
    const std::vector<double> values = x.values();
    const std::vector<double> got = run(op, x, y);
    const Result want = reference(op, shape, out, values);
    ASSERT_EQ(got.size(), want.values.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto expected = static_cast<double>(want.values[i]);
      double bound = 0;
      if (is_floating(dtype) && !extreme && y.dtype() != DType::boolean) {
        // Pairwise or better: at most 20 + log2(n) additions per term, each with an error of u
        // times the sum of magnitudes, then one rounding to y. Products round once per factor, in
        // f64 here or in f32 on another device.
        const double u = compute_roundoff(dtype);
        const double depth = op == ReduceOp::prod ? want.count : 20 + std::log2(want.count + 1);
        const double size = op == ReduceOp::prod ? std::abs(expected) : want.magnitude[i];
        bound = 1.01 * unit_roundoff(dtype) * std::abs(expected) + depth * u * size;
      }
      if ((std::isnan(got[i]) && std::isnan(expected)) || got[i] == expected) continue;
      ASSERT_NEAR(got[i], expected, bound) << "output " << i;
    }
  }

  void check_all_dtypes(ReduceOp op, const Shape& shape, const Strides& strides,
                        const std::vector<int>& dims) {
    for (const DType dtype : kAllDTypes) {
      if (op == ReduceOp::mean && !is_floating(dtype)) continue;
      if (op == ReduceOp::prod && !is_floating(dtype) && numel(shape) > 100) continue;  // overflow
      std::string text = std::string(kNames[static_cast<int>(op)]) + " " + to_string(dtype) + " " +
                         to_string(shape) + " strides " + to_string(strides) + " over";
      for (const int d : dims) text += " " + std::to_string(d);
      SCOPED_TRACE(text);
      check(op, dtype, shape, strides, dims);
      if (HasFatalFailure()) return;
    }
  }
};
WEFT_ON_EVERY_TARGET(Reduce);

TEST_P(Reduce, Dense) {
  for (const ReduceOp op : kOps) {
    for (const Case& c : cases()) check_all_dtypes(op, c.x, contiguous_strides(c.x), c.dims);
  }
}

TEST_P(Reduce, ChannelsLast) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
    for (const Shape& s :
         {Shape{8, 5, 30, 40}, Shape{16, 8, 26, 26}, Shape{4, 64, 13, 13}, Shape{2, 300, 3, 3}}) {
      check_all_dtypes(op, s, channels_last_strides(s), {0, 2, 3});
      check_all_dtypes(op, s, channels_last_strides(s), {1});
      check_all_dtypes(op, s, channels_last_strides(s), {2, 3});
    }
  }
}

TEST_P(Reduce, StridedAndBroadcast) {
  for (const ReduceOp op : kOps) {
    check_all_dtypes(op, {30, 40}, {1, 30}, {0});
    check_all_dtypes(op, {30, 40}, {1, 30}, {1});
    check_all_dtypes(op, {30, 40}, {100, 2}, {0});
    check_all_dtypes(op, {30, 40}, {100, 2}, {1});
    check_all_dtypes(op, {30, 40}, {100, 2}, {0, 1});
    check_all_dtypes(op, {260, 300}, {700, 2}, {0});
    check_all_dtypes(op, {7, 1200}, {3000, 2}, {1});
    check_all_dtypes(op, {6, 5, 4}, {1, 24, 6}, {1});
    check_all_dtypes(op, {6, 5, 4}, {0, 1, 0}, {0, 2});
    check_all_dtypes(op, {6, 5, 4}, {5, 1, 0}, {2});
    check_all_dtypes(op, {6, 50}, {0, 1}, {0});
  }
}

TEST_P(Reduce, StridedOutput) {
  const Buffer x(device(), DType::f32, {6, 5, 4}, std::vector<double>(120, 1));
  Buffer y(device(), DType::f32, {6, 1, 4}, Strides{2, 99, 30});
  expect_equal(run(ReduceOp::sum, x, y), std::vector<double>(24, 5));
}

// Sums have the range of f64: halves of opposite sign exceed that of f32 long before they are
// added.
TEST_P(Reduce, SumsMayLeaveTheRangeOfF32OnTheWay) {
  const std::vector<Case> ways{
      {{2}, {0}},      {{70}, {0}},      {{1000}, {0}},      {{70001}, {0}},   {{40, 1}, {0}},
      {{40, 3}, {0}},  {{40, 8}, {0}},   {{40, 17}, {0}},    {{40, 100}, {0}}, {{41, 300}, {0}},
      {{700, 3}, {0}}, {{3, 1000}, {1}}, {{2, 41, 50}, {1}}, {{9000, 8}, {0}}, {{5, 3000}, {0}},
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& way : ways) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(way.x));
      const int d = way.dims[0];
      const std::int64_t n = way.x[d], half = n / 2;
      const std::int64_t step = contiguous_strides(way.x)[d];
      std::vector<double> v, endless(static_cast<std::size_t>(numel(way.x)), 0x1p127);
      for (std::int64_t i = 0; i < numel(way.x); ++i) {
        const std::int64_t at = i / step % n;
        v.push_back(at < half ? 0x1p127 : at < n - half ? 0 : -0x1p127);
        if (at == n - 1) v.back() += 0x1p120;
      }
      Shape out = way.x;
      out[d] = 1;
      const auto outputs = static_cast<std::size_t>(numel(out));
      Buffer y(device(), dtype, out);
      const Buffer x(device(), dtype, way.x, v);
      EXPECT_EQ(run(ReduceOp::sum, x, y), std::vector<double>(outputs, 0x1p120));
      const std::vector<double> mean(outputs, 0x1p120 / static_cast<double>(n));
      EXPECT_EQ(run(ReduceOp::mean, x, y), rounded(dtype, mean));
      const Buffer same(device(), dtype, way.x, endless);
      EXPECT_EQ(run(ReduceOp::sum, same, y), std::vector<double>(outputs, kInf));
      EXPECT_EQ(run(ReduceOp::mean, same, y), std::vector<double>(outputs, 0x1p127));
    }
  }
}

TEST_P(Reduce, ExtremesPassNaNOnAndKnowInfinity) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t n : {3, 64, 130, 1000}) {
      for (std::int64_t at = 0; at < n; at += 31) {
        std::vector<double> v = values_for(dtype, n, -3, 3, 5);
        v[static_cast<std::size_t>(at)] = kNaN;
        for (const bool inner : {true, false}) {
          std::vector<double> columns;  // two: the second has no NaN
          for (std::int64_t i = 0; i < n; ++i) {
            columns.push_back(v[static_cast<std::size_t>(i)]);
            columns.push_back(1);
          }
          const Buffer x =
              inner ? Buffer(device(), dtype, {n}, v) : Buffer(device(), dtype, {n, 2}, columns);
          Buffer y(device(), dtype, inner ? Shape{1} : Shape{1, 2});
          for (const ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
            const std::vector<double> got = run(op, x, y);
            EXPECT_TRUE(std::isnan(got[0])) << "n " << n << " at " << at;
            if (inner) continue;
            EXPECT_FALSE(std::isnan(got[1])) << "n " << n << " at " << at;
          }
        }
      }
    }
    const Buffer low(device(), dtype, {70}, std::vector<double>(70, -kInf));
    Buffer y(device(), dtype, {1});
    EXPECT_EQ(run(ReduceOp::max, low, y)[0], -kInf);
    EXPECT_EQ(run(ReduceOp::min, low, y)[0], -kInf);
  }
}

TEST_P(Reduce, NothingGivesTheNeutralElement) {
  const Buffer x(device(), DType::f32, {0, 3});
  Buffer y(device(), DType::f32, {1, 3});
  expect_equal(run(ReduceOp::sum, x, y), {0, 0, 0});
  expect_equal(run(ReduceOp::prod, x, y), {1, 1, 1});
  expect_equal(run(ReduceOp::mean, x, y), {kNaN, kNaN, kNaN});
  Buffer flags(device(), DType::boolean, {1, 3});
  expect_equal(run(ReduceOp::all, x, flags), {1, 1, 1});
  expect_equal(run(ReduceOp::any, x, flags), {0, 0, 0});
}

// Against long double, with a mean so large that the squares have no digits left in f32.
TEST_P(Reduce, MomentsKeepTheirDigits) {
  const auto check = [&](DType dtype, const Shape& shape, const Strides& strides,
                         const std::vector<int>& dims, double offset) {
    SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(shape) + " strides " +
                 to_string(strides) + " over " + std::to_string(dims.size()) + " at " +
                 std::to_string(offset));
    Shape out = shape;
    for (const int d : dims) out[d] = 1;
    std::vector<double> v = values_for(dtype, numel(shape), -3, 3, 11);
    for (double& value : v) value += offset;
    Buffer x(device(), dtype, shape, strides, rounded(dtype, v));
    const std::vector<double> values = x.values();
    const Result sums = reference(ReduceOp::sum, shape, out, values);
    Strides to = contiguous_strides(out);
    for (int d = 0; d < shape.size(); ++d) {
      if (out[d] == 1) to[d] = 0;
    }
    const auto at = Buffer::element_offsets(shape, to);
    const auto outputs = static_cast<std::size_t>(numel(out));
    std::vector<long double> squares(outputs, 0), plain(outputs, 0);
    std::vector<double> largest(outputs, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto o = static_cast<std::size_t>(at[i]);
      const long double d = values[i] - sums.values[o] / sums.count;
      squares[o] += d * d;
      plain[o] += static_cast<long double>(values[i]) * values[i];
      largest[o] = std::max(largest[o], std::abs(values[i]));
    }
    const auto run_moments = [&](const View& mean, Buffer& to_squares) {
      const std::size_t bytes =
          kernels().reduce.moments_workspace_bytes(x.view(), to_squares.view());
      const DeviceBytes workspace(device(), bytes);
      kernels().reduce.moments(stream, x.view(), mean, to_squares.view(), workspace.data());
      return to_squares.values();
    };
    Buffer mean(device(), DType::f64, out), to_squares(device(), DType::f64, out);
    const std::vector<double> centred = run_moments(mean.view(), to_squares);
    const std::vector<double> means = mean.values();
    const std::vector<double> uncentred = run_moments({}, to_squares);
    for (std::size_t o = 0; o < outputs; ++o) {
      // A difference from the shift, which is one of the values, is at most 6 (in bf16 plus the
      // roundings of x), or all of x without a shift; the squares correspond. Each of the n terms
      // has a few f64 roundings, and subtracting n (mean - shift)^2 as many.
      const double n = sums.count, u = 0x1p-53, spread = 6 + 2 * largest[o] * unit_roundoff(dtype);
      ASSERT_NEAR(means[o], static_cast<double>(sums.values[o]) / n,
                  (4 + n) * u * spread + 2 * u * largest[o]);
      ASSERT_NEAR(centred[o], static_cast<double>(squares[o]),
                  4 * (4 + n) * u * n * spread * spread);
      ASSERT_NEAR(uncentred[o], static_cast<double>(plain[o]), (4 + n) * u * plain[o]);
    }
  };
  for (const DType dtype : kFloating) {
    for (const double offset : {0.0, 1e5, 1e7}) {
      for (const Case& c : cases()) {
        if (numel(c.x) == 0) continue;
        check(dtype, c.x, contiguous_strides(c.x), c.dims, offset);
        if (HasFatalFailure()) return;
      }
    }
    check(dtype, {8, 5, 30, 40}, channels_last_strides({8, 5, 30, 40}), {0, 2, 3}, 1e5);
    check(dtype, {30, 40}, {1, 30}, {0}, 1e5);
    check(dtype, {260, 300}, {700, 2}, {0}, 1e5);
    check(dtype, {7, 1200}, {3000, 2}, {1}, 1e5);
    check(dtype, {6, 5, 4}, {1, 24, 6}, {1}, 1e5);
    check(dtype, {6, 5, 4}, {0, 1, 0}, {0, 2}, 1e5);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Reduce, ScaledDeviationRoundsOnce) {
  for (const DType dtype : kFloating) {
    const Buffer x(device(), dtype, {3, 50}, values_for(dtype, 150, 1000, 1008, 3));
    const std::vector<double> values = x.values();
    const Buffer center(device(), DType::f64, {3}, std::vector<double>{1001.0625, 1002.3, 1e20});
    const Buffer factor(device(), DType::f64, {50}, values_for(DType::f64, 50, -1e9, 1e9, 4));
    View centers = center.view(), factors = factor.view();
    centers.shape = factors.shape = {3, 50};
    centers.strides = {1, 0};
    factors.strides = {0, 1};
    const std::vector<double> c = center.values(), f = factor.values();
    for (const bool centred : {true, false}) {
      Buffer y(device(), dtype, {3, 50});
      kernels().reduce.scaled_deviation(stream, x.view(), centred ? centers : View{}, factors,
                                        y.view());
      std::vector<double> want;
      for (std::size_t i = 0; i < 150; ++i) {
        want.push_back((values[i] - (centred ? c[i / 50] : 0)) * f[i % 50]);
      }
      // As stored; the f64 product may differ in its last bit on another device.
      expect_close(y.values(), want,
                   [&](double w) { return (1.01 * unit_roundoff(dtype) + 0x1p-52) * std::abs(w); });
    }
  }
}

TEST_P(Reduce, LongSumsKeepTheirDigits) {
  // A plain f32 loop would stop growing at 2^24.
  const std::int64_t n = (1 << 24) + 4096;
  Buffer ones(device(), DType::f32, {n});
  kernels().elementwise.fill(stream, 1, ones.view());
  Buffer y(device(), DType::f32, {1});
  EXPECT_EQ(run(ReduceOp::sum, ones, y)[0], static_cast<double>(n));
  EXPECT_EQ(run(ReduceOp::mean, ones, y)[0], 1);
}

TEST_P(Reduce, MeanOfIntegersIsUnsupported) {
  const Buffer x(device(), DType::i64, {3}, std::vector<double>{1, 2, 3});
  Buffer y(device(), DType::i64, {1});
  try {
    run(ReduceOp::mean, x, y);
    ADD_FAILURE() << "should not exist";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Unsupported);
  }
}

// On the CPU the division into chunks depends only on the shapes.
TEST(ReduceTeams, EveryTeamSizeGivesTheSameBits) {
  const Device device("cpu");
  const KernelTable& kernels = backend(device).kernels;
  const Stream stream = backend(device).runtime->default_stream(0);
  for (const Case& c : {Case{{200001}, {0}}, Case{{9000, 8}, {0}}, Case{{16, 8, 40, 40}, {0, 2, 3}},
                        Case{{500, 300}, {0}}, Case{{500, 300}, {1}}, Case{{700, 49}, {1}},
                        Case{{40, 300, 49}, {0, 2}}}) {
    const Buffer x(device, DType::f32, c.x, random_values(numel(c.x), -3, 3));
    Shape out = c.x;
    for (const int d : c.dims) out[d] = 1;
    std::vector<double> first;
    for (const int team : {1, 2, 3, 7}) {
      const Scoped threads(&ThreadState::num_threads, team);
      Buffer y(device, DType::f32, out);
      const DeviceBytes workspace(
          device, kernels.reduce.workspace_bytes(ReduceOp::sum, x.view(), y.view()));
      kernels.reduce.reduce(stream, ReduceOp::sum, x.view(), y.view(), workspace.data());
      if (team == 1) first = y.values();
      EXPECT_EQ(y.values(), first) << to_string(c.x) << " with " << team << " threads";
    }
    for (const int team : {1, 2, 3, 7}) {
      const Scoped threads(&ThreadState::num_threads, team);
      Buffer mean(device, DType::f64, out), squares(device, DType::f64, out);
      const DeviceBytes workspace(device,
                                  kernels.reduce.moments_workspace_bytes(x.view(), squares.view()));
      kernels.reduce.moments(stream, x.view(), mean.view(), squares.view(), workspace.data());
      if (team == 1) first = squares.values();
      EXPECT_EQ(squares.values(), first) << to_string(c.x) << " with " << team << " threads";
    }
  }
}

class ArgReduce : public TargetTest {
 protected:
  std::vector<double> run(ArgReduceOp op, const Buffer& x, int dim) {
    Shape out = x.view().shape;
    if (!out.empty()) out[dim] = 1;
    Buffer y(device(), DType::i64, out);
    const DeviceBytes workspace(device(), kernels().reduce.arg_workspace_bytes(x.view(), y.view()));
    kernels().reduce.arg_reduce(stream, op, x.view(), dim, y.view(), workspace.data());
    return y.values();
  }
};
WEFT_ON_EVERY_TARGET(ArgReduce);

TEST_P(ArgReduce, FirstExtremeAlongEachDimension) {
  for (const DType dtype : kAllDTypes) {
    for (const Strides& strides : {Strides{140, 20, 1}, Strides{1, 6, 42}, Strides{500, 60, 3}}) {
      const Shape shape{6, 7, 20};
      Buffer x(device(), dtype, shape, strides);
      x.set(values_for(dtype, numel(shape), -5, 5, 3));
      for (int dim = 0; dim < 3; ++dim) {
        for (const ArgReduceOp op : {ArgReduceOp::argmax, ArgReduceOp::argmin}) {
          SCOPED_TRACE(std::string(to_string(dtype)) + " dim " + std::to_string(dim));
          Shape out = shape;
          out[dim] = 1;
          const Buffer dense(Device(), dtype, shape, x.values()), want(Device(), DType::i64, out);
          reference_kernels().reduce.arg_reduce(current_stream(Device()), op, dense.view(), dim,
                                                want.view(), nullptr);
          expect_equal(run(op, x, dim), want.values());
        }
      }
    }
  }
}

TEST_P(ArgReduce, NaNIsTheExtreme) {
  const Buffer x(device(), DType::f32, {3, 4},
                 std::vector<double>{1, kNaN, 9, kNaN, kNaN, 1, 2, 3, 1, 2, 2, kNaN});
  expect_equal(run(ArgReduceOp::argmax, x, 1), {1, 0, 3});
  expect_equal(run(ArgReduceOp::argmin, x, 1), {1, 0, 3});
}

// Blocks have 4096 elements of a row, or 1024 rows; strips have 256 columns.
TEST_P(ArgReduce, TheFirstOfEqualsAndNaNInAnyBlock) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : {Shape{3, 9000}, Shape{2500, 300}}) {
      std::vector<double> v(static_cast<std::size_t>(numel(shape)), 1);
      const auto at = [&](std::int64_t i, std::int64_t j) -> double& {
        return v[static_cast<std::size_t>(i * shape[1] + j)];
      };
      for (std::int64_t j = 0; j < shape[1]; j += 2) at(shape[0] - 1 - j % 2, j) = 2;
      for (const std::int64_t i : {0, 1}) at(i, 8191 % shape[1]) = at(i, shape[1] - 1) = 2;
      at(shape[0] / 2, shape[1] - 3) = at(shape[0] - 1, 7) = kNaN;
      const Buffer x(device(), dtype, shape, v);
      for (const int dim : {0, 1}) {
        for (const ArgReduceOp op : {ArgReduceOp::argmax, ArgReduceOp::argmin}) {
          SCOPED_TRACE(to_string(shape) + " " + to_string(dtype) + " dim " + std::to_string(dim));
          Shape out = shape;
          out[dim] = 1;
          const Buffer dense(Device(), dtype, shape, v), want(Device(), DType::i64, out);
          reference_kernels().reduce.arg_reduce(current_stream(Device()), op, dense.view(), dim,
                                                want.view(), nullptr);
          expect_equal(run(op, x, dim), want.values());
        }
      }
    }
  }
}

TEST_P(ArgReduce, ScalarsAndLongRows) {
  const Buffer scalar(device(), DType::f32, {}, std::vector<double>{4});
  expect_equal(run(ArgReduceOp::argmax, scalar, 0), {0});
  std::vector<double> v(100000, 0);
  v[77777] = 1;
  const Buffer row(device(), DType::f32, {100000}, v), rows(device(), DType::f32, {100, 1000}, v);
  expect_equal(run(ArgReduceOp::argmax, row, 0), {77777});
  const Buffer integers(device(), DType::i64, {100000}, v);
  expect_equal(run(ArgReduceOp::argmax, integers, 0), {77777});
  std::vector<double> want(1000, 0);
  want[777] = 77;
  expect_equal(run(ArgReduceOp::argmax, rows, 0), want);
}

}  // namespace
}  // namespace weft::testing
