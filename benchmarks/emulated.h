// What a training step asks of a GPU, counted on an emulated one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace weft::bench {

/// Kernel launches, library calls, copies and their bytes of one step of each work at full size,
/// plain and captured, in both layouts where there are two; prints them and what they mean. By the
/// deterministic rule: nothing is timed. Throws Unsupported where CUDA is not emulated, Internal
/// when two steps differ.
nlohmann::json count_steps(const std::vector<std::string>& works);

}  // namespace weft::bench
