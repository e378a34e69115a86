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

/// The running thread's number in its block, and in its warp.
unsigned thread_number();
inline unsigned lane() { return thread_number() % 32; }

/// All lanes of the mask get here before one goes on, each with the value of its source.
void exchange(int line, unsigned mask, unsigned source, void* value, std::size_t bytes);

template <class T>
T shuffle(int line, unsigned mask, T value, unsigned source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));  // as CUDA's
  exchange(line, mask, source, &value, sizeof value);
  return value;
}
// Lanes exchange within groups of `width`.
template <class T>
T shuffle_from(int line, unsigned mask, T value, int source, int width = 32) {
  const unsigned group = lane() / width * width;
  return shuffle(line, mask, value, group + static_cast<unsigned>(source) % width);
}
template <class T>
T shuffle_xor(int line, unsigned mask, T value, int bits, int width = 32) {
  const unsigned source = lane() ^ static_cast<unsigned>(bits);
  return shuffle(line, mask, value, source / width > lane() / width ? lane() : source);
}
inline void warp_barrier(int line, unsigned mask = 0xffffffff) {
  exchange(line, mask, lane(), nullptr, 0);
}

}  // namespace emulator

// For the thread that is running.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/// Advances by itself, and with each call.
long long clock64();

#define __syncthreads() ::emulator::barrier(__LINE__)
#define __syncwarp(...) ::emulator::warp_barrier(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) ::emulator::shuffle_from(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) ::emulator::shuffle_xor(__LINE__, __VA_ARGS__)

// Threads run one after the other, and blocks too: nothing comes in between, and all see it at
// once.
inline unsigned atomicInc(unsigned* p, unsigned most) {
  const unsigned old = *p;
  *p = old >= most ? 0 : old + 1;
  return old;
}
inline void __threadfence() {}

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
