// A cuDNN that offers algorithms but refuses to run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

// emulator/cudnn.cc
extern "C" void weft_emulated_refuse_convolutions(bool on);

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
  ~Refusals() override { weft_emulated_refuse_convolutions(false); }

  /// Convolves ones, with a bias of 100: each of the 4x4 sums is 9 * channels + 100.
  static Tensor convolve(std::int64_t channels, const Device& device) {
    const TensorOptions there(DType::f32, device);
    return raw::conv2d(ones({1, channels, 6, 6}, there), ones({4, channels, 3, 3}, there),
                       full({4}, 100, there), {});
  }
  static void expect_right(const Tensor& y, std::int64_t channels) {
    EXPECT_EQ(testing::values_of(y.to(Device())),
              std::vector<double>(4 * 4 * 4, 9.0 * static_cast<double>(channels) + 100));
  }

  static constexpr Device kDevice{DeviceType::cuda, 0};
  static constexpr const char* kWarning = "weft's own loop is slow";
  Lines log;
  const Scoped<LogSink*> logging{&ThreadState::log, &log};
};

TEST_F(Refusals, OfABiasThatWasToBeAdded) {
  const Scoped explain(&ThreadState::log_perf, true);
  const Scoped timed(&ThreadState::benchmark, true);
  // Searches until timing prefers a candidate that adds the bias itself.
  std::int64_t channels = 0;
  do {
    log.lines.clear();
    ++channels;
    expect_right(convolve(channels, kDevice), channels);
    ASSERT_LT(channels, 50);
  } while (log.count(".bias (timed)") == 0);

  weft_emulated_refuse_convolutions(true);
  expect_right(convolve(channels, kDevice), channels);
  expect_right(convolve(channels, kDevice), channels);
  EXPECT_EQ(log.count(kWarning), 1);
}

TEST_F(Refusals, OfAllCandidates) {
  weft_emulated_refuse_convolutions(true);
  expect_right(convolve(60, kDevice), 60);
  EXPECT_EQ(log.count(kWarning), 1);
  const Scoped rule(&ThreadState::deterministic, true);
  expect_right(convolve(60, kDevice), 60);
  EXPECT_EQ(log.count("cuDNN has no deterministic algorithm"), 1);
}

}  // namespace
}  // namespace weft
