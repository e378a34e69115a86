// What memory is for: so that a training run can say who holds it.
#pragma once

#include <cstdint>

namespace weft {

/// Who asked for a storage, by ThreadState::memory_owner when it was allocated. `activations` is
/// what nobody else claims: results of operations, batches, workspaces.
enum class MemoryOwner : std::uint8_t { activations, parameters, gradients, optimizer, gathered };
inline constexpr int kMemoryOwners = 5;

/// "parameters"; what parallel::gather made is "gathered outputs".
const char* to_string(MemoryOwner owner);

}  // namespace weft
