#include "weft/train/merge_traces.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"

namespace weft::train {
namespace {

// What a rank sends about its clock.
struct Clock {
  std::int64_t start_ns = 0;
  std::array<Meeting, 8> meetings = {};
};

Clock clock_of(const std::string& text) {
  Clock clock;
  WEFT_CHECK(text.size() == sizeof clock, Comm, "merge_traces", "got ", text.size(),
             " bytes of a clock, expected ", sizeof clock);
  std::memcpy(&clock, text.data(), sizeof clock);
  return clock;
}

}  // namespace

std::int64_t clock_difference(std::span<const Meeting> mine, std::span<const Meeting> first) {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    least = std::max(least, mine[i].before_ns - first[i].after_ns);
    most = std::min(most, mine[i].after_ns - first[i].before_ns);
  }
  return least <= 0 && most >= 0 ? 0 : std::midpoint(least, most);
}

void merge_traces(Tracer& tracer, const Ranks& ranks) {
  if (ranks.size == 1) return;
  Clock mine{.start_ns = tracer.start().steady_ns};
  const auto now = [&] { return mine.start_ns + tracer.now_ns(); };
  for (Meeting& meeting : mine.meetings) {
    meeting.before_ns = now();
    ranks.gather("");
    meeting.after_ns = now();
  }
  std::string text(sizeof mine, '\0');
  std::memcpy(text.data(), &mine, sizeof mine);
  const Clock first = clock_of(ranks.gather(text).front());
  tracer.set_offset_ns(mine.start_ns - first.start_ns -
                       clock_difference(mine.meetings, first.meetings));
  std::vector<std::string> parts = ranks.gather(ranks.rank == 0 ? "" : tracer.part());
  if (ranks.rank != 0) return;
  for (std::size_t r = 1; r < parts.size(); ++r) tracer.merge(std::move(parts[r]));
}

}  // namespace weft::train
