// Which rank failed first: ranks and launchers write it into the store of the run, where the others
// look before they report why they end.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "weft/comm/store/deadline.h"
#include "weft/comm/store/store.h"
#include "weft/core/base/error.h"

namespace weft::comm {

/// How a rank ended.
struct Failure {
  int rank = 0;
  std::string cause;       ///< "killed by signal 9", or the text of an error
  std::string phase = {};  ///< in which it was: "all_reduce 17 (bucket 2)"; empty: not known
  std::int64_t step = -1;  ///< of training; -1: not known
  /// It waited for others until its timeout: one of them hangs, but it may not know which one.
  bool timed_out = false;
};

/// The key of the rank that failed first and knows why; its launcher may write it.
inline constexpr std::string_view kFailureKey = "failure";
/// The key of the rank that first lost another one and does not know why: used if nothing appears
/// under kFailureKey.
inline constexpr std::string_view kLostKey = "failure/lost";

/// The key that says that a rank which has noted a failure lives: its program got the error, and
/// may handle it and make another group.
std::string lives_key(int rank);

/// The text in the store. It has lines, of which the last may be long:
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
/// "rank 1 failed first: killed by signal 9 ...", or "rank 1 was the first to give up: ..."
std::string as_first(const Failure& failure);

/// Writes the failure for the whole run, unless there is one already; returns the one that is there
/// now.
Failure note_failure(Store& store, const Failure& failure, std::string_view key = kFailureKey);
/// The same for this rank, whose program gets the error. `lost_a_rank`: see FailureReport.
Failure note_own_failure(Store& store, const Failure& mine, bool lost_a_rank);
/// The same for a rank that has ended.
void note_end(Store& store, const Failure& failure);
/// Whether the rank has lived on after this failure, and not ended since.
bool has_survived(Store& store, const Failure& failure);
/// Waits until a failure is written; returns nothing if none was by the deadline.
std::optional<Failure> find_failure(Store& store, const Deadline& deadline,
                                    std::string_view key = kFailureKey);

/// How long a failing group may use the store of the run, for each call and for waiting until the
/// launcher, or the rank that failed first, has written its text.
inline constexpr std::chrono::milliseconds kStoreTimeout{1000};

/// The result of f(), which asks the store. An answer only improves a message, so an error of the
/// store is ignored: an empty result then.
template <class Result, class F>
Result if_told(F&& ask) {
  try {
    return ask();
  } catch (const std::exception&) {
    return {};
  }
}

/// The exception that is being handled, as an error of `op` if it is not one of weft's.
Error caught_error(const char* op);

/// An error while connections were being made. It keeps them open until the store says why this
/// rank leaves: another rank that sees its connection closed finds that, and does not blame this
/// rank.
class ConnectError : public Error {
 public:
  ConnectError(const Error& error, std::shared_ptr<void> connections)
      : Error(error), connections_(std::move(connections)) {}

  void close_connections() { connections_.reset(); }

 private:
  std::shared_ptr<void> connections_;
};

/// Runs f(); its exceptions leave as a ConnectError that holds `connections`.
template <class F>
auto closing_late(const std::shared_ptr<void>& connections, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    throw ConnectError(caught_error("connect"), connections);
  }
}

/// Asks the store from time to time whether another rank has failed. For one thread.
class FailureWatch {
 public:
  /// `rank`: this rank's number in the run. It asks every 200 ms; if an answer takes long, the
  /// pause is 20 times that, but at most 2 s. A failure that is there already does not count: the
  /// ranks that meet afterwards have survived it. `run_store` may be null if look() is never
  /// called.
  FailureWatch(Store* run_store, int rank);
  /// Whether this failure was there already.
  bool was_there(const Failure& failure) const;
  /// Often returns without asking. A store that does not answer says nothing.
  std::optional<Failure> look();

 private:
  using Clock = Deadline::Clock;

  std::optional<std::string> told(std::string_view key) const;

  Store* const run_store_;
  const int rank_;
  const std::optional<std::string> before_, lost_before_;
  Clock::time_point next_ = Clock::now() + Deadline::kCheckEvery;
};

/// For a rank whose work has failed. It writes the reason into the store, then closes its
/// connections, so that the others notice, and then asks which rank failed first.
class FailureReport {
 public:
  /// Writes `mine` into the store of the run. `lost_a_rank`: another rank is gone, and it is not
  /// known why.
  FailureReport(Store& run_store, Failure mine, bool lost_a_rank);
  /// "rank 1 failed first: killed by signal 9 in forward"; empty if it is this rank, or not known,
  /// as after a failure that was there before `others` and which its rank has survived. After the
  /// loss of a rank, waits for up to kStoreTimeout for the reason.
  std::string who_was_first(const FailureWatch& others) const;

 private:
  Store& run_store_;
  const Failure mine_;
  const bool lost_a_rank_;
  const std::optional<Failure> noted_;
};

}  // namespace weft::comm
