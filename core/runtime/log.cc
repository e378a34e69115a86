#include "weft/core/runtime/log.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

bool warnings_wanted() {
  static const bool wanted = [] {
    const char* value = std::getenv("WEFT_WARNINGS");
    return !value || std::string_view(value) != "off";
  }();
  return wanted;
}

class SilentLog final : public LogSink {
 public:
  void write(Level, std::string_view) override {}
};

// Never destroyed: a message may come from the destructor of a static object.
LogSink& default_log() {
  static StderrLog* const log = new StderrLog;
  return *log;
}

}  // namespace

void StderrLog::write(Level level, std::string_view message) {
  if (level == Level::warning ? !warnings_wanted() : thread_state().rank != 0) return;
  const std::lock_guard lock(mutex_);
  std::string line = clear_line_ && isatty(STDERR_FILENO) ? "\r\x1b[K" : "";
  if (level == Level::warning) line += "warning: ";
  line.append(message) += '\n';
  // Not std::cerr: it may not exist yet when a static object warns.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

LogSink* silent_log() {
  static SilentLog* const log = new SilentLog;
  return log;
}

void log_info(std::string_view message) {
  if (LogSink* const log = thread_state().log) log->write(LogSink::Level::info, message);
}

void log_warning(std::string_view message) {
  LogSink* const log = thread_state().log;
  (log ? *log : default_log()).write(LogSink::Level::warning, message);
}

}  // namespace weft
