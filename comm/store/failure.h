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
/// "rank 1 failed first: killed by signal 9 ...", or "rank 1 was the first to give up: ..."
std::string as_first(const Failure& failure);

/// Writes it for the whole run, unless another failure is there already; returns the one that is
/// there now.
Failure note_failure(Store& store, const Failure& failure, std::string_view key = kFailureKey);
/// Waits for a failure to be written; nothing if none has been by the deadline.
std::optional<Failure> find_failure(Store& store, const Deadline& deadline,
                                    std::string_view key = kFailureKey);

/// What the store of the run may take of the time of a group that fails: for each call, and for
/// what the launcher or the rank that failed first has yet to write.
inline constexpr std::chrono::milliseconds kStoreTimeout{1000};

/// What the store says only makes a message better: nothing where it cannot be asked.
template <class Result, class F>
Result if_told(F&& ask) {
  try {
    return ask();
  } catch (const std::exception&) {
    return {};
  }
}

/// The exception that is being handled, as an error of `op` if it is none of weft's.
Error caught_error(const char* op);

/// An error while connections were being made: they are closed with it. Whoever sees one of them
/// closed then finds in the store why this rank leaves, and does not blame this rank.
class ConnectError : public Error {
 public:
  ConnectError(const Error& error, std::shared_ptr<void> connections)
      : Error(error), connections_(std::move(connections)) {}

  void close_connections() { connections_.reset(); }

 private:
  std::shared_ptr<void> connections_;
};

/// f(), whose exceptions leave as a ConnectError with `connections`.
template <class F>
auto closing_late(const std::shared_ptr<void>& connections, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    throw ConnectError(caught_error("connect"), connections);
  }
}

/// A rank whose work has failed: it notes why, closes its connections, by which the others notice,
/// and then asks who was the first.
class FailureReport {
 public:
  /// Writes it into the store of the run. `lost_a_rank`: it does not know why that one failed.
  FailureReport(Store& run_store, Failure mine, bool lost_a_rank);
  /// "rank 1 failed first: killed by signal 9 in forward"; empty if that is this rank, or nobody
  /// knows. If it lost a rank, waits for up to kStoreTimeout for the reason.
  std::string who_was_first() const;

 private:
  Store& run_store_;
  const Failure mine_;
  const bool lost_a_rank_;
  const std::optional<Failure> noted_;
};

/// Asks the store now and then whether another rank has failed. For one thread.
class FailureWatch {
 public:
  /// `rank`: this one's number in the run. Between two questions there are 200 ms; a store that is
  /// slow has 20 times what it took to answer, but 2 s at most.
  FailureWatch(Store* run_store, int rank) : run_store_(run_store), rank_(rank) {}
  /// Often returns without asking. A store that does not answer says nothing.
  std::optional<Failure> look();

 private:
  using Clock = Deadline::Clock;

  Store* const run_store_;
  const int rank_;
  Clock::time_point next_ = Clock::now() + Deadline::kCheckEvery;
};

}  // namespace weft::comm
