// CUDA's C++ for a host compiler: the names that nvcc gives a .cu file. Included before everything
// else.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>  // fma, sqrt, ... of float and double in the global namespace

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#undef __shared__
#define __shared__ static  // one block runs at a time
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace emulator {

/// The parameters of a kernel type: what a launch copies, and how to call the kernel.
struct Signature {
  void (*call)(const void* kernel, void* const* arguments);
  int count;
  const std::size_t* sizes;
  const bool* is_pointer;
};

void note_kernel(const void* kernel, const Signature* signature);

template <class... P, std::size_t... I>
void call_kernel(void (*kernel)(P...), void* const* arguments, std::index_sequence<I...>) {
  kernel(*static_cast<P*>(arguments[I])...);
}

/// The address of a kernel, which can be launched after this call.
template <class... P>
const void* address_of(void (*kernel)(P...)) {
  static constexpr std::size_t sizes[] = {sizeof(P)..., 0};
  static constexpr bool is_pointer[] = {std::is_pointer_v<P>..., false};
  static const Signature signature{
      [](const void* address, void* const* arguments) {
        call_kernel(reinterpret_cast<void (*)(P...)>(const_cast<void*>(address)), arguments,
                    std::index_sequence_for<P...>{});
      },
      static_cast<int>(sizeof...(P)), sizes, is_pointer};
  const void* const address = reinterpret_cast<const void*>(kernel);
  note_kernel(address, &signature);
  return address;
}

/// weft's Runtime::lend() and take_back(); device -1: page-locked memory, without a stream.
void* lend(void* p, std::size_t bytes, int device, cudaStream_t stream);
void take_back(void* p, int device, cudaStream_t stream);

/// Queues a call of a library that is compiled into the program: `work` runs on the host when its
/// turn comes, after arbitrary bytes were written to the workspace.
cudaError_t queue_library(cudaStream_t stream, void* workspace, std::size_t bytes,
                          std::function<void()> work);

/// All threads of the block get here before one goes on.
void barrier(int line);

}  // namespace emulator

// For the thread that is running.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/// Advances by itself, and with each call.
long long clock64();

#define __syncthreads() ::emulator::barrier(__LINE__)

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
