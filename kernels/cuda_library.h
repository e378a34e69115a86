// What the library of the CUDA backend, libweft_cuda.so, offers to libweft.so, which opens it.
#pragma once

#include <string>

#include "weft/core/base/error.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"

namespace weft {

/// Both sides must agree on it: the version, and the sizes of what they share.
inline std::string cuda_library_stamp() {
  return detail::concat(kVersion, ' ', sizeof(Backend), ' ', sizeof(ThreadState));
}

/// The address of `name` in that library; null if it has none, or no library is open.
void* cuda_library_symbol(const char* name);

}  // namespace weft

/// Its cuda_library_stamp(), to be asked before anything else.
extern "C" const char* weft_cuda_stamp();
extern "C" const weft::Backend* weft_cuda_backend();
