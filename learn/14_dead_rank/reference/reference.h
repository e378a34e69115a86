// Exercise 14, solved.
#pragma once

#include <vector>

#include "weft/learn/14_dead_rank/solution.h"

namespace weft::learn::reference {

int find_culprit(const std::vector<LastSeen>& ranks);

}  // namespace weft::learn::reference
