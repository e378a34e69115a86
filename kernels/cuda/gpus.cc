#include "weft/kernels/cuda/gpus.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "weft/core/base/error.h"
#include "weft/kernels/cuda/libraries.h"

#ifdef WEFT_EMULATED_CUDA
extern "C" const char* weft_emulated_code();  // emulator/emulator.cc
#endif

namespace weft::cuda {

namespace {

BuiltFor built_for() {
#ifdef WEFT_EMULATED_CUDA
  return parse_built_for(weft_emulated_code());
#else
  return parse_built_for(archs());
#endif
}

/// "13.0"
std::string version_text(int version) {
  return detail::concat(version / 1000, ".", version % 1000 / 10);
}

bool ask(cudaDeviceAttr attribute, int number, int& value, cudaError_t& status) {
  status = cudaDeviceGetAttribute(&value, attribute, number);
  return status == cudaSuccess;
}

// Throws no CUDA error: the text of such an error would contain weft's number of the device.
Gpus look() {
  Gpus found;
  int count = 0;
  found.status = cudaGetDeviceCount(&count);
  if (found.status != cudaSuccess) {
    cudaGetLastError();
    int driver = 0;  // stays 0 without a driver
    cudaDriverGetVersion(&driver);
    if (found.status == cudaErrorInsufficientDriver && driver > 0) {
      found.why_fewer =
          detail::concat("no GPU is used: the driver is made for CUDA up to ", version_text(driver),
                         ", this weft for ", version_text(CUDART_VERSION));
    }
    return found;
  }
  if (count == 0) return found;
  if (const std::string missing = missing_library(); !missing.empty()) {
    found.why_fewer = "no GPU is used: " + missing;
    return found;
  }
  const BuiltFor built = built_for();
  const Capability least = least_capability(CUDART_VERSION, cudnnGetVersion());
  std::vector<VisibleGpu> visible;
  for (int number = 0; number < count; ++number) {
    Capability capability;
    if (!ask(cudaDevAttrComputeCapabilityMajor, number, capability.major, found.status) ||
        !ask(cudaDevAttrComputeCapabilityMinor, number, capability.minor, found.status)) {
      cudaGetLastError();
      found.used.clear();
      return found;
    }
    visible.push_back({number, capability});
    if (capability >= least && has_code_for(capability, built)) {
      found.used.push_back({number, capability});
    }
  }
  found.why_fewer = why_not_used(visible, built, least);
  return found;
}

}  // namespace

// Takes no lock, as in kernels/cuda_loader.cc: look() takes the dynamic linker's.
const Gpus& gpus() {
  static constinit std::atomic<const Gpus*> result{nullptr};
  const Gpus* known = result.load(std::memory_order_acquire);
  if (!known) [[unlikely]] {
    auto mine = std::make_unique<const Gpus>(look());
    if (result.compare_exchange_strong(known, mine.get(), std::memory_order_acq_rel)) {
      return *mine.release();  // never destroyed, for static objects
    }
  }
  return *known;
}

int cuda_number(int device) {
  const std::vector<VisibleGpu>& used = gpus().used;
  return device >= 0 && device < static_cast<int>(used.size())
             ? used[static_cast<std::size_t>(device)].number
             : -1;
}

int device_of_number(int number) {
  const std::vector<VisibleGpu>& used = gpus().used;
  const auto found = std::ranges::find(used, number, &VisibleGpu::number);
  return found == used.end() ? -1 : static_cast<int>(found - used.begin());
}

Capability capability_of(int device) {
  return gpus().used.at(static_cast<std::size_t>(device)).capability;
}

}  // namespace weft::cuda
