// What the ranks of a run that failed did last: the first operation at which they differ, some
// lines about it, and a JSON file of everything that their black boxes hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/runtime/black_box.h"
#include "weft/launch/report.h"

namespace weft::launch {

/// Fills in what the black box of the rank holds; the memory only if `rank` has none yet.
void read_black_box(const BlackBox& box, RankResult& rank);

/// The first collective of a group at which its ranks on this node differ.
struct Difference {
  std::string group;  ///< as in LastOperation
  std::int64_t number = 0;
  std::string why;   ///< "rank 1 has not begun it"
  std::string call;  ///< "all_reduce 31 (bucket 0)", of a rank that has begun it
};

/// With several groups, the one whose ranks differ first in time. Nothing if all ranks have ended
/// the same operations. What a rank's box no longer holds counts as ended.
std::optional<Difference> first_difference(const AttemptResult& result);

/// Lines that say, per rank, what it did around the first difference, or last where there is none.
/// The last line has an end, too. Empty if no rank has begun an operation.
std::string last_operations(const AttemptResult& result);

/// Writes --failure. Times in it are in seconds after the failure, so most are negative. Throws Io.
void write_failure(const std::string& path, const AttemptResult& result,
                   const std::vector<std::string>& command, int world_size);

}  // namespace weft::launch
