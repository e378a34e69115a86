#include "weft/comm/backend/exchange_state.h"

#include "weft/comm/backend/rank_numbers.h"
#include "weft/core/base/error.h"

namespace weft::comm {

void ExchangeState::check() const {
  if (aborted_) throw_aborted();
  WEFT_CHECK(failure_.empty(), Comm, backend_,
             "this group is of no use any more, since an earlier call failed: ", failure_);
}

void ExchangeState::throw_aborted() const { WEFT_THROW(Comm, backend_, "the group was aborted"); }

void ExchangeState::throw_closed(int rank, const std::string& reason) const {
  if (aborted_) throw_aborted();
  WEFT_THROW(PeerFailed, backend_, "rank ", number_in_run(rank), " closed its connection",
             reason.empty() ? "" : ": ", reason);
}

void ExchangeState::throw_timeout(int rank, const char* did, const std::string& done,
                                  std::size_t bytes) const {
  WEFT_THROW(Timeout, backend_, "rank ", number_in_run(rank), " has ", did, " ", done, " of ",
             bytes, " bytes; it may be slow, stopped, or not in the same operation");
}

void ExchangeState::check_bytes(int from, std::uint64_t sent, int to,
                                std::uint64_t expected) const {
  WEFT_CHECK(sent == expected, Comm, backend_, "rank ", number_in_run(from), " sends ", sent,
             " bytes where rank ", number_in_run(to), " expects ", expected,
             "; all ranks must call the same operations, with the same shapes and dtypes");
}

}  // namespace weft::comm
