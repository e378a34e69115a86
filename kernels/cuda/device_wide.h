// Algorithms over all of an array, in several kernels: those of CUB on a GPU. Where CUDA is
// emulated they are Thrust's on the host. Each uses the caller's memory and stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/runtime/runtime.h"

namespace weft::cuda {

/// Unsigned integers of 1, 2, 4 or 8 bytes, and a value for each.
struct Pairs {
  void* keys;
  std::int64_t* values;
};

/// The bytes of workspace that sort_pairs needs on the stream's device.
std::size_t sort_pairs_workspace_bytes(const Stream&, int key_bytes, std::int64_t n);

/// to = the n pairs of `from` by the lowest `bits` bits of their keys, ascending. Pairs in which
/// these are equal keep their order. `from` and `to` do not overlap.
void sort_pairs(const Stream&, int key_bytes, int bits, std::int64_t n, const Pairs& from,
                const Pairs& to, void* workspace);

}  // namespace weft::cuda
