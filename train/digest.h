// Digests: what `./weft prove` keeps of a tensor in place of its elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/tensor/tensor.h"

namespace weft::train {

/// Two tensors of one shape are equal to the bit if their hashes are, but for one chance in 2^64 or
/// so. How far apart they are tell the four sums of signs: each adds up all elements with
/// pseudo-random signs, which depend only on an element's place. The mean of the squared
/// differences of the sums estimates the squared L2 norm of the difference of the tensors (Alon,
/// Matias and Szegedy, "The space complexity of approximating the frequency moments", 1996).
struct Digest {
  /// Of dtype and elements in logical order; not of the shape, nor of the sign of a zero.
  std::uint64_t hash = 0;
  double sum = 0, l2 = 0;  ///< of the elements that are finite, and so are the signs
  double max = 0;          ///< the largest magnitude; NaN if there is one
  std::array<double, 4> signs = {};
  std::uint64_t not_finite = 0;  ///< a hash of which elements are NaN or infinite; 0: none
};

/// Of a strided tensor on any device. Waits for the device.
Digest digest(const Tensor& x);
/// Its hash alone.
std::uint64_t hash_of(const Tensor& x);
std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t before = 0);

}  // namespace weft::train
