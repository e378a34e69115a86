// All-reduces by one algorithm each, over the connections of the backend "ring", to see when which
// of them wins.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/backend/backend.h"

namespace weft::bench {

/// "direct" and "ring", between which the backends choose by size, and those of exercise 3 of the
/// lab, "tree" and "doubling".
std::vector<std::string> all_reduce_algorithms();

/// Throws std::out_of_range for another name.
comm::BackendMaker make_algorithm(const std::string& name);

}  // namespace weft::bench
