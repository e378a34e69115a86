// One collective, as a group is asked for it again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "weft/comm/group/process_group.h"

namespace weft::bench {

/// Of zeros in f32, `bytes` as kCollectives counts them; sums, and rank 0 as the root. in_place: of
/// a tensor of ProcessGroup::empty(). All ranks make the same calls; each returns when this rank is
/// done. Throws InvalidArgument for another name.
std::function<void()> make_call(comm::ProcessGroup& group, const std::string& collective,
                                std::int64_t bytes, bool in_place);

/// Microseconds of one of so many calls, behind a first one that does not count and a barrier.
double time_calls(const std::function<void()>& call, const std::function<void()>& barrier,
                  int calls);

}  // namespace weft::bench
