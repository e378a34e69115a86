// The only way kernels are launched.
#pragma once

#include <source_location>
#include <type_traits>

#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

/// A kernel's name together with the place that launches it, both for the error text.
struct Launch {
  const char* name;
  std::source_location where;
  Launch(const char* n, std::source_location w = std::source_location::current())
      : name(n), where(w) {}
};

/// After every kernel and every library call that queues some: throws what went wrong. With
/// WEFT_SYNC=1 also waits for them, so that a fault inside is reported here and not by a later
/// call.
void check_launched(const Launch& from, const Stream& stream);

/// A kernel's address, as CUDA's runtime takes it.
template <class... Params>
const void* address_of(void (*kernel)(Params...)) {
#ifdef WEFT_EMULATED_CUDA
  return ::emulator::address_of(kernel);  // learns its parameters
#else
  return reinterpret_cast<const void*>(kernel);
#endif
}

/// Queues `kernel` on the stream's device and checks. arguments[i] points to the i-th parameter, of
/// exactly the declared type.
void launch_untyped(const Launch& from, const Stream& stream, const void* kernel, dim3 grid,
                    int block, void** arguments);

/// The same with checked arguments. `kernel` must be compiled for blocks of up to `block` threads
/// (__launch_bounds__).
template <class... Params>
void launch(const Launch& from, const Stream& stream, void (*kernel)(Params...), dim3 grid,
            int block, const std::type_identity_t<Params>&... args) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&args))...};
  launch_untyped(from, stream, address_of(kernel), grid, block, arguments);
}

}  // namespace weft::cuda
