// Several emulated GPUs: copies between them, and which of them a process uses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/core/runtime/copy_stream.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/data/numbers.h"
#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

extern "C" unsigned weft_emulated_contexts();
extern "C" unsigned weft_emulated_events();

namespace weft {
namespace {

const Device kFirst("cuda:0"), kSecond("cuda:1");

// Needs a process of its own, so it comes first.
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
  // Before any device is in use.
  std::thread([] {
    thread_state().device = kSecond;
    EXPECT_TRUE(Storage::allocate_pinned(100)->pinned());
  }).join();
  step();
  std::thread(step).join();
  // More than is cached, in a thread that has no device yet.
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

// Of each thread, the first call is one that needs no particular device.
TEST(Contexts, ThreadsThatOnlyFreeOrLookUpLeaveTheFirstGpuAlone) {
  Runtime& cuda = runtime(kSecond);
  const TensorOptions there(DType::f32, kSecond);
  const auto elsewhere = [](const char* what, const std::function<void()>& f) {
    std::thread(f).join();
    EXPECT_EQ(weft_emulated_contexts(), 0b10U) << what;
  };
  const Tensor x = ones({3, 8}, there), w = ones({4, 8}, there), bias = ones({4}, there);
  elsewhere("a plan is looked up", [&] { static_cast<void>(raw::linear(x, w, bias)); });
  const Stream side = cuda.new_stream(1);
  elsewhere("is it recording?", [&] { EXPECT_FALSE(cuda.is_recording(side)); });
  std::optional<graph::Step> step =
      graph::capture(kSecond, [&] { static_cast<void>(raw::mul(x, 2)); });
  for (int call = 0; call < 3; ++call) (*step)();
  elsewhere("a step ends", [&] { step.reset(); });
  std::unique_ptr<Event> event = cuda.new_timing_event(1);
  elsewhere("an event ends", [&] { event.reset(); });
  void* const memory = cuda.allocate(1, 100);
  elsewhere("memory is freed", [&] { cuda.free(1, memory, 100); });
  void* const pinned = cuda.allocate_pinned(100);
  elsewhere("pinned memory is freed", [&] { cuda.free_pinned(pinned); });
  static_cast<void>(ones({1 << 20}, there));
  elsewhere("the cache is freed", [] { release_cached_memory(kSecond); });
}

// A graph recorded in one stream, and its backward called in another: how they wait for each other.
class SideStreams : public ::testing::Test {
 protected:
  static Stream fresh() { return runtime(kFirst).new_stream(0); }
  static void run(const Stream& stream) { runtime(kFirst).synchronize(stream); }
  static void expect(const Tensor& x, double value) {
    EXPECT_EQ(testing::values_of(x.to(Device())),
              std::vector<double>(static_cast<std::size_t>(x.numel()), value));
  }
  static Tensor filled(double value) { return full({32, 32}, value, {DType::f32, kFirst}); }
  // Waits until the value has been computed.
  static Tensor made(double value) {
    const Tensor x = filled(value);
    run(current_stream(kFirst));
    return x;
  }

  const Stream early = fresh(), late = fresh(), caller = fresh();
};

TEST_F(SideStreams, AGradientsMemoryIsKeptForTheStreamThatReadsIt) {
  const Tensor w = made(1).set_requires_grad(), x = made(1);
  Tensor y, z;
  {
    const StreamScope scope(early);
    y = matmul(w, x);
    run(early);
  }
  {
    const StreamScope scope(late);
    z = square(y).sum();
  }
  {
    const StreamScope scope(caller);
    z.backward();
  }
  {
    const StreamScope scope(late);
    std::vector<Tensor> others;  // they would use memory that the gradient of y has freed
    for (int i = 0; i < 8; ++i) others.push_back(filled(7));
    run(late);
  }
  const StreamScope scope(caller);
  expect(w.grad(), 2 * 32 * 32);
}

TEST_F(SideStreams, GradientsOfOneOutputAddUpInItsStream) {
  const Tensor w = made(1).set_requires_grad();
  Tensor y;
  {
    const StreamScope scope(early);
    y = w * 3;
  }
  const StreamScope scope(caller);
  const Tensor outputs[] = {y, y}, grads[] = {filled(1), filled(2)};
  autograd::backward(outputs, grads);
  run(early);
  expect(w.grad(), 9);
}

TEST_F(SideStreams, GradientsOfOneNodeAddUpInItsStream) {
  const Tensor w = made(1).set_requires_grad();
  Tensor y, z;
  {
    const StreamScope scope(early);
    y = w * 3;
    run(early);
  }
  {
    const StreamScope scope(late);
    z = (y * 2).sum() + (y * 4).sum();
  }
  const StreamScope scope(caller);
  z.backward();
  run(early);
  expect(w.grad(), 18);
}

// The default streams of all GPUs have the same handle; only the current device distinguishes them.
// In a new thread this is the first GPU.
class FromAnotherDevice : public ::testing::Test {
 protected:
  static void elsewhere(const std::function<void()>& f) {
    std::thread([&] { EXPECT_NO_THROW(f()); }).join();
  }
  static constexpr std::size_t kBytes = 800;
  Runtime& cuda = runtime(kSecond);
  const Stream stream = cuda.default_stream(1);
};

TEST_F(FromAnotherDevice, TheRuntimesCallsFindTheirs) {
  const auto from = Storage::allocate_pinned(kBytes), back = Storage::allocate_pinned(kBytes);
  std::memset(from->data(), 3, kBytes);
  const auto expect = [&](char value) {
    EXPECT_EQ(std::memcmp(back->data(), std::vector<char>(kBytes, value).data(), kBytes), 0);
  };
  void* memory = nullptr;
  Stream side;
  std::unique_ptr<Event> event;
  elsewhere([&] { memory = cuda.allocate(1, kBytes); });
  elsewhere([&] { side = cuda.new_stream(1); });
  elsewhere([&] { event = cuda.new_event(1); });

  elsewhere([&] { cuda.copy(memory, kSecond, from->data(), Device(), kBytes, side); });
  elsewhere([&] { event->record(side); });
  elsewhere([&] { event->block(stream); });
  elsewhere([&] { cuda.copy(back->data(), Device(), memory, kSecond, kBytes, stream); });
  elsewhere([&] { cuda.synchronize(stream); });
  expect(3);

  elsewhere([&] { cuda.fill_zero(memory, kBytes, stream); });
  elsewhere([&] { event->record(stream); });
  elsewhere([&] { event->block(side); });
  elsewhere([&] { cuda.copy(back->data(), Device(), memory, kSecond, kBytes, side); });
  elsewhere([&] { cuda.synchronize_device(1); });
  expect(0);

  // To the first GPU, in the order of the second one's stream. The first round enables direct
  // copies.
  void* const peer = cuda.allocate(0, kBytes);
  for (int round = 0; round < 2; ++round) {
    elsewhere([&] { cuda.copy(memory, kSecond, from->data(), Device(), kBytes, stream); });
    elsewhere([&] { cuda.copy(peer, kFirst, memory, kSecond, kBytes, stream); });
    elsewhere([&] { cuda.fill_zero(memory, kBytes, stream); });
    elsewhere([&] { cuda.synchronize(stream); });
    cuda.copy(back->data(), Device(), peer, kFirst, kBytes, cuda.default_stream(0));
    cuda.synchronize(cuda.default_stream(0));
    expect(3);
  }
  cuda.free(0, peer, kBytes);
  cuda.free(1, memory, kBytes);
}

TEST_F(FromAnotherDevice, RecordedWorkFindsItsOwn) {
  const Stream side = cuda.new_stream(1);
  const auto host = Storage::allocate_pinned(sizeof(std::uint64_t));
  auto* const word = static_cast<std::uint64_t*>(host->data());
  std::unique_ptr<RecordedWork> work;
  const std::uint64_t seven = 7;
  elsewhere([&] {
    cuda.begin_recording(side);
    cuda.write_words(word, {&seven, 1}, side);
    work = cuda.end_recording(side);
  });
  *word = 0;
  elsewhere([&] { work->launch(stream); });
  cuda.synchronize(stream);
  EXPECT_EQ(*word, 7U);

  *word = 0;
  elsewhere([&] { work->launch(stream); });
  elsewhere([&] { work.reset(); });
  EXPECT_EQ(*word, 7U) << "the end waits for the last launch";
}

TEST_F(FromAnotherDevice, ErrorsNameTheirs) {
  const Stream side = cuda.new_stream(1);
  const auto event = cuda.new_event(1);
  cuda.begin_recording(side);
  event->record(side);
  elsewhere([&] {
    runtime(kFirst).new_event(0);
    EXPECT_WEFT_ERROR(event->done(), Cuda, "cudaErrorCapturedEvent) on cuda:1");
  });
  cuda.abandon_recording(side);
}

// The first round makes the objects that the second one finds, in a thread that has done nothing
// else.
TEST_F(FromAnotherDevice, OperationsFindTheirs) {
  const TensorOptions there(DType::f32, kSecond);
  const Tensor x = ones({2, 6}, there), w = ones({3, 2, 3, 3}, there);
  const Tensor image = ones({1, 2, 6, 6}, there), other_image = ones({1, 2, 5, 5}, there);
  const Tensor list = raw::remainder(arange(0, 6000, 1, {DType::i64, kSecond}), 6);
  const Tensor terms = ones({6000, 2}, there);
  std::vector<std::pair<Tensor, double>> results;
  for (int round = 0; round < 2; ++round) {
    elsewhere([&] { results.emplace_back(raw::mul(x, 3), 3); });
    elsewhere([&] { results.emplace_back(raw::matmul(x, raw::transpose(x, 0, 1)), 6); });
    elsewhere([&] { results.emplace_back(raw::conv2d(image, w, {}, {}), 18); });
    elsewhere([&] { results.emplace_back(raw::sort(x, 1, false).values, 1); });
    const Tensor sums = zeros({6, 2}, there);
    elsewhere([&] { results.emplace_back(raw::index_add_(sums, 0, list, terms, false), 1000); });
  }
  // New plans, with handles of threads that have ended.
  elsewhere([&] { results.emplace_back(raw::matmul(raw::transpose(x, 0, 1), x), 2); });
  elsewhere([&] { results.emplace_back(raw::conv2d(other_image, w, {}, {}), 18); });
  for (const auto& [result, value] : results) {
    EXPECT_EQ(testing::values_of(result.to(Device())),
              std::vector<double>(static_cast<std::size_t>(result.numel()), value));
  }
}

TEST_F(FromAnotherDevice, CopiesBetweenGpusFindTheirs) {
  const Tensor x = ones({1000}, {DType::f32, kSecond}), y = empty({1000}, {DType::f32, kFirst});
  for (int round = 1; round < 4; ++round) {
    raw::fill_(x, round);
    elsewhere([&] { raw::copy_(y, x); });
    EXPECT_EQ(testing::values_of(y.to(Device())), std::vector<double>(1000, round));
  }
}

// Calls that CUDA forbids to a recording thread unless it asks for permission.
TEST(Recording, AThreadMayGetAndGiveBackMemoryWorkAndHandles) {
  Runtime& cuda = runtime(kFirst);
  const Stream stream = cuda.new_stream(0);
  const auto record = [&](const std::function<void()>& f) {
    cuda.begin_recording(stream);
    f();
    return cuda.end_recording(stream);
  };
  std::unique_ptr<RecordedWork> work = record([] {});
  void* memory = nullptr;
  EXPECT_NO_THROW(record([&] { memory = cuda.allocate(0, 100); }));
  EXPECT_NO_THROW(record([&] { cuda.free(0, memory, 100); }));
  work->launch(cuda.new_stream(0));
  EXPECT_NO_THROW(record([&] { work.reset(); }));

  // This thread makes the plan and keeps its handle; the next one needs its own.
  const StreamScope scope(stream);
  const Tensor x = ones({4, 4}, {DType::f32, kFirst});
  const Tensor before = raw::matmul(x, x);
  std::thread([&] {
    const StreamScope there(stream);
    EXPECT_NO_THROW(record([&] { raw::matmul(x, x); }));
  }).join();
}

TEST(SynchronousDeathTest, WorkIsDoneWhenItsLaunchReturns) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto launch = [] {
    setenv("WEFT_SYNC", "1", 1);
    const auto host = Storage::allocate_pinned(sizeof(std::uint64_t));
    auto* const word = static_cast<std::uint64_t*>(host->data());
    *word = 0;
    const std::uint64_t seven = 7;
    runtime(kFirst).write_words(word, {&seven, 1}, runtime(kFirst).new_stream(0));
    std::exit(*word == 7 ? 0 : 1);
  };
  EXPECT_EXIT(launch(), ::testing::ExitedWithCode(0), "");
}

TEST(PageableDeathTest, MemoryMayChangeWhenItsCopyReturns) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto copy = [] {
    setenv("WEFT_EMULATED_HMM", "1", 1);
    const Tensor x = full({1000}, 1);
    const Tensor there = x.to(kFirst);
    raw::fill_(x, 2);
    std::exit(testing::values_of(there.to(Device())) == std::vector<double>(1000, 1) ? 0 : 1);
  };
  EXPECT_EXIT(copy(), ::testing::ExitedWithCode(0), "");
}

TEST(Loader, WritesNoMemoryThatIsStillToBeCopied) {
  for (const int workers : {0, 1}) {
    data::DataLoader loader(testing::Numbers{60},
                            {.batch_size = 1, .workers = workers, .device = kSecond});
    std::vector<Tensor> kept;
    for (auto& [x] : loader) kept.push_back(x);
    ASSERT_EQ(kept.size(), 60U);
    for (int i = 0; i < 60; ++i) EXPECT_EQ(kept[i].item<std::int64_t>(), i);
  }
}

// Each value is queued on its own device and read on the target, and only weft's own waits order
// them.
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
  runtime(kFirst).synchronize(copy_stream(kFirst));
  expect(read, 7);
  expect(target, 3);
}

TEST_F(BetweenGpus, WhatWritesTheSourceNextComesAfterTheCopy) {
  const Tensor ones = full({1000}, 1.0, {DType::f32, kFirst});
  const Tensor elsewhere = full({1000}, 1.0, {DType::f32, kSecond});
  const Tensor index = arange(0, 1000).to(kFirst);
  for (const Device device : {kFirst, kSecond}) runtime(device).synchronize(current_stream(device));
  const std::pair<const char*, std::function<void(const Tensor&)>> writers[] = {
      {"fill_", [](const Tensor& x) { raw::fill_(x, 7); }},
      {"zero_", [](const Tensor& x) { raw::zero_(x); }},
      {"mul_", [](const Tensor& x) { raw::mul_(x, 2); }},
      {"binary_", [&](const Tensor& x) { raw::binary_(BinaryOp::mul, x, raw::add(ones, 1)); }},
      {"add_", [&](const Tensor& x) { raw::add_scaled_(x, 2, ones); }},
      {"copy_", [&](const Tensor& x) { raw::copy_(x, ones); }},
      {"copy_ from afar",
       [&](const Tensor& x) {
         const StreamScope side(runtime(kSecond).new_stream(1));  // did not wait for the copy
         raw::copy_(x, elsewhere);
       }},
      {"index_add_", [&](const Tensor& x) { raw::index_add_(x, 0, index, ones); }},
      {"scatter_add_", [&](const Tensor& x) { raw::scatter_add_(x, 0, index, ones); }},
      {"uniform_", [](const Tensor& x) { raw::uniform_(x, 0, 1); }},
      {"step",
       [&](const Tensor& x) {
         x.set_requires_grad();
         x.set_grad(ones);
         optim::SGD({x}, {.lr = 1}).step();
       }},
      {"clip_grad_norm", [](const Tensor& x) {
         const Tensor p = zeros({1000}, {DType::f32, kFirst}).set_requires_grad();
         p.set_grad(x);
         optim::clip_grad_norm(std::vector{p}, 1);
       }}};
  for (const auto& [name, write] : writers) {
    SCOPED_TRACE(name);
    const Tensor x = late(kFirst, 1), there = x.to(kSecond);
    write(x);
    runtime(kSecond).synchronize(copy_stream(kSecond));
    runtime(kFirst).synchronize(current_stream(kFirst));
    expect(there, 3);
    EXPECT_NE(testing::values_of(x.to(Device())), std::vector<double>(1000, 3));
  }
}

TEST_F(BetweenGpus, ABatchNormsStatisticsAreCopiedBeforeItCountsTheNextBatch) {
  nn::BatchNorm2d norm(1000);
  norm.to(kFirst);
  const Tensor mean = norm.named_buffers()[0].second, there = mean.to(kSecond);
  norm(full({2, 1000, 1, 1}, 5.0, {DType::f32, kFirst}));
  runtime(kFirst).synchronize(current_stream(kFirst));
  expect(there, 0);
  expect(mean, 0.5);
}

TEST_F(BetweenGpus, CopiesMakeNoEventsOnceThereAreEnough) {
  const Tensor x = full({1000}, 1.0, {DType::f32, kFirst}), y = x.to(kSecond);
  raw::copy_(x, y);
  const unsigned events = weft_emulated_events();
  for (int i = 0; i < 10; ++i) {
    raw::copy_(y, x);
    raw::copy_(x, y);
  }
  EXPECT_EQ(weft_emulated_events(), events);
  expect(x, 1);
}

TEST_F(BetweenGpus, ACapturedStepThatWritesTheSourceComesAfterTheCopy) {
  const Tensor x = full({1000}, 1.0, {DType::f32, kFirst});
  graph::Step step = graph::capture(kFirst, [&] { raw::mul_(x, 2); });
  step();
  step();
  const Tensor there = x.to(kSecond);
  step();
  runtime(kFirst).synchronize(current_stream(kFirst));
  expect(there, 4);
  expect(x, 8);
}

TEST_F(BetweenGpus, TheSourcesMemoryIsNotHandedOutBeforeTheCopy) {
  Tensor x = late(kFirst, 1);
  const Tensor there = x.to(kSecond);
  x = Tensor();
  std::vector<Tensor> others;
  for (int i = 0; i < 8; ++i) others.push_back(full({1000}, 7.0, {DType::f32, kFirst}));
  runtime(kFirst).synchronize(current_stream(kFirst));
  expect(there, 3);
}

TEST_F(BetweenGpus, LentMemoryIsReadBeforeItsOwnerWrites) {
  const Tensor owner = late(kFirst, 1);
  const Tensor there =
      as_strided(Storage::borrow(kFirst, owner.raw_data(), 4000), DType::f32, {1000}, {1})
          .to(kSecond);
  raw::fill_(owner, 7);
  runtime(kFirst).synchronize(current_stream(kFirst));
  expect(there, 3);
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

TEST_F(BetweenGpus, ABackwardCrossesThemOnSideStreams) {
  const Tensor x = testing::some({4, 4}, DType::f64);
  const Tensor w = x.to(kFirst).set_requires_grad();
  runtime(kFirst).synchronize(current_stream(kFirst));
  const StreamScope first(runtime(kFirst).new_stream(0)), second(runtime(kSecond).new_stream(1));
  for (int round = 0; round < 5; ++round) {
    const Tensor there = square(w.to(kSecond));
    (square(there.to(kFirst)).sum() + square(square(there)).sum().to(kFirst)).backward();
  }
  std::vector<double> expected;
  for (const double v : testing::values_of(x)) {
    expected.push_back(5 * (4 * std::pow(v, 3) + 8 * std::pow(v, 7)));
  }
  EXPECT_TRUE(testing::near_values(w.grad().to(Device()), expected, 1e-12));
}

}  // namespace
}  // namespace weft
