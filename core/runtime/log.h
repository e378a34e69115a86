// The destination of the library's messages.
#pragma once

#include <mutex>
#include <string_view>

#include "weft/core/base/compiler.h"

namespace weft {

/// Receives the library's messages on a thread: ThreadState::log. May be called from several
/// threads at once.
class LogSink {
 public:
  enum class Level { info, warning };
  virtual ~LogSink() = default;
  virtual void write(Level level, std::string_view message) = 0;
};

/// Writes messages to stderr, one line each. In a run with several ranks only the first writes
/// messages that are not warnings. Writes no warnings if the environment has WEFT_WARNINGS=off.
class StderrLog final : public LogSink {
 public:
  /// clear_line: on a terminal the message replaces the text of the current line, a progress bar.
  explicit StderrLog(bool clear_line = false) : clear_line_(clear_line) {}
  void write(Level level, std::string_view message) override;

 private:
  const bool clear_line_;
  std::mutex mutex_;
};

/// Drops every message: Scoped silent(&ThreadState::log, silent_log());
LogSink* silent_log();

/// Writes to the thread's log. Without a log, warnings go to stderr, as StderrLog writes them, and
/// other messages are dropped.
void log_info(std::string_view message);
void log_warning(std::string_view message);

}  // namespace weft
