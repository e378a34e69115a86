#include "weft/core/base/device.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/runtime.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft {
namespace {

testing::FakeRuntime& fake_cpu() {
  static testing::FakeRuntime runtime(DeviceType::cpu);
  return runtime;
}

TEST(Device, NamesRoundTrip) {
  EXPECT_EQ(Device("cpu"), Device(DeviceType::cpu, 0));
  EXPECT_EQ(Device("cpu:3"), Device(DeviceType::cpu, 3));
  EXPECT_EQ(Device("cuda"), Device(DeviceType::cuda, 0));
  EXPECT_EQ(to_string(Device("cuda:12")), "cuda:12");
  EXPECT_EQ(to_string(Device()), "cpu:0");
  EXPECT_FALSE(Device("cpu:1") == Device("cuda:1"));
}

TEST(Device, RefusesOtherTexts) {
  for (const char* text : {"", "gpu", "cpu:", "cpu:-1", "cpu:-0", "cpu:+1", "cpu: 1", "cpu:1x",
                           "cuda:1:2", "CPU", "cuda:99999999999"}) {
    EXPECT_WEFT_ERROR(
        Device{text}, InvalidArgument,
        std::string("[device] got '") + text + "', expected cpu, cpu:N, cuda or cuda:N");
  }
}

// The variable is read once per process, so each case needs its own process.
int count_with_environment(const char* text) {
  setenv("WEFT_HOST_DEVICES", text, 1);
  try {
    std::exit(host_device_count());
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::exit(100);
  }
}

TEST(HostDevicesDeathTest, EnvironmentSetsTheNumber) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(count_with_environment("4"), ::testing::ExitedWithCode(4), "");
  EXPECT_EXIT(count_with_environment("64"), ::testing::ExitedWithCode(64), "");
  for (const char* text : {"", "0", "65", "-1", "two", "2x", "99999999999999999999"}) {
    EXPECT_EXIT(count_with_environment(text), ::testing::ExitedWithCode(100),
                "host_devices. WEFT_HOST_DEVICES: got '.*', expected a whole number from 1 to 64");
  }
}

TEST(HostDevices, SetGrowsAndShrinks) {
  EXPECT_WEFT_ERROR(runtime(Device("cpu")), Internal, "no CPU backend is linked");
  EXPECT_EQ(device_count(DeviceType::cpu), 0);
  register_runtime(DeviceType::cpu, &fake_cpu());
  set_host_devices(3);
  EXPECT_EQ(host_device_count(), 3);
  EXPECT_EQ(device_count(DeviceType::cpu), 3);
  EXPECT_EQ(&runtime(Device("cpu:2")), &fake_cpu());
  EXPECT_WEFT_ERROR(runtime(Device("cpu:3")), Device,
                    "[cpu:3] no such device: got index 3, 3 CPU devices exist "
                    "(a program's --host-devices, or WEFT_HOST_DEVICES, sets their number)");
  EXPECT_WEFT_ERROR(set_host_devices(0), InvalidArgument, "[host_devices] got 0, expected 1 to 64");
  EXPECT_WEFT_ERROR(set_host_devices(65), InvalidArgument, "got 65");

  auto storage = Storage::allocate(Device("cpu:2"), 1000);
  EXPECT_WEFT_ERROR(set_host_devices(2), InvalidArgument,
                    "[host_devices] got 2, but cpu:2 still holds 1024 bytes");
  EXPECT_EQ(host_device_count(), 3);
  storage = nullptr;
  set_host_devices(2);
  EXPECT_EQ(fake_cpu().held, 0u) << "a device that goes gives its cached memory back";
  EXPECT_WEFT_ERROR(Storage::allocate(Device("cpu:2"), 1000), Device, "[cpu:2] no such device");
  EXPECT_WEFT_ERROR(memory_stats(Device("cpu:2")), Device, "[cpu:2] no such device");
}

TEST(Runtime, SaysWhyThereIsNoCuda) {
  EXPECT_WEFT_ERROR(runtime(Device("cuda")), Device,
                    "[cuda:0] no such device: this build has no CUDA");
  EXPECT_EQ(device_count(DeviceType::cuda), 0);

  static testing::FakeRuntime none(DeviceType::cuda, 0);
  register_runtime(DeviceType::cuda, &none);
  EXPECT_WEFT_ERROR(runtime(Device("cuda")), Device,
                    "[cuda:0] no such device: no CUDA device is visible");

  static testing::FakeRuntime two(DeviceType::cuda, 2);
  register_runtime(DeviceType::cuda, &two);
  EXPECT_EQ(&runtime(Device("cuda:1")), &two);
  EXPECT_WEFT_ERROR(runtime(Device("cuda:2")), Device,
                    "[cuda:2] no such device: 2 devices are visible");
}

}  // namespace
}  // namespace weft
