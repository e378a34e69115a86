// A recorded step as a trace of --trace shows it, and what it would take under other settings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/tools/simulate/replay/steps.h"

namespace weft::simulator {

/// Throws Io for what is no trace, for a trace without a whole step of one of these engines, and
/// for one without the moments that older programs did not record.
std::unique_ptr<RecordedSteps> read_trace(const std::string& path);

/// The table, which setting to use, and how many measured rows are right, but for the first: that
/// is of the trace itself.
std::string to_text(const RecordedSteps& trace, const std::vector<Replayed>& rows);

struct ReplayReport {
  std::string text;
  bool good = true;  ///< no measured row is off
};
/// The table of each SETTING or SETTING@TRACE, with the trace's own row in front; without any of
/// the usual ones. `path` is the trace's, for errors: throws InvalidArgument for a trace with a
/// thin link, and for one beside it that is the trace itself, or of another model or setting.
ReplayReport report_replays(const RecordedSteps& trace, const std::string& path,
                            const std::vector<std::string>& words);

/// The charts as SVG text.
std::string picture(const RecordedSteps& trace);

}  // namespace weft::simulator
