// SIGINT and SIGTERM as a flag that a training loop checks.
#pragma once

#include <csignal>
#include <utility>

#include "weft/core/base/compiler.h"

namespace weft::train {

/// While it lives, the first SIGINT or SIGTERM only sets a flag; the second ends the process as if
/// there were no handler. A signal that the process ignores, as under nohup, stays ignored. At its
/// end the handlers are those from before. Programs make one; the library installs no handler by
/// itself.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  std::pair<int, struct sigaction> before_[2] = {{SIGINT, {}}, {SIGTERM, {}}};
};

/// Whether a signal came since the scope began; false outside of one.
bool interrupted();
/// Thrown by long work without training steps, such as the test of a model.
struct Interrupted {};
/// Throws it if a signal came. train::run() then ends the program with interrupt_status().
void throw_if_interrupted();
/// 128 + the signal's number, the status that a shell expects; 0 without a signal.
int interrupt_status();

}  // namespace weft::train
