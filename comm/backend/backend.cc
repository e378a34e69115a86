// The defaults of Backend: the algorithms of comm/backend/collectives.h for backends without their
// own.
#include "weft/comm/backend/backend.h"

#include "weft/comm/backend/collectives.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/backend/reduce.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

// Below this size the number of messages costs more than their bytes, so few steps are better.
bool small(std::size_t bytes) { return bytes <= std::size_t{64} << 10; }

}  // namespace

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::product: return "product";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "?";
}

Traffic& Traffic::operator+=(const Traffic& other) {
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  messages_sent += other.messages_sent;
  return *this;
}

void Backend::compare_fingerprint(int from, std::uint64_t theirs) {
  if (theirs == fingerprint_) return;
  mismatched_ = from;
  WEFT_THROW(Comm, name(), "rank ", number_in_run(from), " is in another operation than rank ",
             number_in_run(rank_));
}

Arithmetic& Backend::arithmetic() {
  static auto* const host = new Arithmetic;
  return *host;
}

void Backend::broadcast(const Buffer& x, int root, const Deadline& deadline) {
  (small(x.bytes()) ? tree_broadcast : chain_broadcast)(*this, x, root, deadline);
}

void Backend::all_reduce(const Buffer& x, ReduceOp op, const Deadline& deadline) {
  (small(x.bytes() * size_) ? direct_all_reduce : ring_all_reduce)(*this, x, op, deadline);
}

void Backend::reduce(const Buffer& x, ReduceOp op, int root, const Deadline& deadline) {
  (small(x.bytes() * size_) ? direct_reduce : chain_reduce)(*this, x, op, root, deadline);
}

void Backend::all_gather(const Buffer& x, const Buffer& y, const Deadline& deadline) {
  (small(y.bytes()) ? direct_all_gather : ring_all_gather)(*this, x, y, deadline);
}

void Backend::reduce_scatter(const Buffer& x, const Buffer& y, ReduceOp op,
                             const Deadline& deadline) {
  ring_reduce_scatter(*this, x, y, op, deadline);
}

void Backend::gather(const Buffer& x, const Buffer& y, int root, const Deadline& deadline) {
  direct_gather(*this, x, y, root, deadline);
}

void Backend::scatter(const Buffer& x, const Buffer& y, int root, const Deadline& deadline) {
  direct_scatter(*this, x, y, root, deadline);
}

void Backend::all_to_all(const Buffer& x, const Buffer& y, const Deadline& deadline) {
  direct_all_to_all(*this, x, y, deadline);
}

void Backend::barrier(const Deadline& deadline) { dissemination_barrier(*this, deadline); }

void Backend::meet(const Deadline& deadline) {
  barrier(deadline);
  traffic_ = {};
}

intrusive_ptr<Storage> Backend::allocate(std::size_t bytes, const Deadline&) {
  return Storage::allocate(Device(), bytes);
}

}  // namespace weft::comm
