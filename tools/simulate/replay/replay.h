// A recorded step as a trace of --trace shows it, and how long it would take under other settings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/tools/simulate/replay/steps.h"

namespace weft::simulator {

/// Throws Io for a file that is no trace, for a trace without a whole step of one of these engines,
/// and for one of an older weft, which did not record all the times that a replay needs.
std::unique_ptr<RecordedSteps> read_trace(const std::string& path);

/// The table, which setting to use, and how many of the measured rows are right. The first row is
/// that of the trace itself, which does not count.
std::string to_text(const RecordedSteps& trace, const std::vector<Replayed>& rows);

struct ReplayReport {
  std::string text;
  bool good = true;  ///< no measured row is off
};
/// The table with the trace's own row first, then a row for each of `words`: SETTING or
/// SETTING@TRACE. Without words it has the usual settings. `path` is the trace's, for errors.
/// Throws InvalidArgument for a trace with a thin link, and for a second trace that is the first
/// one itself, or that is of another model or setting.
ReplayReport report_replays(const RecordedSteps& trace, const std::string& path,
                            const std::vector<std::string>& words);

/// The charts as SVG text.
std::string picture(const RecordedSteps& trace);

}  // namespace weft::simulator
