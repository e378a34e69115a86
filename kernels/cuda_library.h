// The functions of the CUDA backend's library, libweft_cuda.so, for libweft.so, which opens it.
#pragma once

#include <string>

#include "weft/core/base/error.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"

namespace weft {

/// Must be equal on both sides: the version, and the sizes of the types that they share.
inline std::string cuda_library_stamp() {
  return detail::concat(kVersion, ' ', sizeof(Backend), ' ', sizeof(ThreadState));
}

/// The address of `name` in that library; null if it has none, or if no library is open.
void* cuda_library_symbol(const char* name);

}  // namespace weft

/// The library's cuda_library_stamp(), to be compared before anything else is used.
extern "C" const char* weft_cuda_stamp();
extern "C" const weft::Backend* weft_cuda_backend();
