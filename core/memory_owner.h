// What memory is for: so that a training run can say who holds it.
#pragma once

#include <cstdint>

namespace weft {

/// Who asked for a storage, by ThreadState::memory_owner when it was allocated. `activations` is
/// what nobody else claims: results of operations, workspaces. `gathered` is what parallel::gather
/// makes, `data` what a loader does.
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
