// Several devices of one kind: virtual ones of the CPU, and GPUs where there are some.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "weft/core/device.h"
#include "weft/core/runtime.h"

namespace weft::testing {

/// Base of the suites that run on 2 to 4 devices of every kind; skipped where there is only one.
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
};

#define WEFT_ON_DEVICES(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                 \
      Devices, Suite, ::testing::Values(::weft::DeviceType::cpu, ::weft::DeviceType::cuda), \
      [](const auto& info) { return info.param == ::weft::DeviceType::cpu ? "cpu" : "cuda"; })

}  // namespace weft::testing
