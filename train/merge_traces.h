// One trace of all ranks, by one clock.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/trace.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// Rank 0's tracer gets the spans of all ranks, so that its write() makes one file of them; the
/// times count from its start. All ranks call it, at the same point, each with a tracer of its own.
///
/// Which steady clock shows how much more than rank 0's is found out by gathers, which nobody
/// leaves before all have entered: so the readings around them bound the difference. Where the
/// bounds allow none, there is none (one host has one steady clock); else the middle is taken,
/// which errs by at most half of what the fastest gather took.
void merge_traces(Tracer& tracer, const Ranks& ranks);

/// Of a clock, around something that two processes did together.
struct Meeting {
  std::int64_t before_ns = 0, after_ns = 0;
};
/// How much more `mine` shows than `first`, the other process's clock at the same meetings.
std::int64_t clock_difference(std::span<const Meeting> mine, std::span<const Meeting> first);

}  // namespace weft::train
