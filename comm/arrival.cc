#include "weft/comm/arrival.h"

#include <optional>
#include <string>
#include <vector>

#include "weft/comm/failure.h"
#include "weft/comm/progress.h"
#include "weft/core/error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "process_group";
// Who waits for the others looks so often at what may end the wait besides.
constexpr milliseconds kLook{200};

// The keys:
//   arrival/2      rank 2 has come
//   arrival/count  how many ranks have come
//   arrival/all    nothing, by the last to come
constexpr const char* kCount = "arrival/count";
constexpr const char* kAll = "arrival/all";
std::string rank_key(int rank) { return "arrival/" + std::to_string(rank); }

bool all_have_come(Store& store, const Deadline& deadline) {
  try {
    return store.wait(kAll, Deadline(deadline.left(kLook))).has_value();
  } catch (const Error& error) {
    // A store that does not answer for a moment has until the deadline, too.
    if (error.code() != ErrorCode::Timeout || deadline.passed()) throw;
    return false;
  }
}

void check_others(Store& run_store, const Members& members) {
  const std::optional<std::string> told = run_store.try_get(kFailureKey);
  if (!told) return;
  const Failure first = parse_failure(*told);
  WEFT_CHECK(first.rank == members.number_in_run(members.rank), PeerFailed, kOp, "rank ",
             first.rank, " failed before all ranks had connected: ", describe(first));
}

std::vector<int> missing(Store& store, const Members& members) {
  std::vector<int> ranks;
  for (int r = 0; r < members.size(); ++r) {
    if (!store.try_get(rank_key(r))) ranks.push_back(members.number_in_run(r));
  }
  return ranks;
}

}  // namespace

void await_members(Store& store, Store& run_store, const Members& members, milliseconds timeout) {
  const Deadline deadline(timeout);
  store.set(rank_key(members.rank), "");
  if (store.add(kCount, 1) == members.size()) store.set(kAll, "");
  while (!all_have_come(store, deadline)) {
    check_others(run_store, members);
    if (!deadline.passed()) continue;
    const std::vector<int> absent = missing(store, members);
    if (absent.empty()) return;
    WEFT_THROW(Timeout, kOp, list_of(absent), " did not come to make a group within ",
               to_text(timeout), ", seen on ", members.me);
  }
}

}  // namespace weft::comm
