// Several emulated GPUs: what moves between them, and which of them a process touches.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

extern "C" unsigned weft_emulated_contexts();

namespace weft {
namespace {

const Device kFirst("cuda:0"), kSecond("cuda:1");

// In a process of its own: first of all.
TEST(Contexts, ARankOnTheSecondGpuLeavesTheFirstAlone) {
  const auto step = [] {
    nn::Linear layer(8, 4);
    layer.to(kSecond);
    const Tensor x = testing::some({3, 8}, DType::f32).to(kSecond).set_requires_grad();
    conv2d(x.reshape({1, 1, 3, 8}), ones({2, 1, 3, 3}, {DType::f32, kSecond})).sum().backward();
    layer(x).sum().backward();
    EXPECT_TRUE(layer.weight.grad().to(Device()).defined());
    EXPECT_TRUE(Storage::allocate_pinned(100)->pinned());
  };
  step();
  std::thread(step).join();
  // More than is kept from before, in a thread that has no device yet.
  std::thread([] { EXPECT_TRUE(Storage::allocate_pinned(64 << 20)->pinned()); }).join();
  EXPECT_EQ(weft_emulated_contexts(), 0b10U) << "bit i: GPU i has a context";
}

TEST(Contexts, EventsAndRecordingsOfTheSecondGpuLeaveTheFirstAlone) {
  Runtime& cuda = runtime(kSecond);
  const Stream stream = cuda.new_stream(1);
  const auto begin = cuda.new_timing_event(1), end = cuda.new_timing_event(1);
  begin->record(stream);
  end->record(stream);
  // Each from a thread that has no device yet.
  std::thread([&] { end->synchronize(); }).join();
  std::thread([&] { EXPECT_TRUE(end->done()); }).join();
  std::thread([&] { EXPECT_GE(end->elapsed_ns(*begin), 0); }).join();
  std::thread([&] {
    cuda.begin_recording(stream);
    EXPECT_TRUE(cuda.end_recording(stream));
  }).join();
  EXPECT_EQ(weft_emulated_contexts(), 0b10U);
}

// Each value is queued where it comes from and read where it goes, with no wait but weft's own.
class BetweenGpus : public ::testing::Test {
 protected:
  static Tensor late(Device device, double value) {
    return raw::add(raw::mul(full({1000}, value, {DType::f32, device}), 2), 1);
  }
  static void expect(const Tensor& x, double value) {
    EXPECT_EQ(testing::values_of(x.to(Device())), std::vector<double>(1000, value));
  }
};

TEST_F(BetweenGpus, ACopyComesAfterWhatMadeItsSource) {
  expect(raw::add(late(kFirst, 1).to(kSecond), 1), 4);
  expect(raw::add(late(kSecond, 2).to(kFirst), 1), 6);
}

TEST_F(BetweenGpus, ACopyComesAfterWhatStillReadsItsTarget) {
  const Tensor target = full({1000}, 7.0, {DType::f32, kSecond});
  const Tensor read = raw::mul(target, 1);
  raw::copy_(target, late(kFirst, 1));
  runtime(kFirst).synchronize(current_stream(kFirst));
  expect(read, 7);
  expect(target, 3);
}

TEST_F(BetweenGpus, SideStreamsWaitToo) {
  const Stream side = runtime(kFirst).new_stream(0), other = runtime(kSecond).new_stream(1);
  Tensor there;
  {
    const StreamScope from(side), to(other);
    there = raw::add(late(kFirst, 1).to(kSecond), 1);
    expect(there, 4);
  }
}

TEST_F(BetweenGpus, SourcesThatEndEarlyAreReadFirst) {
  std::vector<Tensor> there;
  for (int i = 0; i < 20; ++i) there.push_back(late(kFirst, i).to(kSecond));
  for (int i = 0; i < 20; ++i) expect(there[i], 2 * i + 1);
}

TEST_F(BetweenGpus, ABackwardCrossesThem) {
  const Tensor w = testing::some({4, 4}, DType::f64).to(kFirst).set_requires_grad();
  const Tensor here = testing::some({4, 4}, DType::f64).set_requires_grad();
  const auto loss = [](const Tensor& x, Device a, Device b) {
    const Tensor there = matmul(x, x).to(b);
    return (square(there).sum().to(a) + (there * there).to(a).sum() + x.sum());
  };
  for (int round = 0; round < 5; ++round) {
    loss(w, kFirst, kSecond).backward();
    loss(here, Device(), Device()).backward();
  }
  EXPECT_TRUE(testing::near_values(w.grad().to(Device()), testing::values_of(here.grad()), 1e-12));
}

}  // namespace
}  // namespace weft
