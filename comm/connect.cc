#include "weft/comm/connect.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/failure.h"
#include "weft/comm/progress.h"
#include "weft/core/error.h"
#include "weft/core/phase.h"
#include "weft/core/thread_state.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "process_group";

// The keys:
//   arrival/2      rank 2 has come
//   arrival/count  how many ranks have come
//   arrival/all    nothing, by the last to come
//   backend/...    those of the backend
constexpr const char* kCount = "arrival/count";
constexpr const char* kAll = "arrival/all";
std::string rank_key(int rank) { return "arrival/" + std::to_string(rank); }

std::vector<int> missing(Store& store, const Members& members) {
  std::vector<int> ranks;
  for (int r = 0; r < members.size(); ++r) {
    if (!store.try_get(rank_key(r))) ranks.push_back(members.number_in_run(r));
  }
  return ranks;
}

void await_members(Store& store, const Members& members, milliseconds timeout,
                   const std::function<void()>& check) {
  store.set(rank_key(members.rank), "");
  if (store.add(kCount, 1) == members.size()) store.set(kAll, "");
  if (store.wait(kAll, Deadline(timeout, check))) return;
  const std::vector<int> absent = missing(store, members);
  WEFT_CHECK(absent.empty(), Timeout, kOp, list_of(absent), " did not come to make a group within ",
             to_text(timeout), ", seen on ", members.me);
}

// The error with who failed first. The connections of this rank are closed.
Error explained(const Error& error, Store& run_store, const Members& members) {
  const Failure mine{members.number_in_run(members.rank), error.what(), "connect",
                     thread_state().step, error.code() == ErrorCode::Timeout};
  const FailureReport report(run_store, mine, error.code() == ErrorCode::PeerFailed);
  const std::string first = report.who_was_first();
  return error.with_context("connect on " + members.me + (first.empty() ? "" : " (" + first + ')'));
}

}  // namespace

std::unique_ptr<Backend> connect_members(const BackendMaker& make, const Store& store,
                                         Store& run_store, const Members& members,
                                         milliseconds timeout) {
  const PhaseScope phase("connect");
  run_store.set_timeout(kStoreTimeout);
  FailureWatch others(&run_store, members.number_in_run(members.rank), /*pause=*/1);
  const auto check = [&] {
    const std::optional<Failure> failure = others.look();
    WEFT_CHECK(!failure, PeerFailed, kOp, "rank ", failure->rank,
               failure->timed_out ? " was the first to give up" : " failed",
               " before all ranks had connected: ", describe(*failure));
  };
  // A connection of its own: whoever else asks the store need not wait.
  const std::shared_ptr<Store> own = store.duplicate();
  await_members(*own, members, timeout, check);
  try {
    const auto keys = std::make_shared<PrefixStore>("backend", own);
    std::unique_ptr<Backend> backend =
        make(keys, members.rank, members.size(), Deadline(timeout, check));
    // Who is connected notices by that when another one is gone.
    backend->meet(Deadline(timeout));
    return backend;
  } catch (const Error& error) {
    // All ranks refuse; or the watch, which knows who failed first.
    if (error.code() == ErrorCode::Unsupported || error.op() == kOp) throw;
    throw explained(error, run_store, members);
  }
}

}  // namespace weft::comm
