// The work that a training step gives a GPU, counted on an emulated one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace weft::bench {

/// Counts kernel launches, library calls, copies and their bytes in one step of each work at full
/// size, for each precision (work.h), plain and captured, in both layouts if there are two; and the
/// shortest time of that on a GPU by the model of gpu_model.h. Prints them and what they mean.
/// Kernels are chosen by the deterministic rule, since nothing is timed. Throws Unsupported unless
/// CUDA is emulated, Internal if two steps differ.
nlohmann::json count_steps(const std::vector<std::string>& works,
                           const std::vector<std::string>& precisions);

}  // namespace weft::bench
