// Batch norm in both layouts, and group norm, against their definitions in f64.
#include <algorithm>
#include <cmath>

#include "weft/kernels/elementwise_list.h"
#include "weft/tests/kernels/norm_goldens.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

/// The elements that share a mean, by their positions in row-major order, and the index of each
/// one's weight.
struct Groups {
  std::vector<std::vector<std::size_t>> members;
  std::vector<std::size_t> weight_of;
  std::size_t weights = 0;
};

Groups channels_of(const Shape& shape) {
  Groups g;
  const std::int64_t area = shape[2] * shape[3];
  g.weights = static_cast<std::size_t>(shape[1]);
  g.members.resize(g.weights);
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    const auto c = static_cast<std::size_t>(i / area % shape[1]);
    g.members[c].push_back(static_cast<std::size_t>(i));
    g.weight_of.push_back(c);
  }
  return g;
}

/// Of images [N,C,S].
Groups groups_of(const Shape& shape, std::int64_t groups) {
  Groups g;
  const std::int64_t size = shape[1] / groups * shape[2];
  g.weights = static_cast<std::size_t>(shape[1]);
  g.members.resize(static_cast<std::size_t>(shape[0] * groups));
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    g.members[static_cast<std::size_t>(i / size)].push_back(static_cast<std::size_t>(i));
    g.weight_of.push_back(static_cast<std::size_t>(i / shape[2] % shape[1]));
  }
  return g;
}

struct Values {
  std::vector<double> x, weight, bias, grad_y;
};

struct Expected {
  std::vector<double> mean, var, invstd, y, grad_x, grad_weight, grad_bias;
  // The sizes of the terms of each of these sums, for the bounds.
  std::vector<double> y_size, grad_x_size, grad_weight_size, grad_bias_size;
};

/// With given statistics (evaluation) or, if `fixed` is null, with those of the groups.
Expected reference(const Groups& g, const Values& v, double eps,
                   const std::pair<std::vector<double>, std::vector<double>>* fixed = nullptr) {
  Expected e;
  const std::size_t n = v.x.size();
  e.y.resize(n), e.y_size.resize(n), e.grad_x.resize(n), e.grad_x_size.resize(n);
  for (auto* sums : {&e.grad_weight, &e.grad_bias, &e.grad_weight_size, &e.grad_bias_size}) {
    sums->resize(g.weights);
  }
  for (std::size_t k = 0; k < g.members.size(); ++k) {
    const auto count = static_cast<long double>(g.members[k].size());
    long double sum = 0, squares = 0;
    for (const std::size_t i : g.members[k]) sum += v.x[i];
    long double mean = sum / count;
    for (const std::size_t i : g.members[k]) squares += (v.x[i] - mean) * (v.x[i] - mean);
    long double var = squares / count;
    if (fixed) mean = fixed->first[k], var = fixed->second[k];
    const double m = static_cast<double>(mean);
    const double invstd = static_cast<double>(1 / std::sqrt(var + eps));
    e.mean.push_back(m);
    e.var.push_back(static_cast<double>(var));
    e.invstd.push_back(invstd);
    long double sum_g = 0, sum_gd = 0, size_g = 0, size_gd = 0;
    for (const std::size_t i : g.members[k]) {
      const std::size_t w = g.weight_of[i];
      const double d = v.x[i] - m, size_d = std::abs(v.x[i]) + std::abs(m);
      e.y[i] = d * invstd * v.weight[w] + v.bias[w];
      e.y_size[i] = size_d * invstd * std::abs(v.weight[w]) + std::abs(v.bias[w]);
      e.grad_weight[w] += v.grad_y[i] * d * invstd;
      e.grad_weight_size[w] += std::abs(v.grad_y[i]) * size_d * invstd;
      e.grad_bias[w] += v.grad_y[i];
      e.grad_bias_size[w] += std::abs(v.grad_y[i]);
      sum_g += v.grad_y[i] * v.weight[w];
      sum_gd += v.grad_y[i] * v.weight[w] * d;
      size_g += std::abs(v.grad_y[i] * v.weight[w]);
      size_gd += std::abs(v.grad_y[i] * v.weight[w]) * size_d;
    }
    if (fixed) sum_g = sum_gd = size_g = size_gd = 0;
    for (const std::size_t i : g.members[k]) {
      const double d = v.x[i] - m, size_d = std::abs(v.x[i]) + std::abs(m);
      const long double factor = v.grad_y[i] * v.weight[g.weight_of[i]];
      e.grad_x[i] = static_cast<double>(
          invstd * (factor - sum_g / count - d * invstd * invstd * sum_gd / count));
      e.grad_x_size[i] = static_cast<double>(invstd * (std::abs(factor) + size_g / count +
                                                       size_d * invstd * invstd * size_gd / count));
    }
  }
  return e;
}

/// Bound: `terms` roundings in the compute type, of values as large as size[i], and one in the
/// stored type. Sums are in f64, whose own roundings count only for f64. On CUDA they are in f32
/// where a term passes through 18 additions at most, of which it is far from the largest in most.
void expect_within(const char* what, DType dtype, const std::vector<double>& got,
                   const std::vector<double>& want, const std::vector<double>& size, double terms) {
  SCOPED_TRACE(what);
  ASSERT_EQ(got.size(), want.size());
  const double u = compute_roundoff(dtype), stored = unit_roundoff(dtype);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double bound = terms * u * size[i] + 1.01 * stored * std::abs(want[i]);
    if (std::abs(got[i] - want[i]) <= bound) continue;
    ADD_FAILURE() << "element " << i << ": got " << got[i] << ", expected " << want[i] << " within "
                  << bound;
    return;
  }
}

std::vector<double> absolute(std::vector<double> v) {
  for (double& x : v) x = std::abs(x);
  return v;
}

class Norm : public TargetTest {
 protected:
  static DType computed(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

  /// Images of one dtype with parameters of another.
  static Values some(DType dtype, DType part, std::int64_t n, std::int64_t weights, double low,
                     double high) {
    return {values_for(dtype, n, low, high, 1), values_for(part, weights, -2, 2, 2),
            values_for(part, weights, -1, 1, 3), values_for(dtype, n, -1, 1, 4)};
  }

  // Sums in f64 of n terms, in lanes and chunks, have at most n roundings, which matter only for an
  // f64 result. 16: the other operations, with statistics that are rounded once.
  static double terms(DType dtype, std::size_t n) {
    return 16 + (dtype == DType::f64 ? static_cast<double>(n) : 0);
  }

  void check_batch_norm(const Shape& shape, DType dtype, MemoryFormat format, bool training,
                        double low, double high) {
    SCOPED_TRACE(weft::to_string(shape) + (format == MemoryFormat::nhwc ? " nhwc " : " nchw ") +
                 std::string(to_string(dtype)) + (training ? " training" : " evaluation"));
    const Groups groups = channels_of(shape);
    const Shape part{shape[1]};
    const std::size_t n = groups.members[0].size();
    const Values v = some(dtype, computed(dtype), numel(shape), shape[1], low, high);
    const DType c = computed(dtype);
    const std::pair fixed(values_for(c, shape[1], -1, 1, 5), values_for(c, shape[1], 0.5, 2, 6));
    const double eps = 1e-5;
    const Expected want = reference(groups, v, eps, training ? nullptr : &fixed);

    const Strides strides = format_strides(shape, format);
    const Buffer x(device(), dtype, shape, strides, v.x),
        weight(device(), computed(dtype), part, v.weight),
        bias(device(), computed(dtype), part, v.bias),
        grad_y(device(), dtype, shape, strides, v.grad_y);
    Buffer running_mean(device(), computed(dtype), part, fixed.first),
        running_var(device(), computed(dtype), part, fixed.second);
    Buffer batches(device(), DType::i64, {}, std::vector<double>{3});
    Buffer y(device(), dtype, shape, strides), mean(device(), computed(dtype), part),
        invstd(device(), computed(dtype), part);
    const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
    const bool cumulative = dtype == DType::bf16;  // 1 / 4 in the fourth batch
    kernels().norm.batch_norm(
        stream,
        {.eps = eps,
         .training = training,
         .momentum = cumulative ? 0 : 0.25,
         .cumulative = cumulative},
        {x.view(), weight.view(), bias.view(), running_mean.view(), running_var.view(),
         batches.view(), y.view(), mean.view(), invstd.view()},
        workspace.data());
    std::vector<double> mean_size;
    for (const auto& members : groups.members) {
      double largest = 0;
      for (const std::size_t i : members) largest = std::max(largest, std::abs(v.x[i]));
      mean_size.push_back(std::max(largest, 1.0));
    }
    const double count = terms(dtype, n);
    expect_within("mean", c, mean.values(), want.mean, mean_size, count);
    expect_within("invstd", c, invstd.values(), want.invstd, want.invstd, count);
    expect_within("y", dtype, y.values(), want.y, want.y_size, count);
    std::vector<double> running[] = {fixed.first, fixed.second};
    if (training) {
      for (std::size_t k = 0; k < want.mean.size(); ++k) {
        const double unbiased = want.var[k] * static_cast<double>(n) / static_cast<double>(n - 1);
        running[0][k] = 0.75 * running[0][k] + 0.25 * want.mean[k];
        running[1][k] = 0.75 * running[1][k] + 0.25 * unbiased;
      }
    }
    expect_within("running_mean", c, running_mean.values(), running[0], mean_size, count);
    expect_within("running_var", c, running_var.values(), running[1], absolute(running[1]), count);
    expect_equal(batches.values(), {training ? 4.0 : 3.0});

    Buffer grad_x(device(), dtype, shape, strides), grad_weight(device(), computed(dtype), part),
        grad_bias(device(), computed(dtype), part);
    kernels().norm.batch_norm_backward(
        stream, {.training = training},
        {grad_y.view(), x.view(), weight.view(), mean.view(), invstd.view(), grad_x.view(),
         grad_weight.view(), grad_bias.view()},
        workspace.data());
    // Two products with d and invstd: three times the roundings of forward.
    expect_within("grad_x", dtype, grad_x.values(), want.grad_x, want.grad_x_size, 3 * count);
    expect_within("grad_weight", c, grad_weight.values(), want.grad_weight, want.grad_weight_size,
                  3 * count);
    expect_within("grad_bias", c, grad_bias.values(), want.grad_bias, want.grad_bias_size, count);
  }

  /// Addition and activation in the same pass against separate kernels, bit for bit: every step
  /// rounds in the same way, and the sums have the same order.
  void check_following(const Shape& shape, DType dtype, MemoryFormat format,
                       const BatchNormParams& params, bool adds) {
    SCOPED_TRACE(
        weft::to_string(shape) + (format == MemoryFormat::nhwc ? " nhwc " : " nchw ") +
        std::string(to_string(dtype)) + (params.training ? " training" : " evaluation") +
        (adds ? ", addend" : "") +
        (params.negative_slope ? ", slope " + std::to_string(*params.negative_slope) : ""));
    const Shape part{shape[1]};
    const Strides strides = format_strides(shape, format);
    Values v = some(dtype, computed(dtype), numel(shape), shape[1], -3, 3);
    v.weight[0] = v.bias[0] = 0;  // a channel of zeros
    std::vector<double> more = values_for(dtype, numel(shape), -1, 1, 7);
    for (std::size_t i = 0; i < more.size(); i += 3) more[i] = 0;
    const Buffer x(device(), dtype, shape, strides, v.x),
        weight(device(), computed(dtype), part, v.weight),
        bias(device(), computed(dtype), part, v.bias),
        grad_y(device(), dtype, shape, strides, v.grad_y),
        addend(device(), dtype, shape, strides, more);
    Buffer running_mean(device(), computed(dtype), part, values_for(dtype, shape[1], -1, 1, 5)),
        running_var(device(), computed(dtype), part, values_for(dtype, shape[1], 0.5, 2, 6));
    Buffer mean(device(), computed(dtype), part), invstd(device(), computed(dtype), part);
    const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
    const auto image = [&] { return Buffer(device(), dtype, shape, strides); };
    const View none;
    const auto forward = [&](const BatchNormParams& p, const View& y, const View& added) {
      // Training does not use the running statistics.
      const View m = p.training ? none : running_mean.view(),
                 var = p.training ? none : running_var.view();
      kernels().norm.batch_norm(stream, p,
                                {x.view(), weight.view(), bias.view(), m, var, none, y, mean.view(),
                                 invstd.view(), added},
                                workspace.data());
    };
    BatchNormParams plain = params;
    plain.negative_slope.reset();
    const double slope = params.negative_slope.value_or(0);
    const UnaryOp op = slope == 0 ? UnaryOp::relu : UnaryOp::leaky_relu;
    const auto& elementwise = kernels().elementwise;

    Buffer got = image(), want = image();
    forward(params, got.view(), adds ? addend.view() : none);
    forward(plain, want.view(), none);
    if (adds) elementwise.binary(stream, BinaryOp::add, want.view(), addend.view(), want.view());
    if (params.negative_slope) {
      elementwise.unary(stream, op, {.a = slope}, want.view(), want.view());
    }
    expect_equal(got.values(), want.values());

    struct Gradients {
      Buffer x, weight, bias;
    };
    const auto gradients = [&] {
      const DType c = computed(dtype);
      return Gradients{image(), Buffer(device(), c, part), Buffer(device(), c, part)};
    };
    Gradients fused = gradients(), separate = gradients();
    Buffer masked = image(), grad_addend = image();
    if (params.negative_slope) {
      elementwise.unary_backward(stream, op, {.a = slope}, grad_y.view(), want.view(),
                                 masked.view());
    } else {
      elementwise.copy(stream, grad_y.view(), masked.view());
    }
    const auto backward = [&](const BatchNormParams& p, const Buffer& g, Gradients& to,
                              bool whole) {
      const bool active = p.negative_slope.has_value();
      kernels().norm.batch_norm_backward(
          stream, p,
          {g.view(), x.view(), weight.view(), mean.view(), invstd.view(), to.x.view(),
           whole ? to.weight.view() : none, whole ? to.bias.view() : none, bias.view(),
           active && adds ? got.view() : none, active && adds && whole ? grad_addend.view() : none},
          workspace.data());
    };
    backward(params, grad_y, fused, true);
    backward(plain, masked, separate, true);
    expect_equal(fused.x.values(), separate.x.values());
    expect_equal(fused.weight.values(), separate.weight.values());
    expect_equal(fused.bias.values(), separate.bias.values());
    if (adds && params.negative_slope) expect_equal(grad_addend.values(), masked.values());
    Gradients alone = gradients();  // also with the mask in the second pass
    backward(params, grad_y, alone, false);
    expect_equal(alone.x.values(), separate.x.values());
  }

  /// How many times the variance the kernels' sums of (x - shift)^2 / n are at most, where the
  /// shift is a group's first element: their roundings count as often in the variance.
  static double cancellation(const Groups& groups, const Values& v, const Expected& e, double eps) {
    double most = 1;
    for (std::size_t k = 0; k < groups.members.size(); ++k) {
      const double shift = v.x[groups.members[k][0]] - e.mean[k];
      most = std::max(most, 1 + shift * shift / (e.var[k] + eps));
    }
    return most;
  }

  /// x is [N,C,S].
  void check_group_norm(const Shape& shape, std::int64_t in_groups, DType dtype, double low,
                        double high) {
    SCOPED_TRACE(weft::to_string(shape) + " in " + std::to_string(in_groups) + " groups, " +
                 std::string(to_string(dtype)));
    const Groups groups = groups_of(shape, in_groups);
    const Shape part{shape[1]}, statistics{shape[0], in_groups};
    const Values v = some(dtype, dtype, numel(shape), shape[1], low, high);
    const double eps = 1e-5;
    const Expected want = reference(groups, v, eps);
    const Buffer x(device(), dtype, shape, v.x), weight(device(), dtype, part, v.weight),
        bias(device(), dtype, part, v.bias), grad_y(device(), dtype, shape, v.grad_y);
    Buffer y(device(), dtype, shape), mean(device(), computed(dtype), statistics),
        invstd(device(), computed(dtype), statistics);
    kernels().norm.group_norm(stream, {eps, in_groups, x.view(), weight.view(), bias.view(),
                                       y.view(), mean.view(), invstd.view()});
    const double sums =
        cancellation(groups, v, want, eps) * static_cast<double>(groups.members[0].size());
    const double count = terms(dtype, static_cast<std::size_t>(sums));
    const std::vector<double> mean_size(want.mean.size(), std::max(std::abs(low), std::abs(high)));
    expect_within("mean", computed(dtype), mean.values(), want.mean, mean_size, count);
    expect_within("invstd", computed(dtype), invstd.values(), want.invstd, want.invstd, count);
    expect_within("y", dtype, y.values(), want.y, want.y_size, count);
    Buffer grad_x(device(), dtype, shape), grad_weight(device(), dtype, part),
        grad_bias(device(), dtype, part);
    const DeviceBytes workspace(device(),
                                kernels().norm.group_norm_backward_workspace_bytes(x.view()));
    kernels().norm.group_norm_backward(
        stream,
        {in_groups, grad_y.view(), x.view(), weight.view(), mean.view(), invstd.view(),
         grad_x.view(), grad_weight.view(), grad_bias.view()},
        workspace.data());
    expect_within("grad_x", dtype, grad_x.values(), want.grad_x, want.grad_x_size, 3 * count);
    const double summed = terms(dtype, static_cast<std::size_t>(shape[0] * shape[2]));
    expect_within("grad_weight", dtype, grad_weight.values(), want.grad_weight,
                  want.grad_weight_size, 3 * (count + summed));
    expect_within("grad_bias", dtype, grad_bias.values(), want.grad_bias, want.grad_bias_size,
                  summed);
  }
};
WEFT_ON_EVERY_TARGET(Norm);

const std::vector<Shape>& image_shapes() {
  static const std::vector<Shape> all{{2, 1, 1, 1},   {1, 1, 1, 2},   {4, 3, 1, 1},
                                      {3, 5, 4, 6},   {2, 17, 7, 9},  {5, 300, 2, 3},
                                      {1, 2, 40, 41}, {9, 8, 60, 61}, {70, 33, 8, 8}};
  return all;
}

TEST_P(Norm, BatchNorm) {
  for (const Shape& shape : image_shapes()) {
    for (const DType dtype : kFloating) {
      for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
        check_batch_norm(shape, dtype, format, true, -3, 3);
        check_batch_norm(shape, dtype, format, false, -3, 3);
      }
    }
  }
}

TEST_P(Norm, AdditionAndActivationInTheSamePass) {
  // Also planes and pixels longer than what is processed at a time: 4096 channels on the CPU, 256
  // on CUDA. On CUDA more channels use the same code (for 4100 channels an emulated device would
  // take minutes).
  const std::int64_t many = device().is_cpu() ? 4100 : 520;
  int turn = 0;
  for (const Shape& shape : {Shape{3, 5, 4, 6}, Shape{5, 300, 2, 3}, Shape{2, 3, 70, 71},
                             Shape{4, 8, 48, 48}, Shape{3, many, 1, 2}}) {
    ++turn;  // each shape begins with another one
    for (const DType dtype : kFloating) {
      for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
        for (const bool training : {true, false}) {
          const auto check = [&](std::optional<double> slope, bool adds) {
            check_following(shape, dtype, format, {.training = training, .negative_slope = slope},
                            adds);
          };
          // What follows has no influence on how larger images are divided. An emulated GPU, which
          // takes a second for each, gets one in turn.
          const bool part = numel(shape) > (device().is_cpu() ? 10'000 : 2'000) && !every_case();
          ++turn;
          const auto is_turn = [&](int k) { return !part || device().is_cpu() || turn % 3 == k; };
          if (is_turn(0)) check(0, false);
          if (is_turn(1)) check({}, true);
          if (is_turn(2)) check(0.2, true);
          if (part) continue;
          check(0.2, false);
          check(0, true);
        }
      }
    }
  }
}

// A NaN stays NaN, and its gradient passes, as in relu.
TEST_P(Norm, NaNPassesTheActivation) {
  const Shape shape{1, 1, 1, 3}, part{1};
  const Buffer x(device(), DType::f32, shape, std::vector<double>{-1, kNaN, 2}),
      one(device(), DType::f32, part, std::vector<double>{1});
  Buffer y(device(), DType::f32, shape), mean(device(), DType::f32, part, std::vector<double>{0}),
      invstd(device(), DType::f32, part), zero(device(), DType::f32, part, std::vector<double>{0});
  const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
  const BatchNormParams relu{.eps = 0, .training = false, .negative_slope = 0};
  kernels().norm.batch_norm(
      stream, relu,
      {x.view(), {}, {}, zero.view(), one.view(), {}, y.view(), mean.view(), invstd.view(), {}},
      workspace.data());
  expect_equal(y.values(), {0, kNaN, 2});
  Buffer grad_x(device(), DType::f32, shape);
  const Buffer grad_y(device(), DType::f32, shape, std::vector<double>{5, 6, 7});
  kernels().norm.batch_norm_backward(
      stream, relu,
      {grad_y.view(), x.view(), {}, mean.view(), invstd.view(), grad_x.view(), {}, {}, {}, {}, {}},
      workspace.data());
  expect_equal(grad_x.values(), {0, 6, 7});
}

// Nearly normal numbers, the sums of 12 uniform ones, as write_norm_goldens.py makes them.
std::vector<double> normal_values(std::int64_t n, double mean, std::uint64_t seed) {
  const std::vector<double> uniform = random_values(12 * n, 0, 1, seed);
  std::vector<double> out;
  for (std::size_t i = 0; i < uniform.size(); i += 12) {
    double sum = uniform[i];
    for (std::size_t k = 1; k < 12; ++k) sum += uniform[i + k];
    out.push_back(mean + (sum - 6));
  }
  return out;
}

double largest_error(const std::vector<double>& got, const std::vector<double>& want) {
  double most = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got.at(i) - want[i]);
    if (std::isnan(error)) return kInf;  // std::max would take no notice
    most = std::max(most, error);
  }
  return most;
}

TEST_P(Norm, IsAsExactAsPyTorchBesideALargeMean) {
  const Shape shape{8, 16, 24, 24}, part{16};
  for (const BatchNormErrors& errors : kBatchNormErrors) {
    SCOPED_TRACE(to_string(errors.dtype) + std::string(errors.channels_last ? " nhwc" : " nchw"));
    const DType c = computed(errors.dtype);
    const Values v{rounded(errors.dtype, normal_values(numel(shape), errors.mean, 1)),
                   values_for(c, 16, -2, 2, 3), values_for(c, 16, -1, 1, 4),
                   rounded(errors.dtype, normal_values(numel(shape), 0, 2))};
    const Expected want = reference(channels_of(shape), v, 1e-5);
    const Strides strides =
        format_strides(shape, errors.channels_last ? MemoryFormat::nhwc : MemoryFormat::nchw);
    const auto image = [&](auto&&... values) {
      return Buffer(device(), errors.dtype, shape, strides, values...);
    };
    const auto channels = [&](auto&&... values) { return Buffer(device(), c, part, values...); };
    const Buffer x = image(v.x), grad_y = image(v.grad_y), weight = channels(v.weight),
                 bias = channels(v.bias);
    Buffer y = image(), grad_x = image(), mean = channels(), invstd = channels(),
           grad_weight = channels(), grad_bias = channels();
    Buffer running_mean = channels(std::vector<double>(16)),
           running_var = channels(std::vector<double>(16));
    const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
    kernels().norm.batch_norm(stream, {.momentum = 1},
                              {x.view(),
                               weight.view(),
                               bias.view(),
                               running_mean.view(),
                               running_var.view(),
                               {},
                               y.view(),
                               mean.view(),
                               invstd.view()},
                              workspace.data());
    kernels().norm.batch_norm_backward(
        stream, {},
        {grad_y.view(), x.view(), weight.view(), mean.view(), invstd.view(), grad_x.view(),
         grad_weight.view(), grad_bias.view()},
        workspace.data());
    std::vector<double> unbiased = want.var;
    const double n = static_cast<double>(numel(shape)) / 16;
    for (double& var : unbiased) var *= n / (n - 1);
    EXPECT_LE(largest_error(y.values(), want.y), 2 * errors.y);
    EXPECT_LE(largest_error(grad_x.values(), want.grad_x), 2 * errors.grad_x);
    EXPECT_LE(largest_error(grad_weight.values(), want.grad_weight), 2 * errors.grad_weight);
    EXPECT_LE(largest_error(grad_bias.values(), want.grad_bias), 2 * errors.grad_bias);
    EXPECT_LE(largest_error(running_mean.values(), want.mean), 2 * errors.running_mean);
    EXPECT_LE(largest_error(running_var.values(), unbiased), 2 * errors.running_var);
  }
}

// The first element of a channel, which is taken off before summing, may be far from the others, as
// after a relu.
TEST_P(Norm, AFirstElementFarFromTheOthers) {
  const Shape shape{4, 8, 64, 64}, part{8};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      Values v = some(dtype, DType::f32, numel(shape), 8, -1, 1);
      std::fill(v.x.begin(), v.x.end(), 0);
      for (std::size_t c = 0; c < 8; ++c) v.x[c * 64 * 64] = rounded(dtype, 1234.5);
      const Expected want = reference(channels_of(shape), v, 1e-5);
      const Buffer x(device(), dtype, shape, format_strides(shape, format), v.x);
      Buffer y(device(), dtype, shape, format_strides(shape, format)),
          mean(device(), DType::f32, part), invstd(device(), DType::f32, part);
      const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
      kernels().norm.batch_norm(
          stream, {}, {x.view(), {}, {}, {}, {}, {}, y.view(), mean.view(), invstd.view()},
          workspace.data());
      // Sums of 32 squares of the element, where one should be left, lose 32^2 roundings at most,
      // and half of that in the root.
      expect_within("mean", DType::f32, mean.values(), want.mean, absolute(want.mean), 512);
      expect_within("invstd", DType::f32, invstd.values(), want.invstd, want.invstd, 256);
    }
  }
}

// One element further than what a vector may be loaded from.
TEST_P(Norm, UnalignedImages) {
  const Shape shape{2, 16, 4, 8}, part{16};
  const std::int64_t n = numel(shape);
  for (const DType dtype : kFloating) {
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      SCOPED_TRACE(to_string(dtype));
      const Strides strides = format_strides(shape, format);
      Values v = some(dtype, computed(dtype), n, 16, -3, 3);
      std::fill(v.weight.begin(), v.weight.end(), 1);
      std::fill(v.bias.begin(), v.bias.end(), 0);
      const Expected want = reference(channels_of(shape), v, 1e-5);
      const std::vector<std::int64_t> offsets = Buffer::element_offsets(shape, strides);
      const auto in_memory = [&](const std::vector<double>& values) {
        std::vector<double> flat(static_cast<std::size_t>(n + 1));
        for (std::size_t i = 0; i < values.size(); ++i) {
          flat[static_cast<std::size_t>(offsets[i] + 1)] = values[i];
        }
        return flat;
      };
      const auto in_order = [&](const Buffer& buffer) {
        const std::vector<double> flat = buffer.values();
        std::vector<double> values;
        for (const std::int64_t at : offsets)
          values.push_back(flat[static_cast<std::size_t>(at + 1)]);
        return values;
      };
      const auto view = [&](const Buffer& flat) {
        return View{static_cast<char*>(flat.view().data) + size_of(dtype), dtype, shape, strides};
      };
      const Buffer x(device(), dtype, {n + 1}, in_memory(v.x)),
          grad_y(device(), dtype, {n + 1}, in_memory(v.grad_y));
      Buffer y(device(), dtype, {n + 1}, in_memory({})),
          grad_x(device(), dtype, {n + 1}, in_memory({}));
      Buffer mean(device(), computed(dtype), part), invstd(device(), computed(dtype), part);
      const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(view(x)));
      kernels().norm.batch_norm(stream, {},
                                {view(x), {}, {}, {}, {}, {}, view(y), mean.view(), invstd.view()},
                                workspace.data());
      kernels().norm.batch_norm_backward(
          stream, {}, {view(grad_y), view(x), {}, mean.view(), invstd.view(), view(grad_x), {}, {}},
          workspace.data());
      const double count = terms(dtype, static_cast<std::size_t>(n / 16));
      expect_within("y", dtype, in_order(y), want.y, want.y_size, count);
      expect_within("grad_x", dtype, in_order(grad_x), want.grad_x, want.grad_x_size, 3 * count);
    }
  }
}

// A mean 10^4 times the deviation: E[x^2] - mean^2 in f32 would not have a single correct digit.
TEST_P(Norm, AMeanFarFromZero) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      check_batch_norm({4, 3, 20, 20}, dtype, format, true, 9999, 10001);
    }
    check_group_norm({5, 400, 1}, 1, dtype, 9999, 10001);
    check_group_norm({2, 6, 100}, 2, dtype, 9999, 10001);
  }
}

// Beside a channel of ordinary numbers, whose squares must not be scaled as the others'.
TEST_P(Norm, SquaresBeyondF32) {
  for (const Shape& shape : {Shape{4, 8, 40, 40}, Shape{3, 5, 7, 9}}) {
    const Shape part{shape[1]};
    const std::int64_t area = shape[2] * shape[3];
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
        SCOPED_TRACE(weft::to_string(shape) + std::string(to_string(dtype)));
        Values v = some(dtype, DType::f32, numel(shape), shape[1], -3, 3);
        for (std::size_t i = 0; i < v.x.size(); ++i) {
          const auto c = static_cast<std::int64_t>(i) / area % shape[1];
          if (c % 3 == 1) v.x[i] = rounded(dtype, v.x[i] * 1e20);
        }
        const Expected want = reference(channels_of(shape), v, 1e-5);
        const Strides strides = format_strides(shape, format);
        const Buffer x(device(), dtype, shape, strides, v.x),
            grad_y(device(), dtype, shape, strides, v.grad_y),
            weight(device(), DType::f32, part, v.weight), bias(device(), DType::f32, part, v.bias);
        Buffer y(device(), dtype, shape, strides), grad_x(device(), dtype, shape, strides);
        Buffer mean(device(), DType::f32, part), invstd(device(), DType::f32, part),
            grad_weight(device(), DType::f32, part), grad_bias(device(), DType::f32, part);
        const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
        kernels().norm.batch_norm(stream, {},
                                  {x.view(),
                                   weight.view(),
                                   bias.view(),
                                   {},
                                   {},
                                   {},
                                   y.view(),
                                   mean.view(),
                                   invstd.view()},
                                  workspace.data());
        kernels().norm.batch_norm_backward(
            stream, {},
            {grad_y.view(), x.view(), weight.view(), mean.view(), invstd.view(), grad_x.view(),
             grad_weight.view(), grad_bias.view()},
            workspace.data());
        const double count = terms(dtype, v.x.size());
        expect_within("invstd", DType::f32, invstd.values(), want.invstd, want.invstd, count);
        expect_within("y", dtype, y.values(), want.y, want.y_size, count);
        // The factor of x - mean, some 1e-42, is a denormal f32 and wrong by up to 2^-150, times
        // 3e20: some 300 roundings of these gradients.
        expect_within("grad_x", dtype, grad_x.values(), want.grad_x, want.grad_x_size,
                      3 * count + 512);
        expect_within("grad_weight", DType::f32, grad_weight.values(), want.grad_weight,
                      want.grad_weight_size, 3 * count);
        expect_within("grad_bias", DType::f32, grad_bias.values(), want.grad_bias,
                      want.grad_bias_size, count);
      }
    }
  }
}

TEST_P(Norm, LayerNorm) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{3, 1, 1}, Shape{1, 7, 1}, Shape{5, 16, 1}, Shape{33, 67, 1},
        Shape{4, 3000, 1}, Shape{900, 130, 1}, Shape{9000, 3, 1}}) {
    for (const DType dtype : kFloating) check_group_norm(shape, 1, dtype, -3, 3);
  }
}

// With one and with several channels and elements of a channel, in rows that are shorter and longer
// than what one warp processes, and in as many elements as several chunks have.
TEST_P(Norm, GroupNorm) {
  const std::pair<Shape, std::int64_t> cases[] = {
      {{1, 1, 2}, 1},    {{3, 4, 1}, 2},       {{2, 6, 1}, 6},    {{5, 6, 4}, 3},
      {{2, 5, 37}, 5},   {{3, 12, 67}, 1},     {{2, 8, 300}, 2},  {{300, 34, 1}, 2},
      {{1, 3, 5000}, 3}, {{9, 16, 3 * 61}, 4}, {{70, 64, 16}, 8}, {{4, 2, 2100}, 2},
      {{1, 16400, 2}, 1}};
  for (const auto& [shape, groups] : cases) {
    for (const DType dtype : kFloating) check_group_norm(shape, groups, dtype, -3, 3);
  }
}

// Rows of which a thread has many runs on CUDA.
TEST_P(Norm, LongRowsOfGroupNorm) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check_group_norm({1, 100001, 1}, 1, dtype, -1, 3);
  }
  check_group_norm({1, 100001, 1}, 1, DType::f32, 9999, 10001);
}

// All the roundings of a thread may go in one direction here, so a long sum in f32 would drift.
// Twice what it costs to store the mean, and to store the variance, its root and the quotient.
TEST_P(Norm, LongRowsOfTwoNumbersKeepTheirStatistics) {
  const std::int64_t n = 1'000'000;
  for (const double offset : {0.0, 1e4}) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(offset + (i % 2 == 0 ? 1.1 : 2.7));
    const Buffer x(device(), DType::f32, {1, n, 1}, values);
    const std::vector<double> kept = x.values();
    const double half = (kept[1] - kept[0]) / 2;
    Buffer y(device(), DType::f32, {1, n, 1}), mean(device(), DType::f32, {1, 1}),
        invstd(device(), DType::f32, {1, 1});
    kernels().norm.group_norm(
        stream, {1e-5, 1, x.view(), View{}, View{}, y.view(), mean.view(), invstd.view()});
    const double u = compute_roundoff(DType::f32);
    EXPECT_NEAR(mean.values()[0], kept[0] + half, 2 * u * (kept[0] + half));
    const double want = 1 / std::sqrt(half * half + 1e-5);
    EXPECT_NEAR(invstd.values()[0], want, 4 * u * want);
  }
}

TEST_P(Norm, SquaresOfGroupNormBeyondF32) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check_group_norm({9, 400, 1}, 1, dtype, -3e19, 3e19);
    check_group_norm({2, 6, 2000}, 2, dtype, -3e19, 3e19);
  }
}

// Without weight, bias, running statistics or wanted gradients: only what is requested is written.
TEST_P(Norm, WhatIsMissing) {
  for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
    const Shape shape{3, 5, 4, 2}, part{5};
    const Strides strides = format_strides(shape, format);
    const DType dtype = DType::f64;
    Values v = some(dtype, dtype, numel(shape), 5, -3, 3);
    const Buffer x(device(), dtype, shape, strides, v.x),
        grad_y(device(), dtype, shape, strides, v.grad_y);
    std::fill(v.weight.begin(), v.weight.end(), 1);
    std::fill(v.bias.begin(), v.bias.end(), 0);
    const Expected want = reference(channels_of(shape), v, 1e-5);
    Buffer y(device(), dtype, shape, strides), mean(device(), dtype, part),
        invstd(device(), dtype, part), grad_x(device(), dtype, shape, strides),
        grad_bias(device(), dtype, part);
    const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
    const View none;
    kernels().norm.batch_norm(
        stream, {}, {x.view(), none, none, none, none, none, y.view(), mean.view(), invstd.view()},
        workspace.data());
    expect_within("y", dtype, y.values(), want.y, want.y_size, 40);
    const auto backward = [&](const View& gx, const View& gb) {
      kernels().norm.batch_norm_backward(
          stream, {}, {grad_y.view(), x.view(), none, mean.view(), invstd.view(), gx, none, gb},
          workspace.data());
    };
    backward(grad_x.view(), none);
    expect_within("grad_x", dtype, grad_x.values(), want.grad_x, want.grad_x_size, 120);
    backward(none, grad_bias.view());
    expect_within("grad_bias", dtype, grad_bias.values(), want.grad_bias, want.grad_bias_size, 40);
  }
}

TEST_P(Norm, GroupNormOfWhatIsMissing) {
  const DType dtype = DType::f64;
  for (const std::int64_t spatial : {1, 7}) {
    const Shape shape{3, 6, spatial}, part{6}, statistics{3, 2};
    Values v = some(dtype, dtype, numel(shape), 6, -3, 3);
    const Buffer x(device(), dtype, shape, v.x), grad_y(device(), dtype, shape, v.grad_y),
        weight(device(), dtype, part, v.weight), bias(device(), dtype, part, v.bias);
    Buffer y(device(), dtype, shape), mean(device(), dtype, statistics),
        invstd(device(), dtype, statistics), grad_x(device(), dtype, shape);
    const DeviceBytes workspace(device(),
                                kernels().norm.group_norm_backward_workspace_bytes(x.view()));
    for (const bool has_weight : {true, false}) {
      for (const bool has_bias : {true, false}) {
        Values given = v;
        if (!has_weight) std::fill(given.weight.begin(), given.weight.end(), 1);
        if (!has_bias) std::fill(given.bias.begin(), given.bias.end(), 0);
        const Expected want = reference(groups_of(shape, 2), given, 1e-5);
        const View w = has_weight ? weight.view() : View{};
        kernels().norm.group_norm(stream, {1e-5, 2, x.view(), w, has_bias ? bias.view() : View{},
                                           y.view(), mean.view(), invstd.view()});
        expect_within("y", dtype, y.values(), want.y, want.y_size, 40);
        const auto backward = [&](const View& gx, const View& gw, const View& gb) {
          kernels().norm.group_norm_backward(
              stream, {2, grad_y.view(), x.view(), w, mean.view(), invstd.view(), gx, gw, gb},
              workspace.data());
        };
        Buffer grad_weight(device(), dtype, part), grad_bias(device(), dtype, part);
        backward(grad_x.view(), {}, {});
        expect_within("grad_x", dtype, grad_x.values(), want.grad_x, want.grad_x_size, 120);
        backward({}, grad_weight.view(), {});
        expect_within("grad_weight", dtype, grad_weight.values(), want.grad_weight,
                      want.grad_weight_size, 120);
        backward({}, {}, grad_bias.view());
        expect_within("grad_bias", dtype, grad_bias.values(), want.grad_bias, want.grad_bias_size,
                      40);
      }
    }
  }
}

TEST_P(Norm, CumulativeAverages) {
  const Shape shape{2, 1, 1, 1}, part{1};
  Buffer running_mean(device(), DType::f64, part, std::vector<double>{0}),
      running_var(device(), DType::f64, part, std::vector<double>{1});
  Buffer batches(device(), DType::i64, {}, std::vector<double>{0});
  Buffer y(device(), DType::f64, shape), mean(device(), DType::f64, part),
      invstd(device(), DType::f64, part);
  for (const double v : {1.0, 3.0, 8.0}) {
    const Buffer x(device(), DType::f64, shape, std::vector<double>{v - 1, v + 1});
    const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
    kernels().norm.batch_norm(stream, {.cumulative = true},
                              {x.view(),
                               {},
                               {},
                               running_mean.view(),
                               running_var.view(),
                               batches.view(),
                               y.view(),
                               mean.view(),
                               invstd.view()},
                              workspace.data());
  }
  expect_close(running_mean.values(), {4}, [](double) { return 1e-15; });
  expect_close(running_var.values(), {2}, [](double) { return 1e-15; });
  expect_equal(batches.values(), {3});
}

TEST_P(Norm, TheTeamsSizeChangesNoBit) {
  if (!device().is_cpu()) GTEST_SKIP() << "no team";
  for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
    const Shape shape{9, 8, 60, 61}, part{8};
    const Strides strides = format_strides(shape, format);
    const Buffer x(device(), DType::f32, shape, strides, random_values(numel(shape), -3, 3));
    const Buffer g(device(), DType::f32, shape, strides, random_values(numel(shape), -3, 3, 2));
    std::vector<std::vector<double>> results[2];
    for (const int threads : {1, 3}) {
      const Scoped team(&ThreadState::num_threads, threads);
      Buffer y(device(), DType::f32, shape, strides), grad_x(device(), DType::f32, shape, strides);
      Buffer mean(device(), DType::f32, part), invstd(device(), DType::f32, part);
      const DeviceBytes workspace(device(), kernels().norm.batch_norm_workspace_bytes(x.view()));
      const BatchNormParams relu{.negative_slope = 0};
      kernels().norm.batch_norm(
          stream, relu, {x.view(), {}, {}, {}, {}, {}, y.view(), mean.view(), invstd.view(), {}},
          workspace.data());
      kernels().norm.batch_norm_backward(
          stream, relu,
          {g.view(), x.view(), {}, mean.view(), invstd.view(), grad_x.view(), {}, {}, {}, {}, {}},
          workspace.data());
      results[threads == 3] = {y.values(), mean.values(), invstd.values(), grad_x.values()};
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_P(Norm, TheTeamsSizeChangesNoBitOfGroupNorm) {
  if (!device().is_cpu()) GTEST_SKIP() << "no team";
  const std::pair<Shape, std::int64_t> cases[] = {{{9, 24, 1220}, 8}, {{900, 300, 1}, 2}};
  for (const auto& [shape, groups] : cases) {
    const DType dtype = DType::f64;  // which f64 sums in another order would change
    const Shape part{shape[1]}, statistics{shape[0], groups};
    const Buffer x(device(), dtype, shape, random_values(numel(shape), -3, 3));
    const Buffer g(device(), dtype, shape, random_values(numel(shape), -3, 3, 2));
    const Buffer weight(device(), dtype, part, random_values(shape[1], -2, 2, 3));
    std::vector<std::vector<double>> results[2];
    for (const int threads : {1, 3}) {
      const Scoped team(&ThreadState::num_threads, threads);
      Buffer y(device(), dtype, shape), grad_x(device(), dtype, shape),
          mean(device(), dtype, statistics), invstd(device(), dtype, statistics),
          grad_weight(device(), dtype, part), grad_bias(device(), dtype, part);
      const DeviceBytes workspace(device(),
                                  kernels().norm.group_norm_backward_workspace_bytes(x.view()));
      kernels().norm.group_norm(
          stream,
          {1e-5, groups, x.view(), weight.view(), {}, y.view(), mean.view(), invstd.view()});
      kernels().norm.group_norm_backward(
          stream,
          {groups, g.view(), x.view(), weight.view(), mean.view(), invstd.view(), grad_x.view(),
           grad_weight.view(), grad_bias.view()},
          workspace.data());
      results[threads == 3] = {y.values(),      mean.values(),        invstd.values(),
                               grad_x.values(), grad_weight.values(), grad_bias.values()};
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

}  // namespace
}  // namespace weft::testing
