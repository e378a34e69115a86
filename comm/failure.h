// Which rank failed first: ranks and launchers write it into the store of the run, where the others
// look before they report why they end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/comm/deadline.h"
#include "weft/comm/store.h"

namespace weft::comm {

/// How a rank ended.
struct Failure {
  int rank = 0;
  std::string cause;       ///< "killed by signal 9", or the text of an error
  std::string phase = {};  ///< what it was in: "all_reduce 17 (bucket 2)"; empty: not known
  std::int64_t step = -1;  ///< of training; -1: not known
  /// It waited for others until its timeout: one of them hangs, but it may not know which one.
  bool timed_out = false;
};

/// The rank that failed first and knows why, or the launcher for it.
inline constexpr std::string_view kFailureKey = "failure";
/// The rank that first lost another one and does not know why: used when nothing appears under
/// kFailureKey.
inline constexpr std::string_view kLostKey = "failure/lost";

/// What the store holds, in lines, of which the last may be long:
///   rank 2
///   step 5
///   timed_out 0
///   phase all_reduce 17 (bucket 2)
///   cause killed by signal 9
/// Line ends inside phase and cause become blanks; a phase is cut off after 1 KiB, a cause after
/// 8 KiB.
std::string to_text(const Failure& failure);
/// The inverse. Throws InvalidArgument for any other text.
Failure parse_failure(std::string_view text);
/// "killed by signal 9 in all_reduce 17 (bucket 2) at step 5"
std::string describe(const Failure& failure);

/// Writes it for the whole run, unless another failure is there already; returns the one that is
/// there now.
Failure note_failure(Store& store, const Failure& failure, std::string_view key = kFailureKey);
/// Waits for a failure to be written; nothing if none has been by the deadline.
std::optional<Failure> find_failure(Store& store, const Deadline& deadline,
                                    std::string_view key = kFailureKey);

}  // namespace weft::comm
