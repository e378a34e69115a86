// The memory of a device in a step, for each way of using several devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/tools/simulate/cost_model.h"

namespace weft::simulator {

/// What a device needs at the peak of a step, from the second one on, with blocks of 512 bytes as
/// weft's allocator has them: parameters, optimizer, gradients of parameters, whole parameters
/// (those that fully_shard has gathered), communication (messages), activations (with their
/// gradients). Peak 0 for data_parallel, model_parallel and undivided.
MemoryUse memory_of(const Costs& costs, const Way& way);

/// "12.30 MiB at once; parameters 4.00, ..."
std::string to_text(const MemoryUse& memory);

/// "fits in 32 MiB: fsdp, pipeline always". Pipelines are named by their modes of recomputation,
/// with the smallest number of chunks that fits.
std::string which_fit(const std::vector<Prediction>& predictions, std::int64_t limit);

}  // namespace weft::simulator
