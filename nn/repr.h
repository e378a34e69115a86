// How a layer's options are written in to_string: as Python writes them; counts and lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/shape.h"
#include "weft/nn/conv.h"

namespace weft::nn::detail {

/// "True", "False"
const char* repr(bool value);
/// The shortest digits that give the same number again: "0.1", "1e-05", "2.0".
std::string repr(double value);
/// "2,405,633", of a count
std::string with_commas(std::int64_t n);
/// "3", or "(3, 2)" for two different numbers.
std::string repr(const Pair& pair);
/// "(4, 5)", "(10,)"
std::string repr(const Shape& shape);
/// "a, b, c"; of more than eight the first eight "and 118 more": a file of another model may have
/// hundreds of names, and a few tell.
std::string first_few(const std::vector<std::string>& entries);

}  // namespace weft::nn::detail
