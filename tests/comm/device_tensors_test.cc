// Operations on tensors of a device that is made of host memory; those of emulated GPUs are in
// tests/gpu/comm_test.cc.
#include "weft/comm/device_tensors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "weft/comm/process_group.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using Numbers = std::vector<double>;

const Device kGpu("cuda:0"), kOther("cuda:1");

testing::FakeRuntime& gpus() {
  static testing::FakeRuntime made(DeviceType::cuda, 2);
  return made;
}

class DeviceTensorsTest : public ::testing::Test {
 protected:
  DeviceTensorsTest() { register_runtime(DeviceType::cuda, &gpus()); }
  /// Of the next who asks for one.
  static void* spare_stream() { return SideStream(kGpu).get().handle; }
};

Tensor on(Device device, const Numbers& values, const Shape& shape) {
  return raw::to(from_vector(values, shape), device);
}

TEST_F(DeviceTensorsTest, OperationsGiveWhatTheyGiveOnTheHost) {
  run_ranks(3, [](ProcessGroup& group) {
    const double r = group.rank();
    for (const Device device : {Device(), kGpu, group.rank() == 1 ? kOther : kGpu}) {
      SCOPED_TRACE(to_string(device));
      const auto expect = [](const Tensor& x, const Numbers& values) {
        EXPECT_EQ(x.to_vector<double>(), values);
      };
      const auto nothing = [&](const Shape& shape) {
        return on(device, Numbers(static_cast<std::size_t>(numel(shape)), -1), shape);
      };
      const Tensor x = on(device, {r, r + 10}, {2}), all = nothing({3, 2}), part = nothing({2});
      const Tensor stacked = on(device, {r, 1, r + 10, 2, r + 20, 3}, {3, 2});
      group.all_gather(all, x).wait();
      expect(all, {0, 10, 1, 11, 2, 12});
      group.all_to_all(all, stacked).wait();
      expect(all, {10 * r, r + 1, 10 * r + 1, r + 1, 10 * r + 2, r + 1});
      const bool root = group.rank() == 1;
      group.gather(root ? all : Tensor(), x, 1).wait();
      if (root) expect(all, {0, 10, 1, 11, 2, 12});
      group.scatter(part, root ? stacked : Tensor(), 1).wait();
      expect(part, {1 + 10 * r, 1 + r});
      group.reduce_scatter(part, stacked).wait();
      expect(part, {3 + 30 * r, 3 + 3 * r});
      if (group.rank() == 0) group.send(x, 2).wait();
      if (group.rank() == 2) {
        group.recv(part, 0).wait();
        expect(part, {0, 10});
      }
      expect(x, {r, r + 10});
      group.broadcast(x, 1).wait();
      expect(x, {1, 11});
      group.all_reduce(x, ReduceOp::product).wait();
      expect(x, {1, 1331});
      group.reduce(x, 2).wait();
      if (group.rank() == 2) expect(x, {3, 3993});
      group.all_reduce(nothing({0})).wait();
    }
  });
}

TEST_F(DeviceTensorsTest, WhatTheDeviceDoesNotFinishIsATimeout) {
  void* const stream = spare_stream();
  gpus().set_done(stream, false);
  const auto reduce = [](ProcessGroup& group) {
    if (group.rank() == 0) {
      EXPECT_WEFT_ERROR(group.all_reduce(empty({2}, kGpu)).wait(), Timeout, "the work on cuda:0");
    } else {
      EXPECT_THROW(group.all_reduce(zeros({2})).wait(), Error);
    }
  };
  run_ranks(2, reduce, {.timeout = milliseconds(100)});
  gpus().set_done(stream, true);
}

TEST_F(DeviceTensorsTest, MemoryIsNotLentAgainBeforeTheResultIsThere) {
  run_ranks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return group.all_reduce(zeros({2})).wait();
    void* const stream = spare_stream();
    Tensor x = empty({2}, kGpu);
    const void* const memory = x.raw_data();
    group.all_reduce(x).wait();
    gpus().set_done(stream, false);
    x = Tensor();
    const Tensor early = empty({2}, kGpu);
    EXPECT_NE(early.raw_data(), memory);
    gpus().set_done(stream, true);
    EXPECT_EQ(empty({2}, kGpu).raw_data(), memory);
  });
}

TEST_F(DeviceTensorsTest, SideStreamsAreUsedAgain) {
  void* const first = spare_stream();
  EXPECT_EQ(spare_stream(), first);
  const SideStream a(kGpu), b(kGpu), other(kOther);
  EXPECT_EQ(a.get().device, kGpu);
  EXPECT_EQ(other.get().device, kOther);
  EXPECT_NE(a.get().handle, b.get().handle);
}

}  // namespace
}  // namespace weft::comm
