// How the ranks of a run ended, and how that is told: a box on stderr, a JSON file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace weft::launch {

/// What a program leaves in the file that WEFT_ERROR_FILE names, when it ends by an error, as JSON:
///   {"code": "PeerFailed", "message": "[ring] rank 2 closed ...", "phase": "allreduce", "step": 5}
/// The first two are an Error's; the others may be missing.
struct ProgramError {
  std::string code, message;
  std::string phase = {};  ///< else what its status page says (core/runtime/phase.h)
  std::int64_t step = -1;
};

/// Nothing where there is no file, or no such JSON in it.
std::optional<ProgramError> read_error_file(const std::string& path);
/// Code and message. Throws Io.
void write_error_file(const std::string& path, const ProgramError& error);

struct RankResult {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  int wait_status = 0;  ///< as waitpid() gives it
  double seconds = 0;   ///< from its start to its end
  /// From the first failure of any rank to its end; nothing for a rank that ended before.
  std::optional<double> seconds_after_failure = {};
  bool told_to_end = false;  ///< by a signal of the launcher's, before it ended
  bool stopped = false;      ///< as by SIGSTOP, when another rank failed
  std::optional<ProgramError> error = {};
  /// What it was in then, as far as it has told: "backward". This and what follows is of the time
  /// of the first failure, for a rank that was told to end after it.
  std::string phase = {};
  std::int64_t step = -1;
  std::deque<std::string> last_lines = {};  ///< of its stderr, where the launcher has seen them

  /// By itself, with another status than 0.
  bool failed() const { return wait_status != 0 && !told_to_end; }
  /// It only lost another rank.
  bool follows() const { return error && error->code == "PeerFailed"; }
  bool timed_out() const { return error && error->code == "Timeout"; }
};

struct AttemptResult {
  std::vector<RankResult> ranks;  ///< of this node, by rank
  std::vector<int> failures;      ///< indices into `ranks`, the earliest first
  int signal = 0;                 ///< that ended the attempt; 0: none
  /// Another node's failure that ended it: its status and a text.
  int other_status = 0;
  std::string other_failure = {};

  /// The earliest failure that does not follow another one, else the earliest; null: none here.
  const RankResult* first_failure() const;
  /// Where the first failure is a Timeout: whom it waited for in vain. One that was stopped, else
  /// the only one that had to be told to end and is named by all Timeouts; null: not known here.
  const RankResult* unresponsive() const;
  /// 128 + the signal, or the first failure's: 128 + signal again where it died by one.
  int status() const;
};

/// "exit status 1, Shape in forward at step 5: [conv2d] input channels ..."
std::string describe(const RankResult& rank);

/// "rank 1 did not respond (stopped) in backward at step 5"
std::string describe_silence(const RankResult& rank);

/// Lines with who failed first, or did not respond, on which host, what others saw of it, and what
/// it said last; the last one has no end. Nothing where no rank failed here.
std::string failure_box(const AttemptResult& result);

/// Writes --report: of the last attempt, after `restarts` others. Throws Io.
void write_report(const std::string& path, const AttemptResult& result,
                  const std::vector<std::string>& command, int world_size, int restarts);

std::string host_name();

}  // namespace weft::launch
