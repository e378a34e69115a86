// What the exercises on all-reduce judge alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/learn/judge/ranks.h"

namespace weft::learn {

/// Every rank calls it with an x of the same size; on all of them x becomes the sum of all x.
using AllReduce = void (*)(Messages& me, std::span<float> x);

/// Runs f on n ranks, and requires that the sums are right: of whole numbers exact, of others the
/// same bits on every rank. Also that no rank writes around x. At most 8 ranks.
std::vector<Traffic> check_all_reduce(AllReduce f, int n, std::int64_t count);

/// check_all_reduce() with 1 to `most` ranks, and sizes that do and do not divide by them.
void check_sums(AllReduce f, int most);

/// What wrong solutions are made of. In a namespace of its own, since a learner's helpers may have
/// these names.
namespace wrong {

void add(std::span<float> to, std::span<const float> from);
void receive_and_add(Messages& me, int from, std::span<float> x);

}  // namespace wrong
}  // namespace weft::learn
