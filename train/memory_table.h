// Who holds the memory of each device.
#pragma once

#include <span>
#include <string>

#include "weft/core/device.h"

namespace weft::train {

/// A table of what each device held at its peak so far (core/allocator.h), in MiB, by owner, and,
/// where one holds more than another, a sentence that says of what, and why: because it is the
/// first and leads the others or, where each has a part of the model, because the parts differ.
///   peak memory, MiB     cpu:0    cpu:1
///   activations           12.3     12.2
///   ...
std::string memory_table(std::span<const Device> devices, bool model_in_parts = false);

}  // namespace weft::train
