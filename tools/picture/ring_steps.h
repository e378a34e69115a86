// The steps of a ring all-reduce, as the ranks made them, and a picture of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/png.h"

namespace weft::picture {

/// Of which ranks the numbers are in a sum: bit r for rank r.
using RankSet = unsigned;

/// What one rank sent in one step, by the addresses it gave to Backend::exchange().
struct RingMessage {
  int from = 0, to = 0;
  int part = 0;           ///< of the buffer
  std::size_t bytes = 0;  ///< of the message
  bool added = false;     ///< the receiver added it to its own numbers; else it replaced them
};

struct RingStep {
  /// [rank][part], when the step began.
  std::vector<std::vector<RankSet>> before;
  /// By rank.
  std::vector<RingMessage> messages;
};

struct RingRun {
  int ranks = 0;
  std::size_t buffer_bytes = 0;               ///< of each rank
  std::vector<RingStep> steps;                ///< 2(n-1)
  std::vector<std::vector<RankSet>> result;   ///< [rank][part], at the end
  std::vector<std::int64_t> bytes_sent = {};  ///< by rank, as the connections counted it
};

inline constexpr int kMostRanks = 5;

/// Runs Backend::all_reduce() over the connections of the ring backend, once, between 2 to
/// kMostRanks ranks that are threads, and writes down each exchange. Throws InvalidArgument for
/// other numbers of ranks, Internal for an exchange that is no step of a ring.
RingRun run_ring(int ranks);

io::Image ring_picture(const RingRun& run);

}  // namespace weft::picture
