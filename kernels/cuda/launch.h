// All kernels are launched through this header.
#pragma once

#include <source_location>
#include <type_traits>

#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

/// The name of a kernel and the line that launches it, for error messages.
struct Launch {
  const char* name;
  std::source_location where;
  Launch(const char* n, std::source_location w = std::source_location::current())
      : name(n), where(w) {}
};

/// Must be called after every kernel launch and every library call that queues kernels. Throws Cuda
/// or OutOfMemory if one failed. With WEFT_SYNC=1 it also waits for the stream, unless the stream
/// is recording, so that a fault inside a kernel is reported here and not by a later call.
void check_launched(const Launch& from, const Stream& stream);

/// The address of a kernel, as the CUDA runtime expects it.
template <class... Params>
const void* address_of(void (*kernel)(Params...)) {
#ifdef WEFT_EMULATED_CUDA
  return ::emulator::address_of(kernel);  // registers the parameters
#else
  return reinterpret_cast<const void*>(kernel);
#endif
}

/// Queues `kernel` on the stream and calls check_launched(). arguments[i] points to parameter i, of
/// exactly the declared type. `block`: threads per block.
void launch_untyped(const Launch& from, const Stream& stream, const void* kernel, dim3 grid,
                    int block, void** arguments);

/// The same with argument types checked by the compiler. `kernel` must be compiled for blocks of up
/// to `block` threads (__launch_bounds__).
template <class... Params>
void launch(const Launch& from, const Stream& stream, void (*kernel)(Params...), dim3 grid,
            int block, const std::type_identity_t<Params>&... args) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&args))...};
  launch_untyped(from, stream, address_of(kernel), grid, block, arguments);
}

}  // namespace weft::cuda
