// Streams of the program itself, on emulated GPUs: they may be destroyed, and CUDA then uses their
// handles again.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/external_stream.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

const Device kGpu(DeviceType::cuda, 0);
const TensorOptions kF32{DType::f32, kGpu};
constexpr std::int64_t kMiB = 1 << 20;

/// A stream of the program, lent to weft while it lives.
class OwnStream {
 public:
  OwnStream() {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    external_.emplace(kGpu, stream_);
  }
  ~OwnStream() {
    external_.reset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  cudaStream_t handle() const { return stream_; }
  const Stream& get() const { return external_->get(); }

 private:
  cudaStream_t stream_ = nullptr;
  std::optional<ExternalStream> external_;
};

TEST(ExternalStreamTest, WorkIsInOrderWithTheProgramsOwn) {
  const OwnStream own;
  const StreamScope scope(own.get());
  const Tensor x = full({1000}, 5, kF32);
  const Tensor y = raw::add(x, 1);
  EXPECT_EQ(cudaMemsetAsync(x.raw_data(), 0, 4000, own.handle()), cudaSuccess);
  const Tensor z = raw::add(x, 1);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 6));
  EXPECT_EQ(z.to_vector<float>(), std::vector<float>(1000, 1));
}

TEST(ExternalStreamTest, OthersThanOrdinaryStreamsOfTheDeviceAreRefused) {
  const OwnStream own;
  EXPECT_WEFT_ERROR(ExternalStream(Device(), own.handle()), Device,
                    "[external_stream] device: got cpu:0, expected a CUDA device");
  EXPECT_WEFT_ERROR(ExternalStream(Device(DeviceType::cuda, 99), own.handle()), Device, "cuda:99");
  EXPECT_WEFT_ERROR(ExternalStream(Device(DeviceType::cuda, 1), own.handle()), Device,
                    "stream: got one of another device, expected one of cuda:1");
  for (const cudaStream_t stream : {cudaStream_t(nullptr), cudaStreamLegacy, cudaStreamPerThread}) {
    EXPECT_WEFT_ERROR(ExternalStream(kGpu, stream), InvalidArgument, "CUDA's default streams");
  }
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(own.handle(), cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_WEFT_ERROR(ExternalStream(kGpu, own.handle()), InvalidArgument, "is being captured");
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(own.handle(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// By default a program's capture, in whatever thread, is spoiled by a call of another thread that
// might wait.
TEST(ExternalStreamTest, ACaptureOfTheProgramIsNotSpoiledByOtherThreads) {
  Runtime& cuda = runtime(kGpu);
  const OwnStream own;
  const Tensor x = full({40, 40}, 1, kF32), bias = full({40}, 1, kF32);
  const auto event = cuda.new_event(0);
  event->record(current_stream(kGpu));
  void* const memory = cuda.allocate(0, 100);
  void* const pinned = cuda.allocate_pinned(100);
  const auto meanwhile = [&](const char* what, const std::function<void()>& f) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(own.handle(), cudaStreamCaptureModeGlobal), cudaSuccess);
    std::thread([&] { EXPECT_NO_THROW(f()) << what; }).join();
    EXPECT_EQ(cudaStreamEndCapture(own.handle(), &graph), cudaSuccess) << what;
    if (graph) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
  };
  meanwhile("an event is queried", [&] {
    while (!event->done()) {
    }
  });
  meanwhile("memory is freed", [&] { cuda.free(0, memory, 100); });
  meanwhile("pinned memory is freed", [&] { cuda.free_pinned(pinned); });
  meanwhile("a plan is timed", [&] {
    set_benchmark(true);
    static_cast<void>(raw::matmul(x, x));
  });
  meanwhile("a relu is tried", [&] { static_cast<void>(raw::linear_relu(x, x, bias)); });
}

TEST(ExternalStreamTest, ItsFreeBlocksGoBackToTheDriver) {
  const std::int64_t before = memory_stats(kGpu).cached_bytes;
  {
    const OwnStream own;
    const StreamScope scope(own.get());
    static_cast<void>(full({30 * kMiB}, 1, {DType::u8, kGpu}));
    static_cast<void>(full({1000}, 1, kF32));
    EXPECT_GE(memory_stats(kGpu).cached_bytes, before + 30 * kMiB);
  }
  EXPECT_EQ(memory_stats(kGpu).cached_bytes, before);
}

TEST(ExternalStreamTest, TensorsOutliveIt) {
  release_cached_memory(kGpu);
  const MemoryStats before = memory_stats(kGpu);
  Tensor large, small, beside;
  {
    const OwnStream own;
    const StreamScope scope(own.get());
    large = full({30 * kMiB}, 1, {DType::u8, kGpu});
    small = full({1000}, 2, kF32);
    beside = full({1000}, 3, kF32);  // in the same segment as `small`
  }
  EXPECT_EQ(raw::add(small, 1).to_vector<float>(), std::vector<float>(1000, 3));
  large = small = Tensor();
  // The rest of the segment is the default stream's.
  const std::int64_t driver = memory_stats(kGpu).driver_allocations;
  const Tensor other = full({1000}, 4, kF32);
  EXPECT_EQ(memory_stats(kGpu).driver_allocations, driver);
  EXPECT_EQ(beside.to_vector<float>(), std::vector<float>(1000, 3));
  beside = Tensor();
  release_cached_memory(kGpu);
  EXPECT_LE(memory_stats(kGpu).in_use_bytes, before.in_use_bytes + 4096);
  EXPECT_LT(memory_stats(kGpu).cached_bytes, 4 * kMiB);
}

// Memory of the default stream that an external stream has used is freed without asking that
// stream.
TEST(ExternalStreamTest, WhatItHasUsedIsFreedWithoutIt) {
  Tensor x = full({1000}, 1, kF32);
  runtime(kGpu).synchronize_device(0);
  {
    const OwnStream own;
    x.storage()->record_stream(own.get());
    const StreamScope scope(own.get());
    EXPECT_EQ(raw::add(x, 1).to_vector<float>()[0], 2);
  }
  x = Tensor();  // would record an event in a stream that is destroyed
  const std::int64_t driver = memory_stats(kGpu).driver_allocations;
  for (int i = 0; i < 3; ++i) static_cast<void>(full({1000}, 1, kF32));
  EXPECT_EQ(memory_stats(kGpu).driver_allocations, driver);
}

// The second stream has the first one's handle, but none of what was kept for it.
TEST(ExternalStreamTest, AHandleMayBeUsedAgain) {
  Tensor kept;
  cudaStream_t first = nullptr;
  for (int round = 0; round < 3; ++round) {
    const OwnStream own;
    if (round == 0) first = own.handle();
    EXPECT_EQ(own.handle(), first) << "the emulator does so";
    const StreamScope scope(own.get());
    const Tensor x = full({1000}, round, kF32);
    if (round == 0) kept = raw::add(x, 10);
    EXPECT_EQ(raw::add(x, kept).to_vector<float>()[999], 10 + round);
    kept.storage()->record_stream(own.get());
  }
  EXPECT_EQ(kept.to_vector<float>(), std::vector<float>(1000, 10));
}

TEST(ExternalStreamTest, ScratchMemoryOfItsKernelsIsFreed) {
  const auto is_device_memory = [](const void* p) {
    cudaPointerAttributes attributes{};
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, p), cudaSuccess);
    return attributes.type == cudaMemoryTypeDevice;
  };
  const void* scratch = nullptr;
  for (int round = 0; round < 2; ++round) {
    const OwnStream own;
    scratch = cuda::Scratch(own.get()).data();
    EXPECT_TRUE(is_device_memory(scratch));
  }
  EXPECT_FALSE(is_device_memory(scratch));
}

// A captured step takes its memory from the stream on which it was captured, and gives it back.
TEST(ExternalStreamTest, ACapturedStepOutlivesIt) {
  const Tensor x = full({1000}, 1, kF32);
  Tensor y;
  std::optional<graph::Step> step;
  {
    const OwnStream own;
    const StreamScope scope(own.get());
    static_cast<void>(full({1000}, 1, kF32));  // for the step to take
    step.emplace(graph::capture(kGpu, [&] { y = raw::add(raw::mul(x, 2), 1); }));
    for (int call = 0; call < 2; ++call) step->replay();
  }
  step->replay();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 3));
  y = Tensor();
  step.reset();
  static_cast<void>(full({1000}, 1, kF32));
}

TEST(ExternalStreamTest, ACapturedStepEndsWithoutTheStreamOfItsLastReplay) {
  const Tensor x = full({1000}, 1, kF32);
  std::optional<graph::Step> step;
  {
    const OwnStream own;
    const StreamScope scope(own.get());
    step.emplace(graph::capture(kGpu, [&] { static_cast<void>(raw::add(x, 1)); }));
    for (int call = 0; call < 3; ++call) step->replay();
  }
  ::testing::internal::CaptureStderr();
  step.reset();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "asked about a destroyed stream";
}

// glibc's count of the bytes in use; 0 under a sanitizer.
TEST(ExternalStreamTest, ManyCostNoMoreMemoryThanOne) {
  std::size_t before = 0;
  for (int i = 0; i < 200; ++i) {
    const OwnStream own;
    if (i % 2 == 1) {
      const StreamScope scope(own.get());
      static_cast<void>(full({1000}, 1, kF32));
    }
    if (i == 9) before = ::mallinfo2().uordblks;
  }
  EXPECT_LT(::mallinfo2().uordblks, before + 200'000) << "the lists of a stream have 19 KB";
}

}  // namespace
}  // namespace weft
