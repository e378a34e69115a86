// Exercise 7: what you write, and what you write it with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// Which gradients are sent together: the indices of the gradients in each bucket, in the order in
/// which the buckets are sent. bytes[i] is the size of gradient i, in the order in which the model
/// defines its parameters; backward finishes the last one first. A bucket is closed when it has
/// reached its limit: `first_limit` for the first, `limit` for all others. Limits are above 0.
/// Without gradients there are no buckets.
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<std::int64_t>& bytes,
                                                   std::int64_t first_limit, std::int64_t limit);

}  // namespace weft::learn
