#include "weft/train/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "weft/core/error.h"

namespace weft::train {

void StderrLog::write(Level level, std::string_view message) {
  const std::lock_guard lock(mutex_);
  // A progress bar may stand in this line.
  if (isatty(STDERR_FILENO)) std::cerr << "\r\x1b[K";
  std::cerr << (level == Level::warning ? "warning: " : "") << message << std::endl;
}

EnvironmentScope::EnvironmentScope() {
  const char* given = std::getenv("WEFT_LOG");
  const std::string_view wanted = given ? given : "";
  if (wanted == "perf") {
    thread_state().log_perf = true;
  } else if (!wanted.empty()) {
    log_warning(detail::concat("WEFT_LOG: got '", wanted,
                               "', expected perf (how each kernel was chosen) or nothing"));
  }
}

}  // namespace weft::train
