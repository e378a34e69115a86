// Several devices of one kind: virtual CPU devices, and GPUs if there are some.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/runtime.h"

namespace weft::testing {

/// Base of the suites that run on 2 to 4 devices of every kind; skipped if there is only one.
class DevicesTest : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceType::cpu) set_host_devices(4);
    if (count() < 2) GTEST_SKIP() << "needs two devices, there are " << count();
  }
  static int count() { return std::min(device_count(GetParam()), 4); }
  static Device first() { return Device(GetParam(), 0); }
  /// The first n.
  static std::vector<Device> devices(int n) {
    std::vector<Device> list;
    for (int i = 0; i < n; ++i) list.emplace_back(GetParam(), i);
    return list;
  }

  /// Runs `step` until ten steps in a row have taken no new memory from the drivers of these
  /// devices and left no more in use. More than the first few steps may need new memory: which
  /// results of two threads exist at the same time varies, so a later step may be the first to need
  /// the most.
  template <class Step>
  static void expect_steady_memory(const std::vector<Device>& devices, const Step& step) {
    const auto taken = [&] {
      std::pair<std::int64_t, std::int64_t> sum;
      for (const Device device : devices) {
        const MemoryStats stats = memory_stats(device);
        sum.first += stats.driver_allocations;
        sum.second += stats.in_use_bytes;
      }
      return sum;
    };
    auto before = taken();
    int in_a_row = 0, steps = 0;
    for (; in_a_row < 10 && steps < 300; ++steps) {
      step();
      const auto now = taken();
      in_a_row = now == before ? in_a_row + 1 : 0;
      before = now;
    }
    EXPECT_EQ(in_a_row, 10) << "after " << steps << " steps: " << before.first
                            << " driver allocations, " << before.second << " bytes in use";
  }
};

#define WEFT_ON_DEVICES(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                 \
      Devices, Suite, ::testing::Values(::weft::DeviceType::cpu, ::weft::DeviceType::cuda), \
      [](const auto& info) { return info.param == ::weft::DeviceType::cpu ? "cpu" : "cuda"; })

}  // namespace weft::testing
