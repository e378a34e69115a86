// Exercise 14: find the dead rank. README.md says what to write; ./weft learn 14 judges it.
#include "weft/learn/14_dead_rank/solution.h"

#include <cstddef>

namespace weft::learn {

int find_culprit(const std::vector<LastSeen>& ranks) {
  constexpr double kAlive = 1;  // seconds; who is silent for longer is dead

  not_yet("is a rank dead? If several are, which was the first?");

  not_yet("no rank is dead: for whom do all wait?");

  not_yet("all wait in a circle: has one left a call out, or made one more than the others?");
  return -1;
}

}  // namespace weft::learn
