// What a CUDA build must do on a machine without a GPU or driver. With a GPU these tests are
// skipped, and the conformance tests of tests/kernels replace them.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/gpus.h"
#include "weft/kernels/cuda/runtime.h"
#include "weft/tests/core/expect_error.h"

namespace weft::cuda {
namespace {

class WithoutGpu : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef WEFT_EMULATED_CUDA
    GTEST_SKIP() << "there are emulated GPUs here";
#endif
    // Checks the driver's device files (the second is WSL's), which does not depend on the tested
    // code.
    for (const char* driver : {"/dev/nvidiactl", "/dev/dxg"}) {
      if (std::filesystem::exists(driver)) GTEST_SKIP() << "there is a GPU driver here: " << driver;
    }
  }
};

TEST_F(WithoutGpu, CountsNoDevices) {
  EXPECT_EQ(device_count(DeviceType::cuda), 0);
  EXPECT_EQ(cuda_runtime().device_count(), 0);
}

TEST_F(WithoutGpu, AskingForADeviceSaysThatNoneIsVisible) {
  EXPECT_WEFT_ERROR(runtime(Device("cuda:0")), Device, "no CUDA device is visible");
  EXPECT_WEFT_ERROR(backend(Device("cuda:0")), Device, "[cuda:0] no such device");
}

// One text for all failures: the call, the library's name for the error, the device, the place.
TEST_F(WithoutGpu, AFailedCallIsATypedError) {
  try {
    cuda_runtime().new_stream(0);
    FAIL() << "made a stream without a device";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Cuda);
    EXPECT_EQ(e.op(), "cuda");
    const std::string text = e.what();
    for (const char* part : {"cudaGetDevice(&current) failed: cudaError", " on no device",
                             " at kernels/cuda/check.cc:"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
  EXPECT_WEFT_ERROR(cuda_runtime().allocate(0, 64), Cuda, "failed: cudaError");
  EXPECT_WEFT_ERROR(cuda_runtime().new_event(0), Cuda, "failed: cudaError");
}

TEST(CudaErrors, TimingEventsKnowWhenTheyPassed) {
  if (device_count(DeviceType::cuda) == 0) GTEST_SKIP() << "needs a GPU";
  CudaRuntime& runtime = cuda_runtime();
  const Stream stream = runtime.new_stream(0);
  const auto first = runtime.new_timing_event(0), second = runtime.new_timing_event(0);
  constexpr std::size_t kBytes = 1 << 20;
  void* const memory = runtime.allocate(0, kBytes);
  first->record(stream);
  runtime.fill_zero(memory, kBytes, stream);
  second->record(stream);
  second->synchronize();
  EXPECT_GE(second->elapsed_ns(*first), 0);
  EXPECT_EQ(first->elapsed_ns(*first), 0);
  EXPECT_WEFT_ERROR(runtime.new_event(0)->elapsed_ns(*first), Cuda, "cudaEventElapsedTime");

  // For a tracer's row with the device's own times.
  Tracer tracer({.device_time = true});
  const Device device("cuda:0");
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    const Stream before = set_current_stream(stream);
    {
      const Span span("op", "fill", device);
      runtime.fill_zero(memory, kBytes, stream);
    }
    set_current_stream(before);
  }
  const std::string path = ::testing::TempDir() + "cuda_trace.json";
  tracer.write(path);  // waits for the end of the span
  runtime.free(0, memory, kBytes);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  EXPECT_NE(text.str().find("\"work of cuda:0\""), std::string::npos) << text.str();
}

class Collected : public LogSink {
 public:
  void write(Level level, std::string_view message) override {
    messages.push_back(std::string(level == Level::warning ? "warning: " : "") +
                       std::string(message));
  }
  std::vector<std::string> messages;
};

TEST_F(WithoutGpu, FreeingNeverThrows) {
  Collected sink;
  const Scoped<LogSink*> to_sink(&ThreadState::log, &sink);
  int not_from_cuda = 0;
  cuda_runtime().free(0, &not_from_cuda, sizeof not_from_cuda);
  ASSERT_EQ(sink.messages.size(), 1u);
  EXPECT_EQ(sink.messages[0].find("warning: cudaFree(p) failed: cudaError"), 0u)
      << sink.messages[0];
}

TEST(CudaBackend, OffersEveryKernel) {
  const Backend* found = cuda_backend();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->runtime, &cuda_runtime());
  // The table contains only function pointers.
  std::vector<void*> entries(sizeof(KernelTable) / sizeof(void*));
  std::memcpy(entries.data(), &found->kernels, sizeof(KernelTable));
  for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_NE(entries[i], nullptr) << i;
}

TEST(CudaBackend, KnowsWhatItWasCompiledFor) {
  EXPECT_FALSE(parse_built_for(archs()).code.empty()) << archs();
}

}  // namespace
}  // namespace weft::cuda
