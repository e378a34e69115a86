// Every way to convolve, with three passes each, against plain loops in f64.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string_view>
#include <thread>

#include "weft/tests/core/heap_count.h"
#include "weft/tests/kernels/conv_trial.h"
#include "weft/tests/kernels/plans.h"

namespace weft {
namespace {

using Case = testing::ConvCase;
using Problem = testing::ConvTrial;

class Conv : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    // TF32 keeps 10 bits of the mantissa: fast, but outside f32's bounds.
    thread_state().allow_tf32_conv = false;
  }
  void TearDown() override { thread_state().allow_tf32_conv = true; }

  const Conv2dKernels& conv() const { return kernels().conv; }

  const Scoped<bool> timed{&ThreadState::benchmark, true};  // so that more kernels are used

  /// cuDNN's timed plans may be Winograd's or Fourier's, and may not be bitwise repeatable.
  bool may_transform() const { return !device().is_cpu() && !thread_state().deterministic; }

  void check(const Problem& problem, bool exact) {
    testing::for_each_plan<Conv2dPlan, Conv2dArgs>(
        device(), conv().plan, problem.args, [&](const Conv2dPlan& plan) {
          if (device().is_cpu() && problem.args.pass != ConvPass::backward_weights) {
            EXPECT_TRUE(problem.asked_for(plan.output_format));
          }
          problem.expect(problem.run(stream, conv(), plan), exact,
                         may_transform() ? problem.transform_bound() : 0);
        });
  }

  void check_all(const Case& c, std::initializer_list<DType> dtypes, bool exact) {
    for (const DType dtype : dtypes) {
      for (const ConvPass pass :
           {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
        for (const MemoryFormat xf : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
          for (const MemoryFormat yf : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
            for (const bool bias : {false, true}) {
              if (bias && pass == ConvPass::backward_data) continue;
              // Without bias only in one layout: nothing else in the kernel changes. bf16, whose
              // kernels take long to generate, in two layouts.
              const bool plain = xf == MemoryFormat::nchw && yf == MemoryFormat::nchw;
              if (!bias && pass != ConvPass::backward_data && !plain) continue;
              if (dtype == DType::bf16 && (bias ? xf != yf : plain)) continue;
              SCOPED_TRACE(std::string(c.what) + " " + to_string(dtype) + " pass " +
                           std::to_string(int(pass)) + (xf == MemoryFormat::nhwc ? " x nhwc" : "") +
                           (yf == MemoryFormat::nhwc ? " y nhwc" : "") + (bias ? " bias" : ""));
              // Integers small enough that bf16 nearly always represents every sum (up to 256);
              // otherwise only the bounds are checked.
              const auto whole = [](std::int64_t n, std::uint64_t seed) {
                return testing::whole_values(n, 2, seed);
              };
              const auto real = [](std::int64_t n, std::uint64_t seed) {
                return testing::random_values(n, -1, 1, seed);
              };
              const Problem problem(device(), dtype, c, pass, xf, yf, bias,
                                    exact ? std::function(+whole) : std::function(+real));
              check(problem, exact && dtype != DType::bf16);
            }
          }
        }
      }
    }
  }
};

std::vector<double> real_values(std::int64_t n, std::uint64_t seed) {
  return testing::random_values(n, -1, 1, seed);
}

Case with(Case sizes, const Conv2dParams& params) {
  sizes.params = params;
  return sizes;
}

// groups, dilation, stride, padding and sizes, alone and combined.
const Case kCases[] = {
    {"1 to 8", 2, 1, 9, 8, 8, 3, 3},
    {"1 to 12, padded and dilated", 2, 1, 9, 11, 12, 3, 4, {.padding = {1, 2}, .dilation = {2, 1}}},
    {"1 to 3, mostly padding", 2, 1, 2, 3, 3, 3, 5, {.padding = {2, 4}, .dilation = {1, 2}}},
    {"1 to 8, stride 2", 2, 1, 9, 8, 8, 3, 3, {.stride = {2, 2}}},
    {"8 to 64", 2, 8, 8, 7, 64, 3, 3},
    {"8 to 100", 2, 8, 6, 7, 100, 3, 3},
    {"8 to 16, wide", 2, 8, 5, 26, 16, 3, 3},
    {"odd channels", 2, 3, 7, 6, 5, 3, 2, {.padding = {1, 0}}},
    {"17 to 33, padded", 1, 17, 6, 6, 33, 3, 3, {.padding = {1, 1}}},
    {"1x1", 3, 12, 5, 4, 20, 1, 1},
    {"one pixel", 3, 4, 1, 1, 6, 1, 1},
    {"kernel as large as the image", 2, 4, 3, 5, 8, 3, 5},
    {"stride 2 with a rest", 2, 4, 8, 9, 8, 3, 3, {.stride = {2, 2}, .padding = {1, 1}}},
    {"strides 3 and 1", 2, 2, 11, 6, 3, 2, 3, {.stride = {3, 1}, .padding = {0, 2}}},
    {"dilation", 2, 3, 9, 8, 4, 3, 3, {.padding = {2, 2}, .dilation = {2, 2}}},
    with({"stride and dilation", 1, 2, 11, 12, 4, 3, 2},
         {.stride = {2, 3}, .padding = {2, 1}, .dilation = {2, 3}}),
    {"2 groups", 2, 6, 7, 7, 4, 3, 3, {.padding = {1, 1}, .groups = 2}},
    {"16 groups, depthwise", 2, 16, 6, 6, 16, 3, 3, {.padding = {1, 1}, .groups = 16}},
    {"8 groups of 1 to 2", 1, 8, 6, 6, 16, 3, 3, {.stride = {2, 2}, .groups = 8}},
    {"depthwise, strides 3 and 2, dilations 2 and 3",
     2,
     5,
     19,
     23,
     5,
     3,
     4,
     {.stride = {3, 2}, .padding = {2, 5}, .dilation = {2, 3}, .groups = 5}},
    // 9 and 7 rows are computed as 4 + 4 + 1 and as 4 + 2 + 1, a row as whole vectors and one more.
    {"depthwise, rows of several vectors", 1, 2, 9, 95, 2, 5, 3, {.padding = {2, 1}, .groups = 2}},
    {"depthwise, rows of a vector", 2, 2, 10, 19, 4, 4, 4, {.groups = 2}},
    {"depthwise, rows of a part of a vector",
     2,
     3,
     7,
     5,
     3,
     7,
     3,
     {.padding = {3, 1}, .groups = 3}},
    {"depthwise, two rows of weights", 2, 3, 8, 71, 3, 2, 3, {.groups = 3}},
    {"depthwise, long rows", 2, 3, 1, 301, 6, 1, 4, {.padding = {0, 3}, .groups = 3}},
    {"wide kernel", 1, 2, 5, 24, 3, 1, 19},
    {"transposed 64 to 8", 2, 64, 6, 7, 8, 3, 3, {.transposed = true}},
    {"transposed 8 to 1", 2, 8, 7, 6, 1, 3, 3, {.transposed = true}},
    {"transposed 8 to 1, padded", 2, 8, 7, 6, 1, 3, 3, {.padding = {1, 2}, .transposed = true}},
    {"transposed, odd, padded", 2, 3, 5, 6, 7, 3, 2, {.padding = {1, 1}, .transposed = true}},
    with({"transposed, stride 2, output padding", 2, 4, 5, 4, 6, 3, 3},
         {.stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}, .transposed = true}),
    with({"transposed, uneven", 1, 4, 4, 5, 2, 2, 3},
         {.stride = {3, 2}, .padding = {0, 1}, .output_padding = {2, 0}, .transposed = true}),
    with({"transposed, dilation", 1, 3, 5, 5, 4, 3, 3},
         {.padding = {1, 0}, .dilation = {2, 2}, .transposed = true}),
    with({"transposed, output padding of a stride and more", 2, 3, 4, 5, 4, 3, 2},
         {.stride = {1, 2},
          .padding = {1, 0},
          .dilation = {3, 4},
          .output_padding = {2, 3},
          .transposed = true}),
    with({"transposed, 2 groups", 2, 4, 5, 5, 6, 3, 3},
         {.stride = {2, 2}, .groups = 2, .transposed = true}),
};

TEST_P(Conv, EveryShapeIsExactOnWholeNumbers) {
  for (const Case& c : kCases) check_all(c, {DType::f32, DType::f64, DType::bf16}, true);
}

TEST_P(Conv, RealValuesStayWithinTheRoundingBound) {
  check_all({"8 to 64", 2, 8, 10, 12, 64, 3, 3}, {DType::f32, DType::f64, DType::bf16}, false);
  check_all({"transposed 64 to 8", 2, 64, 8, 9, 8, 3, 3, {.transposed = true}},
            {DType::f32, DType::f64, DType::bf16}, false);
  check_all({"1 to 8", 3, 1, 12, 13, 8, 3, 3}, {DType::f32, DType::f64}, false);
  check_all({"transposed 8 to 1", 3, 8, 12, 13, 1, 3, 3, {.transposed = true}},
            {DType::f32, DType::f64}, false);
  check_all({"5x5, stride 2", 2, 6, 13, 13, 9, 5, 5, {.stride = {2, 2}, .padding = {2, 2}}},
            {DType::f32, DType::f64}, false);
}

// Weights of channels last, alone and with images of channels last.
TEST_P(Conv, WeightsHaveEitherFormat) {
  const Scoped fixed(&ThreadState::deterministic, true);
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const ConvPass pass :
           {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
        for (const MemoryFormat images : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
          SCOPED_TRACE(std::string(c.what) + " " + to_string(dtype) + " pass " +
                       std::to_string(int(pass)) + (images == MemoryFormat::nhwc ? " nhwc" : ""));
          const auto run = [&](MemoryFormat of_w) {
            const Problem problem(device(), dtype, c, pass, images, images,
                                  pass != ConvPass::backward_data, real_values, of_w);
            const PlanRef<Conv2dPlan> plan = conv().plan(problem.args);
            auto got = problem.run(stream, conv(), *plan);
            problem.expect(got, false);
            return got;
          };
          const auto got = run(MemoryFormat::nhwc);
          if (device().is_cpu()) {
            EXPECT_EQ(got, run(MemoryFormat::nchw));
          }
        }
      }
    }
  }
}

TEST_P(Conv, NoImages) {
  Case c{"no images", 0, 3, 6, 6, 4, 3, 3};
  check_all(c, {DType::f32, DType::f64, DType::bf16}, true);
  c.params.transposed = true;
  check_all(c, {DType::f32, DType::f64}, true);
}

TEST_P(Conv, DeterministicRunsAreBitEqual) {
  const Case c{"8 to 24", 4, 8, 12, 12, 24, 3, 3, {.padding = {1, 1}}};
  const auto real = [](std::int64_t n, std::uint64_t seed) {
    return testing::random_values(n, -1, 1, seed);
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const ConvPass pass :
         {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
      const Scoped fixed(&ThreadState::deterministic, true);
      const Problem problem(device(), dtype, c, pass, MemoryFormat::nhwc, MemoryFormat::nhwc,
                            pass != ConvPass::backward_data, real);
      const PlanRef<Conv2dPlan> plan = conv().plan(problem.args);
      const auto first = problem.run(stream, conv(), *plan);
      for (int i = 0; i < 3; ++i) ASSERT_EQ(first, problem.run(stream, conv(), *plan));
      if (device().is_cpu()) {  // also with a new plan
        const int team = static_cast<const cpu::ConvPlan&>(*plan).team;
        const Scoped threads(&ThreadState::num_threads, team);
        for (const auto& candidate : cpu::conv_candidates(problem.args)) {
          if (const auto again = candidate.make()) {
            ASSERT_EQ(first, problem.run(stream, conv(), *again)) << candidate.name;
            break;
          }
        }
      }
    }
  }
}

TEST_P(Conv, PlansAreKeptPerProblemAndLayout) {
  const Case c{"4 to 6", 2, 4, 6, 6, 6, 3, 3};
  const auto whole = [](std::int64_t n, std::uint64_t seed) {
    return testing::whole_values(n, 2, seed);
  };
  const Problem problem(device(), DType::f32, c, ConvPass::forward, MemoryFormat::nchw,
                        MemoryFormat::nchw, false, whole);
  const PlanRef<Conv2dPlan> plan = conv().plan(problem.args);
  const std::vector<double> got = problem.run(stream, conv(), *plan)[0];
  const double bound = may_transform() ? problem.transform_bound() : 0;
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], problem.expected[i], bound);
  Conv2dArgs other = problem.args;
  other.y.strides = channels_last_strides(other.y.shape);
  if (device().is_cpu()) {
    EXPECT_EQ(conv().plan(other)->output_format, MemoryFormat::nhwc);
  }
  other.x.strides = channels_last_strides(other.x.shape);
  EXPECT_NE(plan.get(), conv().plan(other).get());
}

TEST_P(Conv, FindingAPlanAgainTouchesNoHeap) {
  const Case c{"4 to 6", 2, 4, 6, 6, 6, 3, 3};
  const auto whole = [](std::int64_t n, std::uint64_t seed) {
    return testing::whole_values(n, 2, seed);
  };
  const Problem problem(device(), DType::f64, c, ConvPass::forward, MemoryFormat::nchw,
                        MemoryFormat::nchw, false, whole);
  const PlanRef<Conv2dPlan> plan = conv().plan(problem.args);
  const std::int64_t before = testing::heap_count();
  int same = 0;
  for (int i = 0; i < 100; ++i) same += conv().plan(problem.args).get() == plan.get();
  EXPECT_EQ(testing::heap_count(), before);
  EXPECT_EQ(same, 100);
}

// Two threads, one plan, separate workspaces: as in data-parallel training.
TEST_P(Conv, ThreadsShareAPlan) {
  const Case c{"8 to 16", 4, 8, 9, 10, 16, 3, 3};
  const auto real = [](std::int64_t n, std::uint64_t seed) {
    return testing::random_values(n, -1, 1, seed);
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const ConvPass pass :
         {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
      const auto problem = [&](std::uint64_t from) {
        return Problem(device(), dtype, c, pass, MemoryFormat::nchw, MemoryFormat::nhwc,
                       pass != ConvPass::backward_data,
                       [&](std::int64_t n, std::uint64_t seed) { return real(n, from + seed); });
      };
      const Problem first = problem(0), second = problem(10);
      testing::for_each_plan<Conv2dPlan, Conv2dArgs>(
          device(), conv().plan, first.args, [&](const Conv2dPlan& plan) {
            if (may_transform()) return;
            const ThreadState state = thread_state();
            const auto expected_first = first.run(stream, conv(), plan);
            const auto expected_second = second.run(stream, conv(), plan);
            std::atomic<int> differing = 0;
            const auto work = [&](const Problem& mine,
                                  const std::vector<std::vector<double>>& expected) {
              const ThreadStateGuard same(state);
              for (int i = 0; i < 3; ++i) differing += mine.run(stream, conv(), plan) != expected;
            };
            std::thread other(work, std::cref(second), std::cref(expected_second));
            work(first, expected_first);
            other.join();
            EXPECT_EQ(differing, 0);
          });
    }
  }
}

// Values for sums of every kind, also NaN, and -0 alone: the second half of x is 0, and no weight
// is positive.
std::vector<double> signed_values(std::int64_t n, std::uint64_t seed) {
  std::vector<double> values = testing::random_values(n, -1, 1, seed);
  if (seed == 1) std::fill(values.begin() + n / 2, values.end(), 0.0);  // x
  if (seed == 2) {                                                      // w
    for (double& w : values) w = -std::abs(w);
  }
  if (seed == 4 && n > 0) {  // the bias
    values.front() = -0.0;
    values.back() = std::numeric_limits<double>::quiet_NaN();
  }
  return values;
}

void expect_relu(Problem& problem, const Stream& stream, const Conv2dKernels& conv,
                 const Conv2dPlan& plan) {
  problem.args.then = Activation::none;
  const std::vector<double> plain = problem.run(stream, conv, plan)[0];
  problem.args.then = Activation::relu;
  EXPECT_EQ(testing::bits_of(problem.run(stream, conv, plan)[0]),
            testing::bits_of(testing::relu_of(plain)));
}

// A relu in the same pass has the bits of one after it, with every way to convolve.
TEST_P(Conv, ReluInTheSamePass) {
  const Scoped fixed(&ThreadState::deterministic, true);
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const MemoryFormat xf : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
        const MemoryFormat yf = c.k % 2 == 0 ? xf : MemoryFormat::nchw;
        for (const bool bias : {true, false}) {
          SCOPED_TRACE(std::string(c.what) + " " + to_string(dtype) + (bias ? " bias" : ""));
          Problem problem(device(), dtype, c, ConvPass::forward, xf, yf, bias, signed_values);
          testing::for_each_plan<Conv2dPlan, Conv2dArgs>(
              device(), conv().plan, problem.args, [&](const Conv2dPlan& plan) {
                if (!may_transform()) expect_relu(problem, stream, conv(), plan);
              });
        }
      }
    }
  }
}

// Otherwise a layer with a relu could use another algorithm than one without.
TEST_P(Conv, ReluNeedsNoOtherPlan) {
  Problem problem(device(), DType::f32, kCases[4], ConvPass::forward, MemoryFormat::nhwc,
                  MemoryFormat::nhwc, true, signed_values);
  const PlanRef<Conv2dPlan> plan = conv().plan(problem.args);
  problem.args.then = Activation::relu;
  EXPECT_EQ(conv().plan(problem.args).get(), plan.get());
}

struct ReluBackward {
  std::vector<double> before, bias;
};

/// By the entry of a table, on a device. In place: `before` is grad_y's memory. Misaligned: all
/// images begin an element behind an aligned address.
ReluBackward relu_backward(const Conv2dKernels& conv, const Stream& stream, DType dtype,
                           const Shape& shape, MemoryFormat grad_format, MemoryFormat format,
                           const std::vector<double>& grad_y, const std::vector<double>& y,
                           bool in_place = false, bool misaligned = false) {
  const Device device = stream.device;
  const Shape flat{numel(shape) + misaligned};
  const auto strides = format_strides(shape, format);
  testing::Buffer grads(device, dtype, flat), images(device, dtype, flat), out(device, dtype, flat);
  const auto view = [&](const testing::Buffer& buffer, MemoryFormat f) {
    View v{buffer.view().as<char>() + misaligned * size_of(dtype), dtype, shape,
           format_strides(shape, f)};
    return v;
  };
  const auto set = [&](testing::Buffer& buffer, MemoryFormat f, const std::vector<double>& values) {
    std::vector<double> in_memory(static_cast<std::size_t>(flat[0]));
    const auto offsets = testing::Buffer::element_offsets(shape, format_strides(shape, f));
    for (std::size_t i = 0; i < values.size(); ++i) {
      in_memory[static_cast<std::size_t>(offsets[i] + misaligned)] = values[i];
    }
    buffer.set(in_memory);
  };
  set(grads, grad_format, grad_y);
  set(images, format, y);
  set(out, format, std::vector<double>(grad_y.size(), 7));
  testing::Buffer bias(device, dtype, {shape[1]});
  testing::Buffer& before = in_place ? grads : out;
  const ReluBackwardArgs args{view(grads, grad_format), view(images, format), view(before, format),
                              bias.view()};
  const testing::DeviceBytes workspace(device, conv.relu_backward_workspace_bytes(args));
  conv.relu_backward(stream, args, workspace.data());
  ReluBackward result{{}, bias.values()};
  const std::vector<double> in_memory = before.values();
  for (const std::int64_t at : testing::Buffer::element_offsets(shape, strides)) {
    result.before.push_back(in_memory[static_cast<std::size_t>(at + misaligned)]);
  }
  return result;
}

/// Values of each kind: y of both signs, zeros, -0, NaN; a NaN in the gradient where it stops.
std::pair<std::vector<double>, std::vector<double>> relu_values(DType dtype, std::int64_t n) {
  std::vector<double> grad_y = testing::rounded(dtype, testing::random_values(n, -1, 2, 1));
  std::vector<double> y = testing::random_values(n, -1, 1, 2);
  for (std::size_t i = 0; i < y.size(); i += 3) y[i] = i % 2 ? -0.0 : 0.0;
  if (n > 7) y[7] = testing::kNaN;  // the gradient passes
  if (n > 100) {
    grad_y[100] = testing::kNaN;
    y[100] = -1;
  }
  return {std::move(grad_y), std::move(y)};
}

/// `expected` was computed in f64 from the same values, which `dtype` represents.
void expect_relu_backward(const ReluBackward& found, const ReluBackward& expected, DType dtype,
                          const Shape& shape) {
  EXPECT_EQ(testing::bits_of(found.before), testing::bits_of(expected.before));
  std::vector<double> magnitude(expected.bias.size());
  for (std::size_t i = 0; i < expected.before.size(); ++i) {
    magnitude[i / static_cast<std::size_t>(shape[2] * shape[3]) % magnitude.size()] +=
        std::abs(expected.before[i]);
  }
  // Sums in f32 run over at most 32 values, the others, and those of the definition, in f64.
  const double n = static_cast<double>(shape[0] * shape[2] * shape[3]);
  const double pieces = 2 * n * 0x1p-53 + (dtype == DType::f64 ? 0 : 32 * 0x1p-24);
  for (std::size_t k = 0; k < expected.bias.size(); ++k) {
    const double bound =
        pieces * magnitude[k] + testing::unit_roundoff(dtype) * std::abs(expected.bias[k]) * 1.01;
    EXPECT_NEAR(found.bias[k], expected.bias[k], bound) << "channel " << k;
  }
}

constexpr MemoryFormat kFormats[] = {MemoryFormat::nchw, MemoryFormat::nhwc};

// A relu's gradient and its sums over each channel, from each layout to each: no pixels, one, a
// few, and so many that several blocks share a channel.
TEST_P(Conv, ReluBackwardWithSums) {
  if (!conv().relu_backward) GTEST_SKIP() << device() << " makes two passes";
  const Conv2dKernels& definition = reference_kernels().conv;
  const Stream host = current_stream(Device());
  const Shape shapes[] = {{0, 3, 2, 2},   {2, 8, 0, 3},   {1, 1, 1, 1},   {1, 130, 1, 1},
                          {7, 3, 1, 1},   {1, 8, 7, 1},   {1, 64, 1, 7},  {3, 130, 5, 4},
                          {2, 1, 80, 90}, {3, 3, 60, 60}, {2, 8, 71, 60}, {5, 64, 20, 23}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const auto [grad_y, y] = relu_values(dtype, numel(shape));
      for (const MemoryFormat from : kFormats) {
        for (const MemoryFormat to : kFormats) {
          SCOPED_TRACE(to_string(shape) + " " + to_string(dtype) +
                       (from == MemoryFormat::nhwc ? " from nhwc" : "") +
                       (to == MemoryFormat::nhwc ? " to nhwc" : ""));
          const auto run = [&](bool in_place, bool misaligned) {
            return relu_backward(conv(), stream, dtype, shape, from, to, grad_y, y, in_place,
                                 misaligned);
          };
          const ReluBackward expected =
              relu_backward(definition, host, DType::f64, shape, from, to, grad_y, y);
          const ReluBackward found = run(false, false);
          expect_relu_backward(found, expected, dtype, shape);
          expect_relu_backward(run(false, /*misaligned=*/true), expected, dtype, shape);
          const ReluBackward again = run(/*in_place=*/from == to, false);
          EXPECT_EQ(testing::bits_of(again.before), testing::bits_of(found.before));
          EXPECT_EQ(testing::bits_of(again.bias), testing::bits_of(found.bias));
        }
      }
    }
  }
}

// A NaN that passes is in its channel's sum, and in no other.
TEST_P(Conv, ReluBackwardSumsANaN) {
  if (!conv().relu_backward) GTEST_SKIP() << device() << " makes two passes";
  const Shape shape{2, 8, 30, 40};
  std::vector<double> grad_y(static_cast<std::size_t>(numel(shape)), 1);
  grad_y[5 * 1200 + 77] = testing::kNaN;
  const std::vector<double> y(grad_y.size(), 1);
  std::vector<double> sums(8, 2400);
  sums[5] = testing::kNaN;
  for (const MemoryFormat format : kFormats) {
    ReluBackward found =
        relu_backward(conv(), stream, DType::f32, shape, format, format, grad_y, y);
    for (double& v : found.bias) v = std::isnan(v) ? testing::kNaN : v;  // of any bits
    EXPECT_EQ(testing::bits_of(found.bias), testing::bits_of(sums));
  }
}

WEFT_ON_EVERY_DEVICE(Conv);

// Here f32 may be less exact: then Winograd's algorithm is a candidate.
class Winograd : public ::testing::Test {
 protected:
  std::unique_ptr<cpu::ConvPlan> plan(const Conv2dArgs& args, std::string_view name = "winograd") {
    for (const auto& candidate : cpu::conv_candidates(args)) {
      if (candidate.name == name) return candidate.make();
    }
    return nullptr;
  }

  static Problem problem(const Case& c, ConvPass pass, bool bias, bool whole) {
    const auto values = [whole](std::int64_t n, std::uint64_t seed) {
      return whole ? testing::whole_values(n, 2, seed) : testing::random_values(n, -1, 1, seed);
    };
    return {Device(), DType::f32, c, pass, MemoryFormat::nhwc, MemoryFormat::nhwc, bias, values};
  }

  const Stream stream = current_stream(Device());
  const Conv2dKernels conv = cpu::conv_kernels();
};

const Case kWinogradCases[] = {
    {"3x3", 3, 16, 9, 11, 32, 3, 3, {.padding = {1, 1}}},
    {"3x3, no padding", 2, 48, 6, 7, 16, 3, 3},
    {"3x3, wide padding", 1, 16, 3, 2, 16, 3, 3, {.padding = {3, 5}}},
    {"3x3, fewer tiles than threads", 8, 16, 4, 4, 16, 3, 3, {.padding = {1, 1}}},
    {"3x3, many tiles", 7, 16, 33, 31, 16, 3, 3, {.padding = {1, 1}}},
    {"3x3, many channels", 1, 208, 4, 4, 112, 3, 3, {.padding = {1, 1}}},
    {"5x5", 2, 32, 8, 9, 80, 5, 5, {.padding = {2, 2}}},
    {"5x5, no padding", 2, 16, 5, 6, 16, 5, 5},
    {"3x3, dilated", 2, 16, 11, 8, 32, 3, 3, {.padding = {2, 3}, .dilation = {2, 3}}},
    {"3x3, dilated beyond the image",
     3,
     32,
     4,
     3,
     16,
     3,
     3,
     {.padding = {7, 1}, .dilation = {7, 1}}},
    {"3x3, dilated, many tiles", 3, 16, 33, 31, 16, 3, 3, {.padding = {2, 2}, .dilation = {2, 2}}},
    {"5x5, dilated", 1, 16, 9, 12, 32, 5, 5, {.padding = {1, 4}, .dilation = {1, 2}}},
    {"4x4, stride 2", 2, 16, 8, 10, 32, 4, 4, {.stride = {2, 2}, .padding = {1, 1}}},
    {"4x4, stride 2, odd", 2, 32, 9, 7, 16, 4, 4, {.stride = {2, 2}, .padding = {2, 1}}},
    {"4x4, stride 2, no padding", 3, 16, 5, 12, 16, 4, 4, {.stride = {2, 2}}},
    {"4x4, stride 2, wide padding", 1, 16, 2, 1, 16, 4, 4, {.stride = {2, 2}, .padding = {3, 5}}},
    {"transposed 3x3", 2, 16, 5, 6, 32, 3, 3, {.padding = {1, 1}, .transposed = true}},
    with({"transposed 3x3, dilated", 2, 16, 5, 6, 32, 3, 3},
         {.padding = {1, 2}, .dilation = {2, 3}, .transposed = true}),
    with({"transposed 4x4, stride 2", 2, 32, 4, 5, 16, 4, 4},
         {.stride = {2, 2}, .padding = {1, 1}, .transposed = true}),
    with({"transposed 4x4, stride 2, output padding", 2, 16, 3, 4, 16, 4, 4},
         {.stride = {2, 2}, .padding = {2, 0}, .output_padding = {1, 1}, .transposed = true}),
};

TEST_F(Winograd, ReluInTheSamePass) {
  for (const Case& c : kWinogradCases) {
    SCOPED_TRACE(c.what);
    Problem problem(Device(), DType::f32, c, ConvPass::forward, MemoryFormat::nhwc,
                    MemoryFormat::nhwc, true, signed_values);
    for (const auto level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512}) {
      if (level > best_simd_level()) break;
      set_simd_level(level);
      for (const int team : {1, 3}) {
        const Scoped threads(&ThreadState::num_threads, team);
        expect_relu(problem, stream, conv, *plan(problem.args));
      }
    }
  }
  set_simd_level(best_simd_level());
}

// Integers: there the bound is far below 1, so a wrong index is detected.
TEST_F(Winograd, StaysWithinItsBound) {
  for (const Case& c : kWinogradCases) {
    for (const ConvPass pass :
         {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
      for (const bool whole : {true, false}) {
        const bool bias = whole && pass != ConvPass::backward_data;
        const Problem problem = this->problem(c, pass, bias, whole);
        const double bound = problem.transform_bound();
        ASSERT_LT(whole ? bound : 0, 0.25) << c.what;
        for (const auto level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512}) {
          if (level > best_simd_level()) break;
          set_simd_level(level);
          for (const int team : {1, 2, 3, 16}) {
            const Scoped threads(&ThreadState::num_threads, team);
            SCOPED_TRACE(detail::concat(c.what, ", pass ", int(pass), ", team of ", team,
                                        ", SIMD level ", int(level)));
            const auto made = plan(problem.args);
            ASSERT_TRUE(made);
            const auto got = problem.run(stream, conv, *made);
            ASSERT_EQ(got, problem.run(stream, conv, *made));
            problem.expect(got, true, bound);
          }
        }
        set_simd_level(best_simd_level());
      }
    }
  }
}

// Measured root mean square errors were 1.8 to 4.5 times those of weft's own loops; 8 leaves room
// for another order of summation.
TEST_F(Winograd, RoundsAFewTimesAsMuchAsTheDefinition) {
  const Case cases[] = {{"3x3", 1, 64, 12, 12, 32, 3, 3, {.padding = {1, 1}}},
                        {"5x5", 1, 64, 8, 8, 32, 5, 5, {.padding = {2, 2}}},
                        {"4x4", 1, 64, 16, 16, 32, 4, 4, {.stride = {2, 2}, .padding = {1, 1}}}};
  for (const Case& c : cases) {
    for (const ConvPass pass :
         {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
      const Problem problem = this->problem(c, pass, false, false);
      const auto error = [&](const char* name) {
        double sum = 0;
        const auto got = problem.run(stream, conv, *plan(problem.args, name))[0];
        for (std::size_t i = 0; i < got.size(); ++i) {
          sum += (got[i] - problem.expected[i]) * (got[i] - problem.expected[i]);
        }
        return std::sqrt(sum / double(got.size()));
      };
      EXPECT_LT(error("winograd") / error("plain"), 8) << c.what << ", pass " << int(pass);
    }
  }
}

TEST_F(Winograd, IsOfferedOnlyWhereItMayBe) {
  const Case c{"3x3", 1, 16, 6, 6, 16, 3, 3, {.padding = {1, 1}}};
  const auto offered = [&](const Case& which) {
    return plan(problem(which, ConvPass::forward, false, true).args) != nullptr;
  };
  EXPECT_TRUE(offered(c));
  Case other = c;
  other.params.stride = {2, 2};
  EXPECT_FALSE(offered(other));
  other = c;
  other.params.padding = other.params.dilation = {2, 2};
  EXPECT_TRUE(offered(other));
  other.r = other.s = 4, other.params.stride = {2, 2}, other.h = other.w = 9;
  EXPECT_FALSE(offered(other));
  other = c;
  other.params.groups = 4;
  EXPECT_FALSE(offered(other));
  other = c;
  other.c = 24;
  EXPECT_FALSE(offered(other));
  other = c;
  other.s = 5;
  EXPECT_FALSE(offered(other));
  other = c;
  other.n = 0;
  EXPECT_FALSE(offered(other));

  const Problem exact = problem(c, ConvPass::forward, false, true);
  Conv2dArgs args = exact.args;
  args.x.strides = contiguous_strides(args.x.shape);
  EXPECT_FALSE(plan(args));
  const PlanRef<Conv2dPlan> fast = conv.plan(exact.args);
  const Scoped ieee(&ThreadState::allow_tf32_conv, false);
  EXPECT_FALSE(plan(exact.args));
  const PlanRef<Conv2dPlan> kept = conv.plan(exact.args);
  EXPECT_NE(kept.get(), fast.get());  // the plan of the other setting may be Winograd's
  EXPECT_EQ(exact.run(stream, conv, *kept)[0], exact.expected);
}

}  // namespace
}  // namespace weft
