// What the memory of each device is used for.
#pragma once

#include <span>
#include <string>

#include "weft/core/base/device.h"

namespace weft::train {

/// A table of each device's memory by owner: what each had when the device's memory was at its peak
/// so far, and the most that it ever had (core/runtime/allocator.h). If one device's peak is above
/// another's, a sentence says of what, and why: because it is the first and leads the others or, if
/// each has a part of the model, because the parts differ.
///   memory                                    cpu:0
///                       at its peak      at most
///   activations           12.30 MiB    12.30 MiB
///   ...
std::string memory_table(std::span<const Device> devices, bool model_in_parts = false);

}  // namespace weft::train
