// How the ranks of a run ended, and the reports of it: a box on stderr, a JSON file.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/memory_owner.h"
#include "weft/core/runtime/black_box.h"

namespace weft::launch {

/// What a program leaves in the file named by WEFT_ERROR_FILE when it ends with an error, as JSON:
///   {"code": "PeerFailed", "message": "[ring] rank 2 closed ...", "phase": "allreduce", "step": 5}
/// The first two belong to the Error; the others may be missing.
struct ProgramError {
  std::string code, message;
  std::string phase = {};  ///< if missing, from its status page (core/runtime/phase.h)
  std::int64_t step = -1;
};

/// Nothing if there is no file, or no such JSON in it.
std::optional<ProgramError> read_error_file(const std::string& path);
/// Writes code and message. Throws Io.
void write_error_file(const std::string& path, const ProgramError& error);

/// An operation between ranks as a rank's black box has it (core/runtime/black_box.h).
struct LastOperation : BlackBox::Found {
  std::string name = {}, group = {}, tag = {}, module = {}, phase = {}, dtype = {};

  bool ended() const { return end_ns >= 0; }
};

/// In bytes.
struct DeviceMemory {
  Device device = {};
  std::int64_t limit = 0;                               ///< 0: none
  std::array<std::int64_t, kMemoryOwners> in_use = {};  ///< by MemoryOwner
};

struct RankResult {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  int wait_status = 0;  ///< from waitpid()
  double seconds = 0;   ///< from its start to its end
  /// From the first failure of any rank to this rank's end; nothing if this rank ended before.
  std::optional<double> seconds_after_failure = {};
  bool told_to_end = false;  ///< by a signal of the launcher, before it ended
  bool stopped = false;      ///< for example by SIGSTOP, when another rank failed
  std::optional<ProgramError> error = {};
  /// Its phase: "backward", if it has reported one. This and the next members show the end of the
  /// rank or, if it was told to end, the time of the first failure.
  std::string phase = {};
  std::int64_t step = -1;
  std::deque<std::string> last_lines = {};  ///< of its stderr, as far as the launcher has seen it
  /// The operations in the order in which they began, and the memory by device at the time when a
  /// rank failed, this one or another.
  std::vector<LastOperation> operations = {};
  std::vector<DeviceMemory> memory = {};

  /// Whether it ended by itself, with another status than 0.
  bool failed() const { return wait_status != 0 && !told_to_end; }
  /// Whether it failed only because it lost another rank.
  bool follows() const { return error && error->code == "PeerFailed"; }
  bool timed_out() const { return error && error->code == "Timeout"; }
};

struct AttemptResult {
  std::vector<RankResult> ranks;          ///< of this node, by rank
  std::vector<RankResult> replaced = {};  ///< processes in whose place others were started
  std::vector<int> failures;              ///< indices into `ranks`, the earliest first
  int signal = 0;                         ///< the signal that ended the attempt; 0: none
  /// When the first failure or the signal came, by the steady clock.
  std::int64_t failed_at_ns = 0;
  /// A failure of another node that ended the attempt: its status and a text.
  int other_status = 0;
  std::string other_failure = {};

  /// The earliest failure that does not follow another one, else the earliest; null: none here.
  const RankResult* first_failure() const;
  /// If the first failure is a Timeout: the rank that did not respond. This is a rank that was
  /// stopped, else the only rank that had to be told to end and that all Timeouts name; else null.
  const RankResult* unresponsive() const;
  /// 128 + the signal, or the status of the first failure: 128 + signal if one ended it.
  int status() const;
};

/// "exit status 1, Shape in forward at step 5: [conv2d] input channels ..."
std::string describe(const RankResult& rank);

/// "rank 1 did not respond (stopped) in backward at step 5"
std::string describe_silence(const RankResult& rank);

/// Lines that say who failed first or did not respond, on which host, what others saw of it, and
/// its last output, and then `more`, lines with their ends. The last line has no end. Empty if no
/// rank failed here.
std::string failure_box(const AttemptResult& result, const std::string& more = {});

/// Writes --report: the last attempt, after `restarts` others. Throws Io.
void write_report(const std::string& path, const AttemptResult& result,
                  const std::vector<std::string>& command, int world_size, int restarts);

std::string host_name();

}  // namespace weft::launch
