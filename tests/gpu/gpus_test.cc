// Three emulated GPUs; the build has no code for the first: it is 7.5, and the code is for 8.0 and
// later.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

extern "C" unsigned weft_emulated_contexts();

namespace weft {
namespace {

class Warnings final : public LogSink {
 public:
  void write(Level level, std::string_view message) override {
    if (level == Level::warning) lines.emplace_back(message);
  }
  std::vector<std::string> lines;
};

constexpr const char* kWhy =
    "GPU 0 of compute capability 7.5 is not used: this weft has code for 8.0 and all from 8.0 on; "
    "build it with --arch 75,80,90, as in ./weft run EXAMPLE --arch 75,80,90";

// These run in this order: the first one counts the devices.
TEST(GpusWithoutCode, AreNotCounted) {
  Warnings log;
  const Scoped<LogSink*> logging(&ThreadState::log, &log);
  EXPECT_EQ(device_count(DeviceType::cuda), 2);
  EXPECT_EQ(device_count(DeviceType::cuda), 2);
  EXPECT_EQ(log.lines, std::vector<std::string>{kWhy});
  EXPECT_WEFT_ERROR(runtime(Device("cuda:2")), Device,
                    std::string("[cuda:2] no such device: 2 devices are visible; ") + kWhy);
}

TEST(GpusWithoutCode, LeaveTheirNumbersToTheOthers) {
  const Device first("cuda:0"), second("cuda:1");
  for (const Device device : {first, second}) {
    const TensorOptions there(DType::f32, device);
    const Tensor x = testing::some({2, 3, 6, 6}, DType::f32);
    const Tensor w = testing::some({4, 3, 3, 3}, DType::f32);
    // Timed, in memory of that device, while the thread's current device is another one.
    EXPECT_TRUE(testing::near_values(raw::conv2d(x.to(device), w.to(device), {}, {}).to(Device()),
                                     testing::values_of(raw::conv2d(x, w, {}, {})),
                                     1e-2));  // in TF32
    EXPECT_EQ(
        testing::values_of(raw::matmul(ones({5, 7}, there), full({7, 3}, 2, there)).to(Device())),
        std::vector<double>(15, 14));
    EXPECT_TRUE(Storage::allocate_pinned(100)->pinned());
    runtime(device).synchronize_device(device.index);
  }
  const Tensor there = full({1000}, 3, {DType::f32, first}).to(second).add(1);
  EXPECT_EQ(there.device(), second);
  EXPECT_EQ(testing::values_of(there.to(first).to(Device())), std::vector<double>(1000, 4));
  EXPECT_EQ(weft_emulated_contexts(), 0b110U) << "bit i: CUDA's device i has a context";
}

TEST(GpusWithoutCode, AreNotNamedInErrors) {
  Runtime& cuda = runtime(Device("cuda:1"));
  EXPECT_WEFT_ERROR(cuda.new_event(0)->elapsed_ns(*cuda.new_event(0)), Cuda, " on cuda:0");
  EXPECT_WEFT_ERROR(cuda.new_event(1)->elapsed_ns(*cuda.new_event(1)), Cuda, " on cuda:1");
  EXPECT_WEFT_ERROR(cuda.new_stream(2), Cuda, "cudaSetDevice");
}

}  // namespace
}  // namespace weft
