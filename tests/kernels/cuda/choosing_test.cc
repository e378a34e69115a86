// How plans are chosen: by the device's time, and by what is requested from the libraries. All
// tests except the last need a GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cuda/libraries.h"
#include "weft/kernels/cuda/runtime.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/tests/core/expect_error.h"

namespace weft::cuda {
namespace {

class Lines final : public LogSink {
 public:
  void write(Level, std::string_view message) override { lines.emplace_back(message); }
  std::vector<std::string> lines;
};

class ChoosingPlans : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count(DeviceType::cuda) == 0) GTEST_SKIP() << "needs a GPU";
    stream = cuda_runtime().new_stream(0);
  }
  Stream stream;
};

// A host this slow takes 0.3 ms per run; the device needs a few microseconds for 4 KiB.
TEST_F(ChoosingPlans, TimesAreTheDevicesNotTheHosts) {
  constexpr std::size_t kBytes = 4096;
  constexpr std::chrono::milliseconds kHost{2};  // for a run that takes the device microseconds
  const TrialMemory memory(stream, kBytes);
  int runs = 0;
  const double ms = time_ms(stream, [&] {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < kHost) {
    }
    cuda_runtime().fill_zero(memory.data(), kBytes, stream);
    ++runs;
    return true;
  });
  EXPECT_GT(ms, 0);
  EXPECT_LT(ms, 0.5);  // an emulated device is a thread on a busy machine
  EXPECT_GT(runs, 10);
}

TEST_F(ChoosingPlans, WhatDoesNotWorkTakesForever) {
  int left = 2;
  EXPECT_GT(time_ms(stream, [&] { return left-- > 0; }), 1e300);
}

TEST(CudaLibraries, WhatIsMissingIsNamed) {
  const Library none("libweft_nowhere.so.1");
  EXPECT_NE(none.error().find("libweft_nowhere.so.1"), std::string::npos) << none.error();
  EXPECT_WEFT_ERROR(none.find("f"), Library, "[f] libweft_nowhere.so.1");
  const Library here("libc.so.6");
  EXPECT_EQ(here.error(), "");
  EXPECT_NE(here.find("abs"), nullptr);
  EXPECT_WEFT_ERROR(here.find("weft_nothing"), Library, "undefined symbol: weft_nothing");
}

}  // namespace
}  // namespace weft::cuda
