// What memory is used for, so that a training run can report how much each use takes.
#pragma once

#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft {

/// What a storage is for: ThreadState::memory_owner when it was allocated. `activations` is the
/// default: results of operations, workspaces. `gradients` are those of activations, too.
/// `gathered` is for results of parallel::gather, `batches` for what a loader hands out, `data_set`
/// for what it takes them from; `whole_parameters` is for those that parallel::fully_shard has
/// gathered for a module's step, `communication` for the messages that it sends and receives.
enum class MemoryOwner : std::uint8_t {
  activations,
  parameters,
  gradients,
  optimizer,
  gathered,
  batches,
  data_set,
  whole_parameters,
  communication
};
inline constexpr int kMemoryOwners = 9;

/// "parameters", "gathered outputs" ...
const char* to_string(MemoryOwner owner);

}  // namespace weft
