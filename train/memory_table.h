// What the memory of each device is used for.
#pragma once

#include <span>
#include <string>

#include "weft/core/base/device.h"

namespace weft::train {

/// A table of each device's memory at its peak so far (core/runtime/allocator.h), in MiB, by owner.
/// If one device holds more than another, a sentence says of what, and why: because it is the first
/// and leads the others or, if each has a part of the model, because the parts differ.
///   peak memory, MiB     cpu:0    cpu:1
///   activations           12.3     12.2
///   ...
std::string memory_table(std::span<const Device> devices, bool model_in_parts = false);

}  // namespace weft::train
