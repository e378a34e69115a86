// File descriptors, whose number the system limits for each process.
#pragma once

#include <cstdint>
#include <string>

namespace weft::comm {

/// The descriptors that a process needs to host the store for `ranks` other processes, if each of
/// them has one group. Each further group needs as many again.
std::int64_t store_descriptors(std::int64_t ranks);

/// Throws Library, with the numbers and how to raise the limit, if this process may not open
/// `needed` more descriptors. `what` names what needs them: "a store for 500 ranks".
void check_descriptors(const char* op, const std::string& what, std::int64_t needed);

}  // namespace weft::comm
