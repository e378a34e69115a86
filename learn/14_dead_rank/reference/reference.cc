#include "weft/learn/14_dead_rank/reference/reference.h"

#include <algorithm>
#include <cstddef>

namespace weft::learn::reference {
namespace {

bool computes(const LastSeen& rank) { return rank.waits_for < 0; }

// From a rank to the one for which it waits, and so on: the rank that computes at the end of it, or
// -1 if it ends in a circle. A way without a circle has fewer steps than there are ranks.
int end_of_way(const std::vector<LastSeen>& ranks, int at) {
  for (std::size_t i = 0; i < ranks.size() && !computes(ranks[at]); ++i) at = ranks[at].waits_for;
  return computes(ranks[at]) ? at : -1;
}

}  // namespace

int find_culprit(const std::vector<LastSeen>& ranks) {
  const auto longest = std::ranges::max_element(ranks, {}, &LastSeen::silent_s);
  if (longest == ranks.end()) return -1;
  if (longest->silent_s > 1) return static_cast<int>(longest - ranks.begin());

  // A rank that computes hangs if all others wait for it in the end. If not, it may still come.
  const auto computing = std::ranges::find_if(ranks, computes);
  if (computing != ranks.end()) {
    const int hanging = static_cast<int>(computing - ranks.begin());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (end_of_way(ranks, static_cast<int>(r)) != hanging) return -1;
    }
    return hanging;
  }

  // All wait: the one whose operation nobody shares.
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int own = ranks[r].operation;
    const auto same = std::ranges::count(ranks, own, &LastSeen::operation);
    if (same == 1 && ranks.size() > 2) return static_cast<int>(r);
  }
  return -1;
}

}  // namespace weft::learn::reference
