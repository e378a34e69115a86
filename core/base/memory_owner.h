// What memory is used for, so that a training run can report how much each use takes.
#pragma once

#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft {

/// What a storage is for: ThreadState::memory_owner when it was allocated. `activations` is the
/// default: results of operations, workspaces. `gradients` are those of activations, too.
/// `gathered` is for results of parallel::gather, `batches` for what a loader hands out, `data_set`
/// for what it takes them from.
enum class MemoryOwner : std::uint8_t {
  activations,
  parameters,
  gradients,
  optimizer,
  gathered,
  batches,
  data_set
};
inline constexpr int kMemoryOwners = 7;

/// "parameters", "gathered outputs" ...
const char* to_string(MemoryOwner owner);

}  // namespace weft
