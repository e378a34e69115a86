// The phase a process is in, for example "forward" or "save". The launcher that started it can read
// the phase, also after the process has ended; and so can weft top, while it runs. And faults
// on purpose, to test how the other ranks react.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "weft/core/base/compiler.h"

namespace weft {

class BlackBox;

/// What a process was doing, as it last reported.
struct Status {
  std::string phase = {};      ///< of the program: "forward"; empty: between phases
  std::string operation = {};  ///< between ranks, in progress: "all_reduce 17 (bucket 2)"
  std::int64_t step = -1;      ///< the training step; -1: none

  /// "backward during all_reduce 17 (bucket 2)", or whichever of the two there is.
  std::string describe() const;
};

/// Makes a StatusPage, which weft top finds, if this process has none yet: its phase, memory,
/// operations between ranks and sums are in it from then on. Call it before memory is taken and
/// before groups of ranks are made: what is there already stays unseen. If the system refuses the
/// page, it logs a warning, and nothing is shared.
void share_status();

/// Shared memory in which other programs see a process's phase. A process that a launcher has
/// started inherits the launcher's file and finds the descriptor's number in the variable
/// kVariable; others may make one by share_status(). All of them may end at any time and leave
/// nothing behind.
class StatusPage {
 public:
  static constexpr const char* kVariable = "WEFT_STATUS_FD";

  /// Throws Library.
  StatusPage();
  /// The page that process `pid` writes. Null if it has none that this process may read, or one of
  /// another version of weft.
  static std::unique_ptr<StatusPage> of_process(int pid);
  ~StatusPage();
  StatusPage(const StatusPage&) = delete;
  StatusPage& operator=(const StatusPage&) = delete;

  /// To be inherited through exec, which closes it otherwise.
  int fd() const { return fd_; }
  /// At any time, also after the process was killed while it wrote.
  Status read() const;
  /// Likewise: its last operations and its memory (core/runtime/black_box.h).
  const BlackBox& black_box() const;

 private:
  friend void share_status();
  StatusPage(int fd, void* memory) : fd_(fd), memory_(memory) {}

  int fd_ = -1;
  void* memory_ = nullptr;
};

/// Sets the calling thread's phase until the scope ends:
///   const PhaseScope phase("save");
/// Then the phase before it is restored; but if an exception ends the scope, the launcher still
/// sees this phase, in which the program failed. Without a StatusPage it costs some nanoseconds.
class PhaseScope {
 public:
  /// A phase of the program. `name` is a literal.
  explicit PhaseScope(const char* name) : PhaseScope(name, false) { show(name); }
  /// For a thread that runs an operation between ranks: the launcher sees the text of operation()
  /// next to the program's phase. It is called only if there is a StatusPage.
  template <class Operation>
  PhaseScope(const char* name, const Operation& operation) : PhaseScope(name, true) {
    if (seen()) show(operation());
  }
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseScope(const char* name, bool is_operation);
  static bool seen();
  void show(std::string_view text) const;

  const char* const before_;
  const int exceptions_;
  const bool is_operation_;
};

/// A phase that keeps other ranks waiting longer than the timeout of their operations: one rank
/// writes to a slow disk, or evaluates alone.
///   if (rank == 0) {
///     const BusyScope busy("save");
///     ...
///   }
///   group->barrier().wait();
/// While it lasts and the process runs, the others go on waiting; after its end they wait a whole
/// timeout, but in all no longer than 10 timeouts for an operation. They learn of it within an
/// eighth of the timeout. Do not run operations between ranks inside: a rank that does not come to
/// them would be waited for as long. thread_state().rank must be the rank that made the groups.
class BusyScope {
 public:
  /// `name` is a literal.
  explicit BusyScope(const char* name);
  ~BusyScope();
  BusyScope(const BusyScope&) = delete;
  BusyScope& operator=(const BusyScope&) = delete;

 private:
  const PhaseScope phase_;
  const int rank_;
};

/// The name of the last BusyScope that a rank of this process has begun and not ended; null if
/// there is none.
const char* busy_with(int rank);

/// A fault on purpose, of one rank.
struct Fault {
  enum class Kind { kill, stop, raise, exit, delay };

  Kind kind = Kind::kill;
  int rank = 0;
  std::int64_t step = -1;  ///< -1: any
  std::string phase = {};  ///< the name of a PhaseScope; empty: any
  std::chrono::milliseconds delay{0};

  /// Reads "kill:rank=1:step=5:phase=allreduce". Throws InvalidArgument for any other text.
  static Fault parse(std::string_view text);
};

/// A place where a rank fails, or is slow, if WEFT_FAULT names it. The variable's value, or several
/// with commas between them:
///   KIND:rank=R[:step=N][:phase=PHASE]
///     KIND   kill   as by SIGKILL              stop  as by SIGSTOP
///            raise  throws Internal from here  exit  the process ends at once, with status 3
///            delay=20ms  sleeps here each time, for so many ms or s
///     step   thread_state().step; any if not given
///     PHASE  one of those that docs/faults.md lists; any if not given. A number behind it says
///            which time it is, from 0 on: allreduce2 is in the third all-reduce
///   link=A-B:RATE  slows down messages between two ranks (comm/backend/thin_links.h), not a place
/// A run that its launcher has restarted (TORCHELASTIC_RESTART_COUNT) does not fail again. Throws
/// InvalidArgument for any other value.
void fault_point();
/// In a phase that no PhaseScope shows, since it is part of another one.
void fault_point(const char* phase);

}  // namespace weft
