// Sorting by CUB's radix sort, which reads all keys once for the counts of their digits, and reads
// and writes keys and values once for each digit of up to 8 bits.
#include "weft/kernels/cuda/device_wide.h"

#ifdef WEFT_EMULATED_CUDA
#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP
#include <thrust/sort.h>
#include <thrust/system/cpp/execution_policy.h>
#else
#include <cub/device/device_radix_sort.cuh>
#endif

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/launch.h"

namespace weft::cuda {
namespace {

#ifdef WEFT_EMULATED_CUDA

/// As CUB's: without a workspace it only says how many bytes that needs.
template <class Key>
cudaError_t sort(void* workspace, std::size_t& bytes, int bits, std::int64_t n, const Pairs& from,
                 const Pairs& to, cudaStream_t stream) {
  if (!workspace) {
    bytes = static_cast<std::size_t>(n) * (sizeof(Key) + sizeof(std::int64_t));
    return cudaSuccess;
  }
  return ::emulator::queue_library(stream, workspace, bytes, [=] {
    const auto* const keys = static_cast<const Key*>(from.keys);
    auto* const sorted = static_cast<Key*>(to.keys);
    thrust::copy_n(thrust::cpp::par, keys, n, sorted);
    thrust::copy_n(thrust::cpp::par, from.values, n, to.values);
    const Key mask = Key(~Key{0}) >> (8 * sizeof(Key) - bits);
    thrust::stable_sort_by_key(thrust::cpp::par, sorted, sorted + n, to.values,
                               [=](Key a, Key b) { return (a & mask) < (b & mask); });
  });
}

#else

template <class Key>
cudaError_t sort(void* workspace, std::size_t& bytes, int bits, std::int64_t n, const Pairs& from,
                 const Pairs& to, cudaStream_t stream) {
  const std::int64_t* const values = from.values;
  return cub::DeviceRadixSort::SortPairs(workspace, bytes, static_cast<const Key*>(from.keys),
                                         static_cast<Key*>(to.keys), values, to.values, n, 0, bits,
                                         stream);
}

#endif

}  // namespace

std::size_t sort_pairs_workspace_bytes(const Stream& stream, int key_bytes, std::int64_t n) {
  use_device(stream.device.index);
  std::size_t bytes = 0;
  WEFT_CUDA(dispatch_bytes(key_bytes, [&]<class Key>() {
    return sort<Key>(nullptr, bytes, 8 * key_bytes, n, {}, {}, handle(stream));
  }));
  return bytes;
}

void sort_pairs(const Stream& stream, int key_bytes, int bits, std::int64_t n, const Pairs& from,
                const Pairs& to, void* workspace) {
  std::size_t bytes = sort_pairs_workspace_bytes(stream, key_bytes, n);
  WEFT_CUDA(dispatch_bytes(key_bytes, [&]<class Key>() {
    return sort<Key>(workspace, bytes, bits, n, from, to, handle(stream));
  }));
  check_launched("sort_pairs", stream);
}

}  // namespace weft::cuda
