// A cuDNN that makes plans but refuses to run them, and the names of the kernels that run.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

// emulator/cudnn.cc
constexpr int kNotSupported = 3000, kNoMemory = 4004;  // of cudnnStatus_t
extern "C" void weft_emulated_refuse(bool (*which)(int engine, std::int64_t workspace, bool relu),
                                     int status = kNotSupported);

namespace weft {
namespace {

class Lines final : public LogSink {
 public:
  void write(Level, std::string_view message) override { lines.emplace_back(message); }
  auto count(const std::string& part) const {
    return std::ranges::count_if(
        lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
  std::vector<std::string> lines;
};

class Refusals : public ::testing::Test {
 protected:
  ~Refusals() override { refuse_none(); }

  static void refuse_none() {
    weft_emulated_refuse([](int, std::int64_t, bool) { return false; });
  }
  static void refuse_engine(int engine) {
    static int refused;
    refused = engine;
    weft_emulated_refuse([](int e, std::int64_t, bool) { return e == refused; });
  }

  /// Convolves ones, with a bias of 100: each of the 4x4 sums is 9 * channels + 100.
  static Tensor convolve(std::int64_t channels, const Device& device,
                         Activation then = Activation::none) {
    const TensorOptions there(DType::f32, device);
    return raw::conv2d(ones({1, channels, 6, 6}, there), ones({4, channels, 3, 3}, there),
                       full({4}, 100, there), {}, then);
  }
  static void expect_right(const Tensor& y, std::int64_t channels) {
    EXPECT_EQ(testing::values_of(y.to(Device())),
              std::vector<double>(4 * 4 * 4, 9.0 * static_cast<double>(channels) + 100));
  }

  /// Searches from so many channels on until timing prefers a plan that adds the bias itself.
  std::int64_t channels_with_bias(std::int64_t channels) {
    const Scoped explain(&ThreadState::log_perf, true);
    for (const std::int64_t end = channels + 50; channels < end; ++channels) {
      log.lines.clear();
      expect_right(convolve(channels, kDevice), channels);
      if (log.count(".bias (timed)") > 0) return channels;
    }
    ADD_FAILURE() << "none";
    return channels;
  }

  static constexpr Device kDevice{DeviceType::cuda, 0};
  static constexpr const char* kWarning = "cuDNN refuses to run its own plan";
  Lines log;
  const Scoped<LogSink*> logging{&ThreadState::log, &log};
};

/// The engine of the plan that the last line of a log names as chosen.
int chosen_engine(const Lines& log) {
  const std::string& line = log.lines.back();
  const auto at = line.find(".e", line.find("-> "));
  return at == std::string::npos ? -1 : std::stoi(line.substr(at + 2));
}

/// How many plans of these names have a time in a line of the log.
auto times_of(const std::string& names, const std::string& line) {
  const std::regex timed(names + R"([\d.e+-]+ ms)");
  return std::distance(std::sregex_iterator(line.begin(), line.end(), timed), {});
}

TEST_F(Refusals, OfABiasThatWasToBeAdded) {
  const Scoped timed(&ThreadState::benchmark, true);
  const std::int64_t channels = channels_with_bias(1);
  refuse_engine(chosen_engine(log));
  expect_right(convolve(channels, kDevice), channels);
  const auto warnings = log.count(kWarning);
  EXPECT_GE(warnings, 1);
  expect_right(convolve(channels, kDevice), channels);
  EXPECT_EQ(log.count(kWarning), warnings) << "what took its place stays";
}

// Without timing, the first plan by cuDNN's estimate runs. The plans behind it may use the same
// engine.
TEST_F(Refusals, OfTheFirstByEstimate) {
  const Scoped rule(&ThreadState::deterministic, true);
  const Scoped explain(&ThreadState::log_perf, true);
  expect_right(convolve(59, kDevice), 59);
  refuse_engine(chosen_engine(log));
  expect_right(convolve(59, kDevice), 59);
  const auto warnings = log.count(kWarning);
  EXPECT_GE(warnings, 1);
  expect_right(convolve(59, kDevice), 59);
  EXPECT_EQ(log.count(kWarning), warnings);
}

TEST_F(Refusals, OfAllPlans) {
  weft_emulated_refuse([](int, std::int64_t, bool) { return true; });
  EXPECT_WEFT_ERROR(convolve(60, kDevice), Unsupported,
                    "cuDNN runs none of its plans for forward: big [1,60,6,6]");
  refuse_none();
  expect_right(convolve(60, kDevice), 60);  // begins anew
}

// The caller has been asked for no memory then, but those that are left need some.
TEST_F(Refusals, OfAllPlansWithoutWorkspace) {
  const Scoped rule(&ThreadState::deterministic, true);
  const Scoped ieee(&ThreadState::allow_tf32_conv, false);
  const Scoped explain(&ThreadState::log_perf, true);
  expect_right(convolve(63, kDevice), 63);
  ASSERT_EQ(chosen_engine(log), 28) << "which has no workspace";
  weft_emulated_refuse([](int, std::int64_t workspace, bool) { return workspace == 0; });
  expect_right(convolve(63, kDevice), 63);
  const auto warnings = log.count(kWarning);
  EXPECT_GE(warnings, 1);
  Tensor y;
  graph::Step step = graph::capture(kDevice, [&] { y = convolve(63, kDevice); });
  for (int i = 0; i < 3; ++i) {
    step();
    expect_right(y, 63);
  }
  EXPECT_EQ(log.count(kWarning), warnings);
}

// The heuristics list plans that need memory before the other one that needs none.
TEST_F(Refusals, AreFollowedByAPlanThatNeedsNoMoreMemory) {
  const Scoped rule(&ThreadState::deterministic, true);
  const Scoped ieee(&ThreadState::allow_tf32_conv, false);
  const Scoped explain(&ThreadState::log_perf, true);
  expect_right(convolve(66, kDevice), 66);
  ASSERT_EQ(chosen_engine(log), 28) << "which has no workspace";
  weft_emulated_refuse(
      [](int engine, std::int64_t workspace, bool) { return engine == 28 || workspace > 0; });
  expect_right(convolve(66, kDevice), 66);
  EXPECT_EQ(log.count(kWarning), 1) << "of engine 28 alone";
}

// What is timed are the first that can be made, of all that the library lists; the rest stands by.
TEST_F(Refusals, OfAllThatWouldBeTimed) {
  expect_right(convolve(61, kDevice), 61);
  weft_emulated_refuse([](int engine, std::int64_t, bool) { return engine != 7; });
  expect_right(convolve(61, kDevice), 61);
  const auto warnings = log.count(kWarning);
  EXPECT_GE(warnings, 10) << "the heuristics list engine 7 late";
  expect_right(convolve(61, kDevice), 61);
  EXPECT_EQ(log.count(kWarning), warnings);
}

TEST_F(Refusals, ToMakeAPlanAreNotAmongWhatIsTimed) {
  const Scoped explain(&ThreadState::log_perf, true);
  const Scoped timed(&ThreadState::benchmark, true);
  expect_right(convolve(62, kDevice), 62);
  // Of engine 67 without a bias the third variant is refused, so the fifth is timed.
  const std::string& line = log.lines.back();
  EXPECT_EQ(times_of(R"(nchw\.e67\.[=.\d]+ )", line), 4) << line;
  EXPECT_EQ(times_of(R"(nchw\.e67\.[=.\d]+\.bias )", line), 2) << line;
}

TEST_F(Refusals, WhileTimedAreToldToo) {
  const Scoped timed(&ThreadState::benchmark, true);
  refuse_engine(67);
  expect_right(convolve(64, kDevice), 64);
  const auto warnings = log.count(kWarning);
  EXPECT_GE(warnings, 4);
  EXPECT_EQ(log.count(".e67."), warnings);
  expect_right(convolve(64, kDevice), 64);
  EXPECT_EQ(log.count(kWarning), warnings);
}

TEST_F(Refusals, OfAReluBehindABias) {
  const Scoped timed(&ThreadState::benchmark, true);
  for (const bool in_trial : {true, false}) {
    SCOPED_TRACE(in_trial ? "in its trial" : "afterwards");
    refuse_none();
    const std::int64_t channels = channels_with_bias(in_trial ? 100 : 200);
    if (!in_trial) expect_right(convolve(channels, kDevice, Activation::relu), channels);
    EXPECT_EQ(log.count(kWarning), 0);
    weft_emulated_refuse([](int, std::int64_t, bool relu) { return relu; });
    for (int i = 0; i < 2; ++i) {
      expect_right(convolve(channels, kDevice, Activation::relu), channels);
      EXPECT_EQ(log.count(kWarning), 1);
      EXPECT_EQ(log.count(".bias.relu"), 1);
    }
  }
}

TEST_F(Refusals, OfAReluAreNotFailuresOfItsTrial) {
  const Scoped timed(&ThreadState::benchmark, true);
  const std::int64_t channels = channels_with_bias(300);
  const auto of_relu = [](int, std::int64_t, bool relu) { return relu; };
  const auto convolve_with_relu = [&] {
    expect_right(convolve(channels, kDevice, Activation::relu), channels);
  };
  weft_emulated_refuse(of_relu, kNoMemory);
  convolve_with_relu();
  EXPECT_EQ(log.count(kWarning), 0);
  refuse_none();
  convolve_with_relu();
  weft_emulated_refuse(of_relu);
  convolve_with_relu();
  EXPECT_EQ(log.count(".bias.relu"), 1) << "the second trial showed that it leaves a NaN";
}

// A library may do what is forbidden while a stream records, and it may not notice that itself.
TEST(CaptureRefusals, NameTheOperationAndHowToDoWithout) {
  const Device device(DeviceType::cuda, 0);
  const Tensor x = ones({4, 4}, {DType::f32, device});
  const auto step_with = [&](bool before) {
    return graph::capture(device, [&x, before] {
      const bool forbidden = thread_state().capture != nullptr;
      if (forbidden && before) cudaDeviceSynchronize();
      raw::matmul(x, x);
      if (forbidden && !before) cudaDeviceSynchronize();
    });
  };
  graph::Step inside = step_with(true), after = step_with(false);
  inside(), after();
  EXPECT_WEFT_ERROR(inside(), Library, "in matmul of a captured step (--no-graph: weft's programs");
  EXPECT_WEFT_ERROR(after(), Cuda, "in matmul of a captured step (--no-graph: weft's programs");
}

using KernelNames = Refusals;

// Those of weft's own kernels, which make the factors and add the bias, are of no interest.
TEST_F(KernelNames, AreTheLibrarysInACapturedStep) {
  const Scoped rule(&ThreadState::deterministic, true);  // adds the bias by itself
  const Scoped explain(&ThreadState::log_perf, true);
  expect_right(convolve(69, kDevice), 69);
  const int chosen = chosen_engine(log);
  EXPECT_EQ(log.count(" runs "), 0) << "outside a recording kernels have no names";
  Tensor y;
  graph::Step step = graph::capture(kDevice, [&] { y = convolve(69, kDevice); });
  for (int i = 0; i < 5; ++i) {
    step();
    expect_right(y, 69);
  }
  EXPECT_EQ(log.count(" runs "), 1);
  const std::string plan = ".e" + std::to_string(chosen) + "[^ ]* runs sm90_kernel_of_a_library";
  EXPECT_TRUE(std::ranges::any_of(log.lines, [&](const std::string& line) {
    return std::regex_match(line, std::regex("perf: conv2d forward: .*" + plan));
  }));
}

}  // namespace
}  // namespace weft
