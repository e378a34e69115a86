// Base of the suites that run on every kind of device: always on cpu, and on cuda if there is one;
// otherwise its cases count as skipped.
//
//   class ReluTest : public weft::testing::DeviceParam {};
//   TEST_P(ReluTest, KeepsNaN) { Tensor x = tensor({-1, 2}); ... }   // x is on device()
//   WEFT_FOR_EACH_DEVICE(ReluTest);
#pragma once

#include <gtest/gtest.h>

#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::testing {

class DeviceParam : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (device_count(GetParam()) == 0) GTEST_SKIP() << "no " << device() << " here";
    thread_state().device = device();
  }
  void TearDown() override { thread_state() = saved_; }
  Device device() const { return Device(GetParam(), 0); }
  bool on_cpu() const { return device().is_cpu(); }

 private:
  ThreadState saved_ = thread_state();
};

#define WEFT_FOR_EACH_DEVICE(Suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(                                                                \
      Device, Suite, ::testing::Values(::weft::DeviceType::cpu, ::weft::DeviceType::cuda), \
      [](const auto& info) { return info.param == ::weft::DeviceType::cpu ? "cpu" : "cuda"; })

}  // namespace weft::testing
