#include "weft/comm/group/connect.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/group/progress.h"
#include "weft/comm/store/failure.h"
#include "weft/comm/store/member.h"
#include "weft/comm/store/rendezvous.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "process_group";

// The keys:
//   arrival/2      rank 2 has come
//   arrival/count  how many ranks have come
//   arrival/all    empty, set by the last rank to come
//   left           the first rank that gave up, and why
//   backend/...    the keys of the backend
constexpr const char* kArrival = "arrival";
constexpr const char* kCount = "count";
constexpr const char* kAll = "all";
constexpr const char* kLeft = "left";
constexpr const char* kBackend = "backend";

std::optional<Failure> failure_under(Store& store, std::string_view key) {
  const std::optional<std::string> text = store.try_get(key);
  if (!text) return {};
  return parse_failure(*text);
}

// What a rank knows about the others while it waits for them. For one thread.
class Others {
 public:
  Others(Store& store, Store& run_store, const Members& members)
      : store_(store),
        run_store_(run_store),
        members_(members),
        mine_(members.number_in_run(members.rank)) {}

  /// Throws PeerFailed if another rank has failed or given up. Often returns without checking.
  void look();
  /// Adds to the error which rank failed first. Tells the others why this rank leaves, and then
  /// closes its connections.
  Error explained(Error& error);

 private:
  std::optional<Failure> first_failure();
  std::vector<Member> processes_here();
  std::string who_was_first(bool lost_a_rank, const std::optional<Failure>& left);

  Store &store_, &run_store_;
  const Members& members_;
  const int mine_;
  // A failure before this group, which its rank may have survived.
  const std::optional<Failure> before_ =
      if_told<std::optional<Failure>>([&] { return failure_under(run_store_, kFailureKey); });
  Deadline::Clock::time_point next_ = Deadline::Clock::now() + Deadline::kCheckEvery;
  std::optional<std::vector<Member>> processes_;  // set when first needed
  bool noticed_ = false;  // by look(), whose error says which rank failed first
};

std::optional<Failure> Others::first_failure() {
  const std::optional<Failure> first = failure_under(run_store_, kFailureKey);
  const bool old = before_ && has_survived(run_store_, *before_);
  return !first || old || first->rank == mine_ ? std::nullopt : first;
}

void Others::look() {
  if (Deadline::Clock::now() < next_) return;
  try {
    const std::optional<Failure> failure = first_failure();
    noticed_ = failure.has_value();
    WEFT_CHECK(!failure, PeerFailed, kOp, "rank ", failure->rank,
               failure->timed_out ? " was the first to give up" : " failed",
               " before all ranks had connected: ", describe(*failure));
    const std::optional<Failure> left = failure_under(store_, kLeft);
    WEFT_CHECK(!left, PeerFailed, kOp, "another rank does not wait any longer");
    if (!processes_) processes_ = processes_here();
    for (const Member& process : *processes_) {
      WEFT_CHECK(!has_ended(process), PeerFailed, kOp, "rank ", process.rank,
                 " ended before all ranks had connected (", describe(process), ")");
    }
  } catch (const Error& error) {
    // A slow store says nothing about the ranks. If it is gone, its rank or launcher has ended.
    if (error.code() != ErrorCode::Timeout) throw;
  }
  next_ = Deadline::Clock::now() + Deadline::kCheckEvery;
}

// The processes of the other ranks on this host, for runs that no launcher watches. For ranks of
// other hosts only their connections tell.
std::vector<Member> Others::processes_here() {
  const Member here = this_member(mine_, "");
  std::vector<Member> processes;
  for (const int number : members_.ranks) {
    if (number == mine_) continue;
    auto member = member_of(run_store_, number);
    if (member && member->boot == here.boot) processes.push_back(std::move(*member));
  }
  return processes;
}

Error Others::explained(Error& error) {
  const Failure mine{mine_, error.what(), "connect", thread_state().step,
                     error.code() == ErrorCode::Timeout};
  const bool lost_a_rank = error.code() == ErrorCode::PeerFailed;
  const auto left =
      if_told<std::optional<Failure>>([&] { return note_failure(store_, mine, kLeft); });
  if_told<Failure>([&] { return note_own_failure(run_store_, mine, lost_a_rank); });
  if (auto* const unconnected = dynamic_cast<ConnectError*>(&error)) {
    unconnected->close_connections();
  }
  const std::string first = noticed_ ? "" : who_was_first(lost_a_rank, left);
  return error.with_context("connect on " + members_.me +
                            (first.empty() ? "" : " (" + first + ')'));
}

// If a rank was lost, waits for up to kStoreTimeout for the launcher, which knows why.
std::string Others::who_was_first(bool lost_a_rank, const std::optional<Failure>& left) {
  const auto first = if_told<std::optional<Failure>>([&] {
    if (lost_a_rank && !before_) run_store_.wait(kFailureKey, Deadline(kStoreTimeout));
    return first_failure();
  });
  if (first) return as_first(*first);
  if (!left || left->rank == mine_) return {};
  return detail::concat("rank ", left->rank, " left before: ", describe(*left));
}

std::vector<int> missing(Store& store, const Members& members) {
  std::vector<int> ranks;
  for (int r = 0; r < members.size(); ++r) {
    if (!store.try_get(std::to_string(r))) ranks.push_back(members.number_in_run(r));
  }
  return ranks;
}

void await_members(Store& store, const Members& members, milliseconds timeout,
                   const std::function<void()>& check) {
  store.set(std::to_string(members.rank), "");
  if (store.add(kCount, 1) == members.size()) store.set(kAll, "");
  if (store.wait(kAll, Deadline(timeout, check))) return;
  const std::vector<int> absent = missing(store, members);
  WEFT_CHECK(absent.empty(), Timeout, kOp, list_of(absent), " did not come to make a group within ",
             to_text(timeout), ", seen on ", members.me);
}

}  // namespace

std::unique_ptr<Backend> connect_members(const BackendMaker& make,
                                         const std::shared_ptr<Store>& store, Store& run_store,
                                         const Members& members, milliseconds timeout) {
  const PhaseScope phase("connect");
  const RankNumbers numbers(members.ranks);
  // Both prefix stores take over this timeout, for calls that wait for other ranks.
  store->set_timeout(timeout);
  PrefixStore arrival(kArrival, store);
  const auto keys = std::make_shared<PrefixStore>(kBackend, store);
  store->set_timeout(kStoreTimeout);
  run_store.set_timeout(kStoreTimeout);
  Others others(*store, run_store, members);
  const auto check = [&] { others.look(); };
  std::unique_ptr<Backend> backend;  // closed only after the others have been told why
  try {
    await_members(arrival, members, timeout, check);
    backend = make(keys, members.rank, members.size(), Deadline(timeout, check));
    // A rank notices by its connections when another one is gone, or has given up for that reason.
    backend->meet(Deadline(timeout));
    backend->set_links({thin_links(), members.ranks, members.rank});
    return backend;
  } catch (Error& error) {
    // All ranks get this error, so none has to be explained.
    if (error.code() == ErrorCode::Unsupported) throw;
    throw others.explained(error);
  } catch (...) {
    Error error = caught_error(kOp);
    throw others.explained(error);
  }
}

}  // namespace weft::comm
