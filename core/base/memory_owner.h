// What memory is used for, so that a training run can say what takes how much.
#pragma once

#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft {

/// What a storage is for: ThreadState::memory_owner when it was allocated. `activations` is the
/// default: results of operations, workspaces. `gathered` is for results of parallel::gather,
/// `data` for a loader's batches.
enum class MemoryOwner : std::uint8_t {
  activations,
  parameters,
  gradients,
  optimizer,
  gathered,
  data
};
inline constexpr int kMemoryOwners = 6;

/// "parameters", "gathered outputs" ...
const char* to_string(MemoryOwner owner);

}  // namespace weft
