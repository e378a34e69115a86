// Counts the calls of ::operator new of the whole program that links it.
#pragma once

#include <cstdint>

namespace weft::testing {

std::int64_t heap_count();

}  // namespace weft::testing
