// Digests: what `./weft prove` keeps of a tensor in place of its elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/tensor/tensor.h"

namespace weft::train {

/// Two tensors of one shape whose hashes are equal are equal to the bit, except with a chance of
/// about 1 in 2^64. Four sums of signs tell how far apart they are: each adds up all elements with
/// pseudo-random signs, which depend only on an element's place. The mean of the squared
/// differences of the sums estimates the squared L2 norm of the difference of the tensors (Alon,
/// Matias and Szegedy, "The space complexity of approximating the frequency moments", 1996).
struct Digest {
  /// Depends on dtype and elements in logical order; not on the shape, nor on the sign of a zero.
  std::uint64_t hash = 0;
  double sum = 0, l2 = 0;  ///< of the finite elements only, as are the signs
  double max = 0;          ///< the largest magnitude; NaN if there is one
  std::array<double, 4> signs = {};
  std::uint64_t not_finite = 0;  ///< a hash of which elements are NaN or infinite; 0: none
};

/// The digest of a strided tensor on any device. Waits for the device.
Digest digest(const Tensor& x);
/// Only the hash.
std::uint64_t hash_of(const Tensor& x);
std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t before = 0);

}  // namespace weft::train
