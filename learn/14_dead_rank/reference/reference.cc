#include "weft/learn/14_dead_rank/reference/reference.h"

#include <algorithm>

namespace weft::learn::reference {

int find_culprit(const std::vector<LastSeen>& ranks) {
  const auto longest = std::ranges::max_element(ranks, {}, &LastSeen::silent_s);
  if (longest == ranks.end()) return -1;
  if (longest->silent_s > 1) return static_cast<int>(longest - ranks.begin());

  // Whoever waits, waits in the end for the culprit, within as many steps as there are ranks.
  const auto waiting =
      std::ranges::find_if(ranks, [](const LastSeen& r) { return r.waits_for >= 0; });
  if (waiting == ranks.end()) return -1;
  int at = static_cast<int>(waiting - ranks.begin());
  for (std::size_t i = 0; i < ranks.size() && ranks[at].waits_for >= 0; ++i) {
    at = ranks[at].waits_for;
  }
  if (ranks[at].waits_for < 0) return at;

  // A circle. A rank beside it that computes may still come.
  if (std::ranges::any_of(ranks, [](const LastSeen& r) { return r.waits_for < 0; })) return -1;

  // All wait: the one whose operation nobody shares.
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int own = ranks[r].operation;
    const auto same = std::ranges::count(ranks, own, &LastSeen::operation);
    if (same == 1 && ranks.size() > 2) return static_cast<int>(r);
  }
  return -1;
}

}  // namespace weft::learn::reference
