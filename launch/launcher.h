// Starts the ranks of a node and sees them to their end.
#pragma once

#include <chrono>
#include <string>

#include "weft/launch/meeting.h"
#include "weft/launch/options.h"
#include "weft/launch/output.h"
#include "weft/launch/process.h"
#include "weft/launch/report.h"
#include "weft/launch/streams.h"

namespace weft::launch {

/// Everything happens in the calling thread, in one loop around poll(): deaths and signals to
/// weftrun come as events of a SignalQueue, lines of the ranks by pipes.
///
/// A rank that ends with another status than 0 is told to all ranks (comm/store/failure.h). From
/// then on, as after a signal to weftrun, which is passed on, the ranks have options.grace to end
/// by themselves; then each process group gets SIGTERM, and 1.5 s later SIGKILL. The groups of
/// ranks that have ended well get them when the last rank has ended. A second signal, half a second
/// after the first or later, is SIGKILL at once.
///
/// Then those get the same signals that have left their rank's group, as daemons do. In weftrun
/// they are all known: who has lost its parent has become weftrun's child. In a program that
/// spawns, or that had other children before, and where weftrun itself is killed, Guardian finds
/// them by their environment.
class Launcher {
 public:
  static constexpr std::chrono::milliseconds kKillAfterTerminate{1500}, kLastWords{1000};

  /// `options` must live as long. To be made while the process has one thread, whose end is the
  /// ranks' end. Throws Io when there is no such program, Library when there are fewer file
  /// descriptors than its ranks take here.
  explicit Launcher(const Options& options);

  /// One attempt. Returns when none of its processes is left; a process that the kernel does not
  /// let die is left, with a warning.
  AttemptResult run(int attempt);
  /// Of the last attempt, on all nodes.
  int world_size() const { return world_size_; }

  /// "weftrun: TEXT" on stderr, behind what the ranks have said.
  void say(const std::string& text);
  /// Lines as they are, where there are some, behind everything; returns when all is written. After
  /// a signal a stream that nobody reads is waited for kLastWords, and not longer.
  void say_last(const std::string& lines);
  /// To be called behind it. Throws Io where some of what the ranks said on stdout is lost.
  void check_stdout() const;

 private:
  class Attempt;

  const Options& options_;
  Program program_;  ///< of which arguments and path are known
  FileLimit files_;
  const bool adopts_;  ///< its children are its ranks, and whom they leave behind
  ScratchFolder folder_;
  Guardian guardian_{folder_.path(), "WEFT_ERROR_FILE=" + folder_.path() + '/'};
  SignalQueue signals_;
  Screen screen_;
  Meeting meeting_;
  LogFolder logs_{options_};
  int world_size_ = 0;
  bool signalled_ = false;
};

}  // namespace weft::launch
