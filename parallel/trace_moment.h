// Events that only `./weft simulate --replay` reads from a trace. Private to parallel/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"

namespace weft::parallel {

/// Records a span of no length in a module of that name, when a gradient is ready or parameters are
/// needed. At most two arguments; all strings but `of` must be literals.
inline void trace_moment(const char* category, const char* name, const std::string& of,
                         std::initializer_list<std::pair<const char*, std::int64_t>> args) {
  const Scoped root(&ThreadState::path, nullptr);
  const PathScope module(of.c_str());
  Span moment(category, name);
  for (const auto& [key, value] : args) moment.set_arg(key, value);
}

}  // namespace weft::parallel
