// What the memory of each device is used for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"
#include "weft/train/metrics.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// A table of each device's memory by owner: what each had when the device's memory was at its peak
/// so far, and the most that it ever had (core/runtime/allocator.h). If one device's peak is above
/// another's, a sentence says which owners make the difference, and why: because the device is the
/// first and leads the others or, if each has a part of the model, because the parts differ.
///   memory                                    cpu:0
///                       at its peak      at most
///   activations           12.30 MiB    12.30 MiB
///   ...
std::string memory_table(std::span<const Device> devices, bool model_in_parts = false);

/// The memory of `device` if there are several ranks; else of all devices of its kind that have
/// held something.
std::vector<MemoryStats> memory_of_rank(Device device, const Ranks& ranks);
/// Metrics::memory. All ranks call it, each with what its memory_of_rank() has returned.
std::vector<TestFigures> memory_by_rank(const std::vector<MemoryStats>& own, const Ranks& ranks);
/// Metrics::memory of several ranks:
///   memory, at most         rank 0       rank 1
///   activations          12.30 MiB    12.30 MiB
///   ...
std::string memory_table(const std::vector<TestFigures>& by_rank);

}  // namespace weft::train
