// The judge's ranks: threads of this process that talk through a transport which counts each
// message and notices when nothing can go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// A message that a rank has sent. Its step is the number of the rank's call, from 0 on; its round
/// is when it was done (see Traffic).
struct Sent {
  int step, to;
  std::int64_t bytes;
  int round;
};

/// A collective operation of a group, as it began.
struct Collective {
  std::string name;
  std::int64_t bytes;
  int root = -1;  // of a broadcast
};

/// What a rank has sent, in order, and how many calls it has made. `rounds`: when it was done, if a
/// message takes one unit of time from when both sides are there, and the rest none.
struct Traffic {
  std::vector<Sent> sent;
  int steps = 0, rounds = 0;
  std::vector<Collective> collectives;

  std::int64_t bytes() const;
};

/// Runs f as ranks 0 to n - 1, and returns what each of them has sent. A call returns when its
/// messages have been received. Throws NotYet, or Wrong with what went wrong first: an exception,
/// messages that do not fit together, ranks that wait for each other. If a rank has not returned
/// after kPatience, the process ends with end_wrong(). `advice` ends the sentence about a message
/// to or from a rank that does not exist.
std::vector<Traffic> on_ranks(int n, const std::function<void(Messages& me)>& f,
                              const std::string& advice = "");

/// The same with a process group of each rank, over the same transport.
std::vector<Traffic> on_groups(int n, const std::function<void(comm::ProcessGroup& group)>& f);

/// In on_groups(), for the calling rank: waits until `count` collectives of its group have begun,
/// or so many with this name. False if there were fewer for three seconds.
bool wait_until_begun(std::size_t count, std::string_view name = {});
/// In on_groups(): how many operations of its group each rank has called by now. They begin later.
std::vector<std::size_t> calls_of_ranks();

}  // namespace weft::learn
