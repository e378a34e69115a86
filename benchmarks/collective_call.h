// One collective, called again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "weft/comm/group/process_group.h"

namespace weft::bench {

/// Makes a call on zeros in f32, with `bytes` counted as for kCollectives. Reductions are sums; the
/// root is rank 0. in_place: on a tensor of ProcessGroup::empty(). All ranks make the same calls;
/// each returns when this rank is done. Throws InvalidArgument for another name.
std::function<void()> make_call(comm::ProcessGroup& group, const std::string& collective,
                                std::int64_t bytes, bool in_place);

/// Microseconds per call, over `calls` calls after a first one that does not count and a barrier.
double time_calls(const std::function<void()>& call, const std::function<void()>& barrier,
                  int calls);

}  // namespace weft::bench
