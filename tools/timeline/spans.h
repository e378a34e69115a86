// The spans of a trace that --trace of a program wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::timeline {

struct TraceSpan {
  std::string category, name;
  std::int64_t rank = 0, thread = 0;
  double begin = 0, end = 0;  ///< seconds
  std::int64_t step = -1;     ///< -1, as of the following numbers: it does not say
  std::int64_t stage = -1, micro_batch = -1, replica = -1;
  std::string device;  ///< "" as well

  double length() const { return end - begin; }
};

/// In the order of the file. Where a trace has the time of devices (TracerOptions::device_time),
/// spans of work on them are those of their streams alone. Throws Io for what is no trace, or only
/// the beginning of one.
std::vector<TraceSpan> read_spans(const std::string& path);

/// A step that is whole.
struct StepLength {
  std::int64_t step = 0;
  double seconds = 0;
};

/// Which of them is step `wanted`, or for -1 the one of median length, without the first two where
/// there are more. Throws InvalidArgument when it is not among them, and for no steps at all.
std::size_t choose_step(const std::vector<StepLength>& steps, std::int64_t wanted);

/// Of an even number of values the mean of the two in the middle. At least one.
double median(std::vector<double> values);

}  // namespace weft::timeline
