// File descriptors: few systems give a process as many as it asks for.
#pragma once

#include <cstdint>
#include <string>

namespace weft::comm {

/// What the connections of `ranks` other processes to a store take in the process that hosts it,
/// while each of them has one group; with each further group it is as many more.
std::int64_t store_descriptors(std::int64_t ranks);

/// Throws Library, with the numbers and how to raise the limit, where this process may not open
/// `needed` descriptors more. `what` needs them: "a store for 500 ranks".
void check_descriptors(const char* op, const std::string& what, std::int64_t needed);

}  // namespace weft::comm
