// Who holds the memory of each device.
#pragma once

#include <span>
#include <string>

#include "weft/core/device.h"

namespace weft::train {

/// A table of what each device held at its peak so far (core/allocator.h), in MiB, by owner, and,
/// where the first holds more than another, a sentence that says of what.
///   peak memory, MiB     cpu:0    cpu:1
///   activations           12.3     12.2
///   ...
std::string memory_table(std::span<const Device> devices);

}  // namespace weft::train
