// Links that WEFT_FAULT makes thin: messages between two ranks take at least bytes / rate.
//   WEFT_FAULT=link=0-1:100MB/s,link=1-2:1GB/s,kill:rank=1:step=5
// Faults of ranks, which may stand beside them, are in core/runtime/phase.h.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::comm {

/// Messages between two ranks of the run, in each direction.
struct ThinLink {
  int a = 0, b = 0;
  double bytes_per_second = 0;

  /// Reads "0-1:100MB/s": two ranks, a positive number, and kB/s, MB/s or GB/s (1e3, 1e6, 1e9).
  /// Throws InvalidArgument for any other text.
  static ThinLink parse(std::string_view text);
};

/// The links that WEFT_FAULT names in this process; none in a run that its launcher has restarted.
/// Throws InvalidArgument for a wrong text, and for a link that is named twice.
std::span<const ThinLink> thin_links();

/// When a backend may send. A backend that can hold a message back, without holding back others,
/// asks for each one that it sends.
class ThinLinks {
 public:
  using Clock = std::chrono::steady_clock;

  /// No link is thin.
  ThinLinks() = default;
  /// Keeps those of `links` that are between ranks of a group. `numbers`: its ranks' numbers in the
  /// run; this rank is the `rank`-th.
  ThinLinks(std::span<const ThinLink> links, const std::vector<int>& numbers, int rank);

  /// Whether a link between any two ranks of the group is thin: the same on all of them.
  bool any() const { return any_; }
  /// Throws Unsupported if any(), for the backend of that name, which cannot hold messages back.
  void refuse_any(const char* backend) const;
  /// When a message to rank `to` that starts now will have passed the link, after all earlier ones
  /// of any group; the clock's zero if the link is not thin. It must not be sent before that time.
  /// A tracer sees the time as a span, "thin link 0-1".
  Clock::time_point passed(int to, std::size_t bytes) const;

 private:
  struct Direction;

  bool any_ = false;
  std::vector<Direction*> to_;  // by rank; null if that link is not thin
};

/// How long a message for which ThinLinks::passed() returned `at` must still be held back; nothing
/// if it may go.
inline std::optional<std::chrono::nanoseconds> held_for(ThinLinks::Clock::time_point at) {
  if (at == ThinLinks::Clock::time_point()) return {};
  const std::chrono::nanoseconds left = at - ThinLinks::Clock::now();
  return left.count() > 0 ? std::optional(left) : std::nullopt;
}

/// poll() for at most `time`. Returns the descriptor of a connection that is closed, if one is that
/// waits for POLLRDHUP; else -1.
int poll_for(std::span<pollfd> waits, std::chrono::nanoseconds time);

}  // namespace weft::comm
