// What a thread logs.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::testing {

/// Collects, as long as it lives, the messages of the thread that made it, and of those that it
/// starts: a line each, with "warning: " before a warning.
class CollectedLog final : public LogSink {
 public:
  void write(Level level, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    text += (level == Level::warning ? "warning: " : "") + std::string(message) + '\n';
  }

  std::string text;

 private:
  std::mutex mutex_;
  const Scoped<LogSink*> scope_{&ThreadState::log, this};
};

}  // namespace weft::testing
