// NCCL's functions, by their own names in this namespace. The library is opened at its first use,
// like cuBLASLt and cuDNN (kernels/cuda/libraries.h).
#pragma once

#include <nccl.h>

#include <string>
#include <type_traits>

#include "weft/kernels/cuda/libraries.h"

namespace weft::comm::nccl {

/// Why the library cannot be opened; empty: it can.
std::string missing();

#ifndef WEFT_EMULATED_CUDA  // the emulator is linked

cuda::Library& library();

#define WEFT_NCCL_(name) \
  inline constinit cuda::Imported<library, std::remove_pointer_t<decltype(&::name)>> name { #name }
WEFT_NCCL_(ncclAllGather);
WEFT_NCCL_(ncclAllReduce);
WEFT_NCCL_(ncclBroadcast);
WEFT_NCCL_(ncclCommAbort);
WEFT_NCCL_(ncclCommDestroy);
WEFT_NCCL_(ncclCommFinalize);
WEFT_NCCL_(ncclCommGetAsyncError);
WEFT_NCCL_(ncclCommInitRankConfig);
WEFT_NCCL_(ncclGetErrorString);
WEFT_NCCL_(ncclGetLastError);
WEFT_NCCL_(ncclGetUniqueId);
WEFT_NCCL_(ncclGetVersion);
WEFT_NCCL_(ncclGroupEnd);
WEFT_NCCL_(ncclGroupStart);
WEFT_NCCL_(ncclRecv);
WEFT_NCCL_(ncclReduce);
WEFT_NCCL_(ncclReduceScatter);
WEFT_NCCL_(ncclSend);
#undef WEFT_NCCL_

#endif

}  // namespace weft::comm::nccl
