// What the replays of several engines share. Private to tools/simulate/replay/.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/comm/backend/thin_links.h"
#include "weft/tools/simulate/cost_model.h"
#include "weft/tools/simulate/replay/steps.h"

namespace weft::simulator {

/// Bytes and seconds of a message.
using TimedMessage = std::pair<double, double>;

/// The line through such points by least squares, where neither number is negative. Messages of
/// about the same size say nothing about the latency, which is then 0.
struct MessageLine {
  double latency = 0, per_byte = 0;
};
MessageLine fit(const std::vector<TimedMessage>& messages);

/// The recorded link with the latency and the bandwidth of the setting, where it has them.
Link link_of(const Link& recorded, const Setting& setting);

/// Throws InvalidArgument for a setting with bf16 if the trace `has` messages in bf16 already.
void check_bf16(const Setting& setting, bool has);

/// Whether a ring of so many ranks sends over the link.
bool is_in_ring(const comm::ThinLink& link, int ranks);

/// If all parts together have at most this many bytes, each rank sends its numbers to all others,
/// and not around the ring (comm/backend/backend.cc).
inline constexpr double kDirectBytes = 64 << 10;

/// A step under a setting: how long it takes, and how much of it is waiting.
struct ReplayedStep {
  double seconds = 0, exposed = 0;
  bool settled = true;  ///< as in SharedTimeline
};
/// The medians over the steps; settled if all steps are.
Replayed replayed(const Setting& setting, int count, const std::vector<ReplayedStep>& steps);

/// "3 gradients", "1 bucket"
std::string counted(std::size_t count, const std::string& thing);

}  // namespace weft::simulator
