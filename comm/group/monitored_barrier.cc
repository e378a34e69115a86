#include "weft/comm/group/monitored_barrier.h"

#include <string>
#include <vector>

#include "weft/comm/group/progress.h"
#include "weft/comm/store/member.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "monitored_barrier";
// The time that rank 0 may need beyond the timeout, to tell the others.
constexpr std::chrono::seconds kToTell{10};

void check_complete(const std::string& missing, const Members& members,
                    std::chrono::milliseconds timeout) {
  WEFT_CHECK(missing.empty(), Timeout, kOp, missing, " did not come within ", to_text(timeout),
             ", seen on ", members.me);
}

}  // namespace

void monitored_barrier(Store& store, const Members& members, int round,
                       std::chrono::milliseconds timeout) {
  const auto key = [](int n, const std::string& what) {
    return "barrier/" + std::to_string(n) + '/' + what;
  };
  const auto arrival = [&](int rank) { return key(round, std::to_string(rank)); };
  const Deadline deadline(timeout);
  store.set(arrival(members.rank), "");

  if (members.rank != 0) {
    const bool has_come = store.wait(arrival(0), deadline).has_value();
    check_complete(has_come ? "" : list_of({members.ranks.front()}), members, timeout);
    check_complete(store.get(key(round, "missing"), Deadline(timeout + kToTell)), members, timeout);
    return;
  }
  std::vector<int> missing;
  for (int r = 1; r < members.size(); ++r) {
    if (!store.wait(arrival(r), deadline)) {
      missing.push_back(members.number_in_run(r));
    }
  }
  const std::string told = missing.empty() ? "" : list_of(missing);
  store.set(key(round, "missing"), told);
  check_complete(told, members, timeout);
  // All ranks have come, so they need nothing of earlier barriers any more. A rank that was late
  // for some of these has read their results on its way here.
  for (int past = round - 1; past >= 0 && store.erase(key(past, "missing")); --past) {
    for (int r = 0; r < members.size(); ++r) store.erase(key(past, std::to_string(r)));
  }
}

}  // namespace weft::comm
