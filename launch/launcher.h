// Starts the ranks of a node and watches them until they end.
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
/// weftrun arrive as events of a SignalQueue, the ranks' lines through pipes.
///
/// If a rank ends with another status than 0, all ranks are told (comm/store/failure.h). A signal
/// to weftrun is passed on. In both cases the ranks have the time options.grace to end by
/// themselves; then each process group gets SIGTERM, and 1.5 s later SIGKILL. The groups of ranks
/// that have ended well get these signals when the last rank has ended. After a second signal, at
/// least half a second after the first, SIGKILL is sent at once.
///
/// Then the processes that have left their rank's group, as daemons do, get the same signals.
/// weftrun knows them all: a process that loses its parent becomes weftrun's child. In a program
/// that spawns, or that had other children before, and if weftrun itself is killed, Guardian finds
/// them by their environment.
class Launcher {
 public:
  static constexpr std::chrono::milliseconds kKillAfterTerminate{1500}, kLastWords{1000};

  /// `options` must outlive this. To be made while the process has one thread; when that thread
  /// ends, the ranks are killed. Throws Io if there is no such program, Library if the process may
  /// open fewer file descriptors than its ranks need here.
  explicit Launcher(const Options& options);

  /// Runs one attempt. Returns when none of its processes is left, except those that the kernel
  /// does not let die: these are left with a warning.
  AttemptResult run(int attempt);
  /// The number of ranks in the last attempt, on all nodes.
  int world_size() const { return world_size_; }
  /// How many ranks were started again while the others went on, in all attempts.
  int replaced() const { return replaced_; }

  /// Writes "weftrun: TEXT" to stderr, after what the ranks have written.
  void say(const std::string& text);
  /// Writes `lines` unchanged after everything else, unless they are empty; returns when all is
  /// written. After a signal it waits at most kLastWords for a stream that nobody reads.
  void say_last(const std::string& lines);
  /// To be called after say_last(). Throws Io if some of the ranks' stdout was lost.
  void check_stdout() const;

 private:
  class Attempt;

  const Options& options_;
  Program program_;  ///< without environment and streams
  FileLimit files_;
  const bool adopts_;  ///< its children are only its ranks and what they leave behind
  ScratchFolder folder_;
  Guardian guardian_{folder_.path(), "WEFT_ERROR_FILE=" + folder_.path() + '/'};
  SignalQueue signals_;
  Screen screen_;
  Meeting meeting_;
  LogFolder logs_{options_};
  int world_size_ = 0;
  int replaced_ = 0;
  bool signalled_ = false;
};

}  // namespace weft::launch
