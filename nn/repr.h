// The number format of to_string: a layer's options as Python writes them, counts and lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/base/shape.h"
#include "weft/nn/pair.h"

namespace weft::nn::detail {

/// "True", "False"
const char* repr(bool value);
/// The fewest digits from which the same number can be read: "0.1", "1e-05", "2.0".
std::string repr(double value);
/// A count with commas: "2,405,633".
std::string with_commas(std::int64_t n);
/// "3", or "(3, 2)" for two different numbers.
std::string repr(const Pair& pair);
/// "(4, 5)", "(10,)"
std::string repr(const Shape& shape);
/// "a, b, c". For more than eight entries, the first eight and a count: "a, ..., h and 118 more". A
/// file of another model may have hundreds of names, and a few are enough to recognise it.
std::string first_few(const std::vector<std::string>& entries);

}  // namespace weft::nn::detail
