// Exercise 4: what you write, and what you write it with.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// Which part of an epoch is asked for.
struct Share {
  int ranks = 1, rank = 0;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  bool drop_last = false;
};

/// The samples that the rank visits in the epoch, in order, of a data set of `size` samples.
/// Generator(number).randperm(size) is a permutation of 0 to size - 1, for each number another.
std::vector<std::int64_t> samples_of(std::int64_t size, const Share& share);

}  // namespace weft::learn
