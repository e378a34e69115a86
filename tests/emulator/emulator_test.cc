// Programs with one fault each: the emulated devices must detect every kind.
#include <cublasLt.h>
#include <cudnn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/conv_graph.h"
#include "weft/tests/emulator/kernels.h"

namespace weft::testing {
namespace {

constexpr std::size_t kBytes = kThreads * sizeof(float);

// Set before the first use of a device, and also in a soak: a missing wait shows when work runs as
// late as possible.
const bool is_lazy = setenv("WEFT_EMULATED_ORDER", "lazy", 1) == 0;

#define OK(call) ASSERT_EQ(call, cudaSuccess)

// Two devices; the first one has a stream and two vectors.
class EmulatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    cudaGetLastError();  // clears another test's error
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    x = floats();
    y = floats();
    std::vector<float> values(kThreads);
    for (int i = 0; i < kThreads; ++i) values[i] = static_cast<float>(i);
    OK(cudaMemcpyAsync(x, values.data(), kBytes, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
  }

  static float* floats() {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, kBytes), cudaSuccess);
    return static_cast<float*>(p);
  }
  static float* pinned() {
    void* p = nullptr;
    EXPECT_EQ(cudaHostAlloc(&p, kBytes, 0), cudaSuccess);
    return static_cast<float*>(p);
  }

  template <class... P>
  cudaError_t launch(const void* kernel, dim3 grid, dim3 block, P... parameters) {
    void* arguments[] = {&parameters...};
    return cudaLaunchKernel(kernel, grid, block, arguments, 0, stream);
  }
  // A launch, and the wait that makes it run.
  template <class... P>
  cudaError_t run(const void* kernel, dim3 grid, dim3 block, P... parameters) {
    const cudaError_t status = launch(kernel, grid, block, parameters...);
    return status == cudaSuccess ? cudaStreamSynchronize(stream) : status;
  }
  std::vector<float> read(const float* from, std::size_t count = kThreads) {
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), from, count * 4, cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    return values;
  }

  cudaStream_t stream = nullptr;
  float *x = nullptr, *y = nullptr;
};
using EmulatorDeathTest = EmulatorTest;

TEST_F(EmulatorTest, RightProgramsAreRight) {
  OK(run(increment(), 1, kThreads, x, y));
  EXPECT_EQ(read(y)[5], 6);
  OK(run(reversed(true), 1, kThreads, x, y));
  EXPECT_EQ(read(y)[0], kThreads - 1);
  OK(run(swapped(true), 1, kThreads, x, y));
  EXPECT_EQ(read(y)[5], 4);
  OK(run(shuffle(), 1, kThreads, x, y));
  EXPECT_EQ(read(y)[33], 100 * 32 + 34);
  OK(run(wide(), 1, 1, x, y, 4));
  EXPECT_EQ(read(y)[0], 4 + 5 + 6 + 7);
  OK(cudaFree(y));
}

TEST_F(EmulatorDeathTest, ARaceBetweenBarriers) {
  EXPECT_DEATH((void)run(reversed(false), 1, kThreads, x, y), "reversed_kernel.*a race");
}

TEST_F(EmulatorDeathTest, ARaceWithinAWarp) {
  EXPECT_DEATH((void)run(swapped(false), 1, kThreads, x, y), "swapped_kernel.*a race");
}

TEST_F(EmulatorDeathTest, ADivergentWarp) {
  EXPECT_DEATH((void)run(divergent_shuffle(false), 1, kThreads, x, y),
               "divergent warp: not all of the lanes 0xffffffff come to the exchange at line");
  EXPECT_DEATH((void)run(divergent_shuffle(true), 1, kThreads, x, y),
               "exchanges with lane .* and the mask 0x55555555 lacks one of them");
  EXPECT_DEATH((void)run(shuffle(), 1, kThreads / 2 - 1, x, y), "divergent warp");
}

TEST_F(EmulatorDeathTest, ARaceBetweenBlocks) {
  EXPECT_DEATH((void)run(disputed(), 64, kThreads, y), "disputed_kernel.*a race");
}

TEST_F(EmulatorDeathTest, ADivergentBarrier) {
  EXPECT_DEATH((void)run(divergent(false), 1, kThreads, y),
               "divergent barrier: 32 of 64 threads wait at line");
  EXPECT_DEATH((void)run(divergent(true), 1, kThreads, y),
               "divergent barrier: threads wait at lines");
}

TEST_F(EmulatorDeathTest, AWriteOutOfBounds) {
  EXPECT_DEATH((void)run(poke(), 1, 1, y, kThreads),
               "no memory, beyond or after the end of a block");
}

// Where the inaccessible page does not help.
TEST_F(EmulatorDeathTest, AWriteBesideABlock) {
  float* odd = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&odd), 10 * sizeof(float)));
  const auto poke_and_free = [&](int at) {
    (void)run(poke(), 1, 1, odd, at);
    (void)cudaFree(odd);
  };
  EXPECT_DEATH(poke_and_free(11), "poke_kernel.* wrote 44 bytes from the start of a block of 40");
  EXPECT_DEATH(poke_and_free(-1), "poke_kernel.* wrote -4 bytes from the start of a block of 40");
}

TEST_F(EmulatorDeathTest, MemoryThatWasFreed) {
  OK(cudaFree(y));
  EXPECT_DEATH((void)run(increment(), 1, kThreads, x, y), "is 0x.*, where no memory is");
}

TEST_F(EmulatorDeathTest, AStructMayHoldWhatIsNotUsed) {
  OK(cudaFree(y));
  float* const z = floats();
  OK(run(choose(), 1, 1, Choice{y, false}, z));
  EXPECT_EQ(read(z)[0], 0);
  EXPECT_DEATH((void)run(choose(), 1, 1, Choice{y, true}, z), "no memory.*choose_kernel");
}

TEST_F(EmulatorTest, FreshMemoryIsNoNumber) {
  for (const float value : read(y)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(EmulatorTest, AMissingWaitShows) {
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (const bool waits : {false, true}) {
    float* const made = floats();
    OK(launch(increment(), 1, kThreads, x, made));
    OK(cudaEventRecord(event, stream));
    if (waits) {
      OK(cudaStreamWaitEvent(other, event, 0));
    }
    std::vector<float> values(kThreads);
    OK(cudaMemcpyAsync(values.data(), made, kBytes, cudaMemcpyDeviceToHost, other));
    EXPECT_EQ(values[0] == 1, waits);
  }
}

TEST_F(EmulatorTest, HostMemoryIsReadWhenTheCopyRuns) {
  float* const host = pinned();
  host[0] = 1;
  OK(cudaMemcpyAsync(y, host, kBytes, cudaMemcpyHostToDevice, stream));
  host[0] = 2;  // too early
  EXPECT_EQ(read(y)[0], 2);
}

TEST_F(EmulatorDeathTest, TheHostReachesForDeviceMemory) {
  EXPECT_DEATH(y[0] = 1, "device memory, which the host cannot reach");
}

TEST_F(EmulatorDeathTest, AKernelReachesForAnotherDevicesMemory) {
  OK(cudaSetDevice(1));
  float* const there = floats();
  OK(cudaSetDevice(0));
  EXPECT_DEATH((void)run(increment(), 1, kThreads, there, y), "is memory of cuda:1");
}

TEST_F(EmulatorDeathTest, TheWrongCurrentDevice) {
  OK(cudaSetDevice(1));
  EXPECT_DEATH((void)run(increment(), 1, kThreads, x, y),
               "launched on cuda:1 for a stream of cuda:0");
}

TEST_F(EmulatorTest, CallsThatNoRecordingAllows) {
  cudaGraph_t graph = nullptr;
  void* p = nullptr;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaMalloc(&p, 64), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  for (cudaError_t (*const ask)(cudaEvent_t) : {cudaEventQuery, cudaEventSynchronize}) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(event, stream));
    EXPECT_EQ(ask(event), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  }
  OK(cudaEventDestroy(event));
}

TEST_F(EmulatorTest, RecordingsReplay) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(launch(increment(), 1, kThreads, x, x));
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_EQ(read(x)[0], 0) << "recorded, not run";
  for (int i = 1; i <= 3; ++i) {
    OK(cudaGraphLaunch(exec, stream));
    EXPECT_EQ(read(x)[0], i);
  }
}

TEST_F(EmulatorDeathTest, AMisalignedVector) {
  EXPECT_DEATH((void)run(wide(), 1, 1, x, y, 1), "misaligned access");
}

TEST_F(EmulatorTest, LimitsOfALaunch) {
  EXPECT_EQ(run(increment(), 1, 1025, x, y), cudaErrorInvalidConfiguration);
  EXPECT_EQ(run(increment(), dim3(1, 65536), 1, x, y), cudaErrorInvalidConfiguration);
  EXPECT_EQ(run(increment(), 0, 1, x, y), cudaErrorInvalidConfiguration);
  EXPECT_EQ(run(increment(), 1, 0, x, y), cudaErrorInvalidConfiguration);
}

TEST_F(EmulatorDeathTest, AWorkspaceThatIsTooSmall) {
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnSetStream(handle, stream), CUDNN_STATUS_SUCCESS);
  Conv2dArgs args;
  args.x = args.y = View{nullptr, DType::f32, {1, 1, 4, 4}, {}};
  args.w = View{nullptr, DType::f32, {1, 1, 1, 1}, {}};
  const cuda::ConvGraph graph(cuda::CudnnProblem(args), MemoryFormat::nchw, {}, {.handle = handle});
  const auto offered = graph.offered(CUDNN_HEUR_MODE_A);
  const auto plan = cuda::EnginePlan::make(offered.at(0), {.handle = handle});
  ASSERT_TRUE(plan);
  ASSERT_GT(plan->workspace_bytes(), kBytes);
  float* const w = floats();
  EXPECT_DEATH((void)cuda::run_convolution(*plan, handle, {x, y, w}, floats()),
               "cudnn: workspace .*, .* bytes needed");
}

// Memory that weft's caching allocator lends: blocks that are neighbours in one segment.
class LoanTest : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    scope.emplace(Stream{kDevice, stream});
  }
  static intrusive_ptr<Storage> borrow(std::size_t floats) {
    return Storage::allocate(kDevice, floats * 4);
  }
  static float* floats_of(const intrusive_ptr<Storage>& storage) {
    return static_cast<float*>(storage->data());
  }

  static constexpr Device kDevice{DeviceType::cuda, 0};
  std::optional<StreamScope> scope;
};
using LoanDeathTest = LoanTest;

TEST_F(LoanDeathTest, AnAccessOneBeyondTheEnd) {
  const auto before = borrow(100), a = borrow(100), after = borrow(100);
  for (int at : {0, 99}) {
    OK(run(poke(), 1, 1, floats_of(a), at));
    OK(run(peek(), 1, 1, floats_of(a), at, y));
  }
  constexpr const char* kFault =
      "no memory, beyond or after the end of a block.*p[eo][ek][ek]_kernel";
  EXPECT_DEATH((void)run(poke(), 1, 1, floats_of(a), 100), kFault);
  EXPECT_DEATH((void)run(peek(), 1, 1, floats_of(a), 100, y), kFault);
  EXPECT_DEATH(read(floats_of(a), 101), "cudaMemcpyAsync");
}

// Up to the next multiple of 16 bytes, and before the block, no page catches it.
TEST_F(LoanDeathTest, AnAccessBesideIt) {
  const auto a = borrow(101);
  EXPECT_DEATH((void)run(poke(), 1, 1, floats_of(a), 101),
               "poke_kernel.* wrote 404 bytes from the start of a block of 404");
  EXPECT_DEATH((void)run(poke(), 1, 1, floats_of(a), -1),
               "poke_kernel.* wrote -4 bytes from the start of a block of 404");
  for (int at : {-1, 101}) {
    OK(run(peek(), 1, 1, floats_of(a), at, y));
    EXPECT_TRUE(std::isnan(read(y)[0])) << at;
  }
}

TEST_F(LoanDeathTest, MemoryThatWasGivenBack) {
  float* const gone = floats_of(borrow(100));
  OK(cudaStreamSynchronize(stream));
  EXPECT_DEATH((void)run(peek(), 1, 1, gone, 0, y), "is 0x.*, where no memory is");
}

TEST_F(LoanTest, AReusedBlockIsFreshAndStillTheLastBorrowers) {
  auto first = borrow(kThreads);
  const auto driver_calls = memory_stats(kDevice).driver_allocations;
  OK(launch(increment(), 1, kThreads, x, floats_of(first)));
  OK(launch(peek(), 1, 1, floats_of(first), 5, y));
  first = nullptr;
  const auto second = borrow(kThreads);  // while all of that is only queued
  EXPECT_EQ(memory_stats(kDevice).driver_allocations, driver_calls);
  EXPECT_EQ(read(y)[0], 6);
  for (const float value : read(floats_of(second))) EXPECT_TRUE(std::isnan(value));
}

TEST_F(LoanDeathTest, AnotherStreamThatWasNotRecorded) {
  const Stream other = runtime(kDevice).new_stream(0);
  const auto use_there = [&](bool records) {
    const auto a = borrow(kThreads);
    OK(launch(increment(), 1, kThreads, x, floats_of(a)));
    OK(cudaStreamSynchronize(stream));
    const cudaStream_t here = std::exchange(stream, static_cast<cudaStream_t>(other.handle));
    OK(launch(peek(), 1, 1, floats_of(a), 5, y));
    stream = here;
    if (records) a->record_stream(other);
  };
  const auto wait = [&] {
    runtime(kDevice).synchronize({kDevice, stream});
    runtime(kDevice).synchronize(other);
  };
  use_there(true);
  wait();
  EXPECT_EQ(read(y)[0], 6);
  EXPECT_DEATH((use_there(false), wait()), "peek_kernel.*: parameter 0.*where no memory is");
}

TEST_F(LoanTest, EachReplayFindsFreshMemory) {
  graph::Step step = graph::capture(kDevice, [&] {
    const Stream now = current_stream(kDevice);
    const cudaStream_t outside = std::exchange(stream, static_cast<cudaStream_t>(now.handle));
    const auto a = borrow(1);
    OK(launch(peek(), 1, 1, floats_of(a), 0, y));  // too early
    OK(launch(poke(), 1, 1, floats_of(a), 0));
    stream = outside;
  });
  for (int i = 0; i < 4; ++i) {
    OK(run(poke(), 1, 1, y, 0));
    step();
    EXPECT_TRUE(std::isnan(read(y)[0])) << i;
  }
}

TEST_F(LoanDeathTest, PageLockedMemory) {
  auto host = Storage::allocate_pinned(400);
  EXPECT_DEATH(floats_of(host)[100] = 1, "no memory, beyond or after the end of a block");
  const auto copy_and_let_go = [&] {  // the copy is still queued, and this is not reported
    (void)cudaMemcpyAsync(host->data(), x, kBytes, cudaMemcpyDeviceToHost, stream);
    host = nullptr;
    (void)cudaStreamSynchronize(stream);
  };
  EXPECT_DEATH(copy_and_let_go(), "the memory is gone by the time it runs");
}

}  // namespace
}  // namespace weft::testing
