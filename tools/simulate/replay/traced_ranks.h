// What the replays of DDP and of fully_shard read in the same way from a rank's step. Private to
// tools/simulate/replay/.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/replay/traced_spans.h"

namespace weft::simulator {

/// A rank's step. Times are those of the file.
struct TracedTimes {
  double forward = std::numeric_limits<double>::infinity();  ///< when it begins
  double backward = -1, backward_end = -1;
  double end = -1;  ///< of the optimiser's step
  int backwards = 0;

  void take(const TracedSpan& span);
  bool is_whole() const { return std::isfinite(forward) && backwards == 1 && end >= 0; }
};

struct EngineWords {
  const char* engine;    ///< "DDP"
  const char* parts;     ///< what its backward has: "gradients and buckets"
  const char* no_other;  ///< about another all-reduce: "is of no bucket: ..."
};

/// The whole steps: those with all ranks, where is_whole(rank, first rank) is true of each rank.
/// `steps`: by number and rank. A rank is a TracedTimes with the spans of its engine; its `others`
/// are all-reduces of something else. Throws Io if no step is whole, and if in the last one the
/// ranks did what a replay does not know.
template <class Steps, class IsWhole>
auto whole_steps(const TracedSpans& traced, const Steps& steps, const EngineWords& words,
                 const IsWhole& is_whole) {
  std::size_t most = 0;
  int backwards = 0;
  for (const auto& [number, ranks] : steps) {
    most = std::max(most, ranks.size());
    for (const auto& [r, rank] : ranks) backwards = std::max(backwards, rank.backwards);
  }
  WEFT_CHECK(most > 1, Io, kOp, "it is of one rank, which sends nothing; record two or more");
  std::vector<const typename Steps::value_type*> whole;
  for (const auto& step : steps) {
    const auto& ranks = step.second;
    const bool all = ranks.size() == most && std::ranges::all_of(ranks, [&](const auto& each) {
                       return is_whole(each.second, ranks.begin()->second);
                     });
    if (all) whole.push_back(&step);
  }
  WEFT_CHECK(!whole.empty() || backwards <= 1, Io, kOp, "its steps have ", backwards,
             " backwards; a replay knows steps of one");
  WEFT_CHECK(!whole.empty(), Io, kOp, "no step of it is whole: forward, backward with its ",
             words.parts, ", and optimizer of every rank");
  const auto& [number, ranks] = *whole.back();
  std::vector<TracedTime> times;
  for (const auto& [r, rank] : ranks) {
    times.push_back({number, r, rank.forward, rank.backward_end});
  }
  check_one_group(traced, times, words.engine);
  for (const auto& [r, rank] : ranks) {
    for (const TracedSpan& other : rank.others) {
      WEFT_CHECK(other.begin < rank.forward || other.begin >= rank.backward_end, Io, kOp,
                 "in step ", number, " an all-reduce of ", other.module, ' ', words.no_other);
    }
  }
  return whole;
}

}  // namespace weft::simulator
