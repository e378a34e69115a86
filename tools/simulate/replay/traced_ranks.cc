#include "weft/tools/simulate/replay/traced_ranks.h"

namespace weft::simulator {

void TracedTimes::take(const TracedSpan& span) {
  if (span.category == "forward") forward = std::min(forward, span.begin);
  if (span.category == "phase" && span.name == "backward") {
    backward = span.begin;
    backward_end = span.end;
    ++backwards;
  }
  if (span.category == "optim" && span.name == "step") end = std::max(end, span.end);
}

}  // namespace weft::simulator
