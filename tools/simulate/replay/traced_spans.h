// The spans of a trace that --trace wrote, as a replay needs them. Private to
// tools/simulate/replay/.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weft::simulator {

/// Seconds; missing numbers are -1, and missing texts empty.
struct TracedSpan {
  std::string category, name, module, device;
  std::string group;  ///< of a message: "dp of ranks 0, 2"; empty: all ranks
  int rank = -1;
  double begin = -1, end = -1;
  std::int64_t step = -1, stage = -1, micro_batch = -1, bucket = -1, parameter = -1, ahead = -1,
               element_size = -1;
  double bytes = -1;
};

struct TracedSpans {
  std::vector<TracedSpan> spans;  ///< in the order of the file
  bool has_thin_links = false;
  bool on_cuda = false;

  bool has(const char* category) const;
};

/// A part of a step of one rank.
struct TracedTime {
  int step, rank;
  double begin, end;
};
/// Throws Io if messages within these times are of several groups, as on a mesh with two axes: a
/// replay knows only `engine` among all ranks.
void check_one_group(const TracedSpans& traced, const std::vector<TracedTime>& times,
                     const char* engine);

/// Throws what the JSON library throws for a member that is missing or of another type.
TracedSpans spans_of(const nlohmann::json& file);

}  // namespace weft::simulator
