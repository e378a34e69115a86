// Recording streams: CUDA graphs. Its one kernel writes some words that are its parameters, and
// reads no memory.
#include <algorithm>
#include <utility>

#include "weft/core/runtime/index_reports.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {
namespace {

/// An executable graph.
class CudaRecordedWork final : public RecordedWork {
 public:
  /// The device must be current.
  CudaRecordedWork(int device, cudaGraph_t graph) : device_(device) {
    WEFT_CUDA(cudaGraphInstantiate(&work_, graph, 0));
  }

  // This must wait even if another step is recording on this thread.
  ~CudaRecordedWork() override {
    const AllowWhileRecording allow;
    if (launched_) WEFT_CUDA_LOG(cudaEventSynchronize(launched_));
    WEFT_CUDA_LOG(cudaGraphExecDestroy(work_));
    if (launched_) WEFT_CUDA_LOG(cudaEventDestroy(launched_));
    checks_->over = true;
  }

  void launch(const Stream& stream) override {
    use_device(device_);
    if (!launched_) WEFT_CUDA(cudaEventCreateWithFlags(&launched_, cudaEventDisableTiming));
    WEFT_CUDA(cudaGraphLaunch(work_, handle(stream)));
    WEFT_CUDA(cudaEventRecord(launched_, handle(stream)));
    check_launched("graph", stream);
    index_reports(true)->launched(checks_);
  }

 private:
  int device_;
  cudaGraphExec_t work_ = nullptr;
  const std::shared_ptr<RecordedChecks> checks_ = index_reports(true)->take_recorded();
  cudaEvent_t launched_ = nullptr;  // after the last launch, whose stream may not live as long
};

/// Kernel parameters are copied when the launch is queued, so the host may change them at once.
struct Words {
  std::uint64_t at[Runtime::kMaxWords];
};
static_assert(sizeof(Words) + 64 <= 4096, "kernel parameters");

__global__ void __launch_bounds__(kBlock)
    write_words_kernel(const __grid_constant__ Words words, int count, std::uint64_t* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock) to[i] = words.at[i];
}

}  // namespace

bool CudaRuntime::is_recording(const Stream& stream) { return capturing(stream); }

// Other threads may allocate memory meanwhile; this thread needs permission (AllowWhileRecording).
void CudaRuntime::begin_recording(const Stream& stream) {
  if (IndexReports* const mine = index_reports()) mine->take_recorded();  // of an abandoned one
  use_device(stream.device.index);
  WEFT_CUDA(cudaStreamBeginCapture(handle(stream), cudaStreamCaptureModeThreadLocal));
}

std::unique_ptr<RecordedWork> CudaRuntime::end_recording(const Stream& stream) {
  use_device(stream.device.index);
  cudaGraph_t graph = nullptr;
  WEFT_CUDA(cudaStreamEndCapture(handle(stream), &graph));
  const auto destroy = [](cudaGraph_t g) { WEFT_CUDA_LOG(cudaGraphDestroy(g)); };
  const std::unique_ptr<CUgraph_st, decltype(destroy)> owner(graph, destroy);
  return std::make_unique<CudaRecordedWork>(stream.device.index, graph);
}

void CudaRuntime::abandon_recording(const Stream& stream) noexcept {
  cudaGraph_t graph = nullptr;
  // The original error is being reported already, and is often the reason why this call fails.
  if (cudaStreamEndCapture(handle(stream), &graph) != cudaSuccess) cudaGetLastError();
  if (graph) WEFT_CUDA_LOG(cudaGraphDestroy(graph));
}

void CudaRuntime::write_words(std::uint64_t* to, std::span<const std::uint64_t> words,
                              const Stream& stream) {
  Words by_value{};
  std::copy(words.begin(), words.end(), by_value.at);
  launch("write_words", stream, write_words_kernel, 1, kBlock, by_value,
         static_cast<int>(words.size()), to);
}

}  // namespace weft::cuda
