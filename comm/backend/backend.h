// Backend: what moves bytes between the ranks of one group. A ProcessGroup checks, numbers and
// queues the operations; a backend runs them, one after the other, on the group's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/backend/thin_links.h"
#include "weft/comm/store/deadline.h"
#include "weft/comm/store/store.h"
#include "weft/core/base/dtype.h"
#include "weft/core/runtime/allocator.h"

namespace weft::comm {

/// For booleans sum and max mean "any", product and min mean "all".
enum class ReduceOp { sum, avg, product, min, max };

/// "sum", "avg" ...
const char* to_string(ReduceOp op);

/// One side of a message: the bytes that go to a rank or come from one.
struct Outgoing {
  int to;
  std::span<const std::byte> bytes;
};
struct Incoming {
  int from;
  std::span<std::byte> bytes;
};

/// What an operation works on: `count` numbers without gaps.
struct Buffer {
  void* data;
  std::int64_t count;
  DType dtype;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }
  /// Numbers [first, first + count).
  Buffer part(std::int64_t first, std::int64_t part_count) const {
    return {static_cast<std::byte*>(data) + static_cast<std::size_t>(first) * size_of(dtype),
            part_count, dtype};
  }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(data), bytes()}; }
};

/// What a rank has sent and received, counted by the backend. NCCL does not say what its
/// collectives send, so of them nothing is counted.
struct Traffic {
  std::int64_t bytes_sent = 0, bytes_received = 0;
  std::int64_t messages_sent = 0;

  Traffic& operator+=(const Traffic& other);
};

class Arithmetic;

/// Calls come from one thread at a time, except abort(), wake(), queued(). All ranks make the same
/// calls in the same order; in exchange() what one rank sends the other receives. The calls throw
///   PeerFailed    a rank is gone: "rank 2 closed its connection"
///   Timeout       the deadline passed: "rank 2 has sent 0 of 400 bytes"
///   Comm          abort() was called, an earlier call failed, or a rank sends another number of
///                 bytes than is expected, or has another fingerprint
/// After an error the backend cannot be used.
///
/// exchange() is the only operation that a backend must have: the collectives are built on it
/// (comm/backend/collectives.h), and a backend overrides those that it can do faster.
class Backend {
 public:
  Backend(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "gloo", "ring" ...
  virtual const char* name() const = 0;

  /// Sends and receives all messages at once: the messages between two ranks in the given order,
  /// all others in any order. Returns when everything has been received and the sent memory may be
  /// changed. A rank sends no message to itself; messages may be empty.
  virtual void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                        const Deadline& deadline) = 0;
  /// From any thread: a thread that waits in a call gets Comm, at once.
  virtual void abort() noexcept = 0;
  /// From any thread, when the deadline of a call has been moved: a thread that waits in the call
  /// then reads it again. For backends that would otherwise sleep until the old deadline.
  virtual void wake() noexcept {}
  /// Called in the caller's thread when an operation is queued, for backends that watch their
  /// callers. It must not call the group.
  virtual void queued(const char* /*name*/, const Buffer& /*x*/, const Buffer& /*y*/) {}
  /// Messages are held back as `links` says from now on. The default: Unsupported for thin links.
  virtual void set_links(const ThinLinks& links) { links.refuse_any(name()); }

  /// A number for what this rank does in the calls to come, 0 at first. Each message carries it, in
  /// the bytes that go before it anyway, and a rank that finds another number than its own throws
  /// Comm before it uses the message. NCCL's backend carries none.
  void set_fingerprint(std::uint64_t fingerprint) { fingerprint_ = fingerprint; }
  /// The rank whose fingerprint differed from this rank's; -1 if none did.
  int mismatched() const { return mismatched_; }

  /// How the collectives add and copy this backend's numbers; by default in the host's memory.
  virtual Arithmetic& arithmetic();

  virtual void broadcast(const Buffer& x, int root, const Deadline& deadline);
  virtual void all_reduce(const Buffer& x, ReduceOp op, const Deadline& deadline);
  /// The result is in root's x; the others' x is undefined afterwards.
  virtual void reduce(const Buffer& x, ReduceOp op, int root, const Deadline& deadline);
  /// Rank r's numbers become part r of y, which has size() x x.count.
  virtual void all_gather(const Buffer& x, const Buffer& y, const Deadline& deadline);
  /// y becomes part rank() of the reduced x, which has size() x y.count; x is undefined afterwards.
  virtual void reduce_scatter(const Buffer& x, const Buffer& y, ReduceOp op,
                              const Deadline& deadline);
  /// Only root uses y.
  virtual void gather(const Buffer& x, const Buffer& y, int root, const Deadline& deadline);
  /// Only root uses x.
  virtual void scatter(const Buffer& x, const Buffer& y, int root, const Deadline& deadline);
  /// Part r of x goes to rank r, and part r of y comes from rank r.
  virtual void all_to_all(const Buffer& x, const Buffer& y, const Deadline& deadline);
  virtual void barrier(const Deadline& deadline);

  /// Returns when all ranks have come here. Every rank calls it first: if a rank left earlier, the
  /// ranks that still connect would lose its connections, and the store if that rank hosts it.
  /// Traffic is counted from here on.
  virtual void meet(const Deadline& deadline);

  /// Whether all_reduce() needs no copy of what lies in memory of allocate(). The same on all
  /// ranks.
  virtual bool has_memory() const { return false; }
  /// Host memory with undefined content. All ranks call it, with the same number of bytes.
  virtual intrusive_ptr<Storage> allocate(std::size_t bytes, const Deadline& deadline);

  const Traffic& traffic() const { return traffic_; }

 protected:
  std::uint64_t fingerprint() const { return fingerprint_; }
  /// Throws Comm unless `theirs`, the fingerprint received from that rank, equals this rank's.
  void compare_fingerprint(int from, std::uint64_t theirs);

  Traffic traffic_;

 private:
  const int rank_, size_;
  std::uint64_t fingerprint_ = 0;
  int mismatched_ = -1;
};

/// Makes a backend for rank `rank` of `size`. All ranks call it; they find each other in `store` by
/// the group's own keys (a PrefixStore), which are used only once. `deadline` also checks whether
/// another rank has failed, and then throws PeerFailed in a thread that waits; it ends with the
/// call.
using BackendMaker = std::function<std::unique_ptr<Backend>(
    const std::shared_ptr<Store>& store, int rank, int size, const Deadline& deadline)>;

}  // namespace weft::comm
