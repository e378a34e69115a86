// The binary version of CIFAR-10 and CIFAR-100: records of one label byte, or a coarse and a fine
// one, and the red, green and blue plane of 32 x 32 pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weft/tensor/tensor.h"

namespace weft::io {

enum class CifarKind {
  Cifar10,   ///< labels 0 to 9
  Cifar100,  ///< coarse labels 0 to 19, labels 0 to 99
};

struct CifarImages {
  Tensor images;         ///< u8 [N,3,32,32]
  Tensor labels;         ///< u8 [N]
  Tensor coarse_labels;  ///< u8 [N], the superclasses; undefined for CIFAR-10
};

/// Reads the records of all `paths`, one file after the other.
///
/// Sizes are checked before anything is allocated: each file must contain one or more whole
/// records, and all together at most 1 GiB. Throws Io naming the file and what is wrong, also for a
/// label out of range.
CifarImages read_cifar(std::span<const std::string> paths, CifarKind kind);

/// The same for the bytes of one file in memory; `name` replaces the file's name in messages.
CifarImages parse_cifar(std::span<const std::byte> bytes, CifarKind kind,
                        const std::string& name = "cifar data");

}  // namespace weft::io
