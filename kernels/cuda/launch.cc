#include "weft/kernels/cuda/launch.h"

#include <cstdlib>
#include <cstring>

namespace weft::cuda {
namespace {

bool sync_after_launch() {
  static const bool wanted = [] {
    const char* text = std::getenv("WEFT_SYNC");
    return text && std::strcmp(text, "1") == 0;
  }();
  return wanted;
}

}  // namespace

void check_launched(const Launch& from, const Stream& stream) {
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess && sync_after_launch() && !capturing(stream)) {
    status = cudaStreamSynchronize(handle(stream));
  }
  if (status != cudaSuccess) [[unlikely]] {
    throw_status(status, from.name, from.where.file_name(), static_cast<int>(from.where.line()));
  }
}

void launch_untyped(const Launch& from, const Stream& stream, const void* kernel, dim3 grid,
                    int block, void** arguments) {
  use_device(stream.device.index);
  // A refused launch also leaves its status as the thread's last error, which is checked next.
  cudaLaunchKernel(kernel, grid, dim3(block), arguments, 0, handle(stream));
  check_launched(from, stream);
}

}  // namespace weft::cuda
