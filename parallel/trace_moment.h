// What a trace has for `./weft simulate --replay` alone. Private to parallel/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"

namespace weft::parallel {

/// A span without a length, in a module of that name: a gradient is ready, or parameters are asked
/// for. With at most two arguments; strings but `of` must be literals.
inline void trace_moment(const char* category, const char* name, const std::string& of,
                         std::initializer_list<std::pair<const char*, std::int64_t>> args) {
  const Scoped root(&ThreadState::path, nullptr);
  const PathScope module(of.c_str());
  Span moment(category, name);
  for (const auto& [key, value] : args) moment.set_arg(key, value);
}

}  // namespace weft::parallel
