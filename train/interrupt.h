// SIGINT as a question a training loop asks.
#pragma once

namespace weft::train {

/// While one lives, the first SIGINT or SIGTERM only sets a flag; the second ends the process as if
/// there were no handler. Programs have one; the library installs none by itself.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

/// Whether a signal came since the scope began; false outside of one.
bool interrupted();
/// What a long stretch without steps throws: a test of a model.
struct Interrupted {};
/// Throws it where a signal came. train::run() ends the program with interrupt_status() then.
void throw_if_interrupted();
/// 128 + the signal's number: what a shell expects as status; 0 without a signal.
int interrupt_status();

}  // namespace weft::train
