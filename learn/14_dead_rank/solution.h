// Exercise 14: what you write, and what you write it with.
#pragma once

#include <vector>

#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// What a rank has left in memory that survives it.
struct LastSeen {
  int operation = 0;  ///< the number of the collective in which it is, or after which it computes
  int waits_for =
      -1;  ///< the rank for which it waits, to get or hand over a message; -1: it does not wait
  double silent_s =
      0;  ///< since its last sign of life: a thread of each rank gives one every 0.1 s
};

/// The rank whose fault it is that a run does not go on, or -1 if nobody's is to be seen.
int find_culprit(const std::vector<LastSeen>& ranks);

}  // namespace weft::learn
