// One trace of all ranks, with one clock.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/trace/trace.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// Rank 0's tracer gets the spans of all ranks, so that its write() makes one file of them; the
/// times count from its start. All ranks call it, at the same point, each with its own tracer.
///
/// How much each rank's steady clock differs from rank 0's is found by gathers. No rank leaves a
/// gather before all have entered it, so the clock readings before and after it bound the
/// difference. If the bounds allow 0, the difference is taken to be 0 (one host has one steady
/// clock); else the middle is taken, whose error is at most half the time of the fastest gather.
void merge_traces(Tracer& tracer, const Ranks& ranks);

/// Readings of a clock before and after something that two processes did at the same time.
struct Meeting {
  std::int64_t before_ns = 0, after_ns = 0;
};
/// How far `mine` is ahead of `first`, the other process's clock at the same meetings.
std::int64_t clock_difference(std::span<const Meeting> mine, std::span<const Meeting> first);

}  // namespace weft::train
