// Exercise 12, solved.
#pragma once

#include "weft/learn/12_fsdp_unit/solution.h"

namespace weft::learn::reference {

void cut(comm::ProcessGroup& group, Unit& unit);
void gather(comm::ProcessGroup& group, Unit& unit);
void reduce(comm::ProcessGroup& group, Unit& unit);

}  // namespace weft::learn::reference
