#include "weft/tests/emulator/kernels.h"

#include "weft/kernels/cuda/launch.h"

namespace weft::testing {

namespace {

__global__ void increment_kernel(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] + 1; }

template <bool kBarrier>
__global__ void reversed_kernel(const float* x, float* y) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = x[threadIdx.x];
  if (kBarrier) __syncthreads();
  y[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

// Through shared memory, and within a warp.
template <bool kBarrier>
__global__ void swapped_kernel(const float* x, float* y) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = x[threadIdx.x];
  if (kBarrier) __syncwarp();
  y[threadIdx.x] = values[threadIdx.x ^ 1];
}

__global__ void shuffle_kernel(const float* x, float* y) {
  const float swapped = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1);
  const double first = __shfl_sync(0xffffffff, double(x[threadIdx.x]), 2, 8);
  y[threadIdx.x] = 100 * swapped + float(first);
}

// Half of the threads do not come, or the mask lacks them.
template <unsigned kMask>
__global__ void divergent_shuffle_kernel(const float* x, float* y) {
  if (threadIdx.x % 2 == 0) y[threadIdx.x] = __shfl_xor_sync(kMask, x[threadIdx.x], 1);
}

template <bool kOtherPlace>
__global__ void divergent_kernel(float* y) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else if (kOtherPlace) {
    __syncthreads();
  }
  y[threadIdx.x] = 1;
}

__global__ void poke_kernel(float* y, int at) { y[at] = 1; }
__global__ void peek_kernel(const float* x, int at, float* y) { y[0] = x[at]; }

__global__ void choose_kernel(const Choice choice, float* y) { y[0] = choice.on ? choice.x[0] : 0; }

__global__ void disputed_kernel(float* y) { y[0] = static_cast<float>(blockIdx.x); }

struct alignas(16) Four {
  float x[4];
};

__global__ void wide_kernel(const float* x, float* y, int at) {
  const Four four = *reinterpret_cast<const Four*>(x + at);
  y[0] = four.x[0] + four.x[1] + four.x[2] + four.x[3];
}

}  // namespace

const void* increment() { return cuda::address_of(increment_kernel); }
const void* reversed(bool barrier) {
  return barrier ? cuda::address_of(reversed_kernel<true>)
                 : cuda::address_of(reversed_kernel<false>);
}
const void* swapped(bool barrier) {
  return barrier ? cuda::address_of(swapped_kernel<true>) : cuda::address_of(swapped_kernel<false>);
}
const void* shuffle() { return cuda::address_of(shuffle_kernel); }
const void* divergent_shuffle(bool masked) {
  return masked ? cuda::address_of(divergent_shuffle_kernel<0x55555555>)
                : cuda::address_of(divergent_shuffle_kernel<0xffffffff>);
}
const void* divergent(bool other_place) {
  return other_place ? cuda::address_of(divergent_kernel<true>)
                     : cuda::address_of(divergent_kernel<false>);
}
const void* poke() { return cuda::address_of(poke_kernel); }
const void* peek() { return cuda::address_of(peek_kernel); }
const void* choose() { return cuda::address_of(choose_kernel); }
const void* disputed() { return cuda::address_of(disputed_kernel); }
const void* wide() { return cuda::address_of(wide_kernel); }

}  // namespace weft::testing
