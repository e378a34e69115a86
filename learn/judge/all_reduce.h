// What the exercises on all-reduce judge alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/learn/judge/ranks.h"

namespace weft::learn {

/// Every rank calls it with an x of the same size; on all of them x becomes the sum of all x.
using AllReduce = void (*)(Messages& me, std::span<float> x);

/// Runs f on n ranks with whole numbers, and requires that the sums are exact, and that no rank
/// writes around x. At most 8 ranks. `advice`: see on_ranks().
std::vector<Traffic> check_exact(AllReduce f, int n, std::int64_t count,
                                 const std::string& advice = "");
/// The same with numbers whose sums are rounded, which must have the same bits on every rank.
std::vector<Traffic> check_bits(AllReduce f, int n, std::int64_t count,
                                const std::string& advice = "");
/// Both.
std::vector<Traffic> check_all_reduce(AllReduce f, int n, std::int64_t count,
                                      const std::string& advice = "");

/// One of these with 1 to `most` ranks, and sizes that do and do not divide by them.
using CheckOne = std::vector<Traffic> (*)(AllReduce f, int n, std::int64_t count,
                                          const std::string& advice);
void check_sums(AllReduce f, int most, const std::string& advice = "",
                CheckOne check = check_all_reduce);

/// What wrong solutions are made of. In a namespace of its own, since a learner's helpers may have
/// these names.
namespace wrong {

void add(std::span<float> to, std::span<const float> from);
void receive_and_add(Messages& me, int from, std::span<float> x);

}  // namespace wrong
}  // namespace weft::learn
