// The ranks of one host communicate through memory that all of them have mapped.
//
// allocate() puts the memory of all ranks into one block, so all_reduce needs no copies for it:
// each rank adds up its part of everybody's numbers, and writes the sums into everybody's memory.
// Other tensors go through a staging area of fixed size, piece by piece, and messages between two
// ranks through a channel, a ring of bytes.
//
// There are no locks, so no rank can die while it holds one. A rank writes only its own memory and
// then rings: it changes the doorbell of each rank that may wait for it. A waiting rank sleeps on
// its own doorbell (a futex), and checks now and then whether the others still live.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/collectives.h"
#include "weft/comm/backend/exchange_state.h"
#include "weft/comm/backend/local_peers.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/backend/reduce.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"

namespace weft::comm {
namespace {

constexpr char kName[] = "shm";
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;   // of all ranks
constexpr std::size_t kChannelsBytes = std::size_t{4} << 20;  // of all pairs
constexpr std::size_t kMostChannelBytes = std::size_t{256} << 10;
constexpr std::size_t kLine = 64;  // a cache line, which one core writes at a time
// Sums are computed in a piece that fits the first-level cache, and written from there.
constexpr std::size_t kPieceBytes = std::size_t{16} << 10;
// Up to this size each rank adds up everything by itself.
constexpr std::size_t kSmallBytes = std::size_t{4} << 10;
// A rank checks this many times before it sleeps, some microseconds: others may need this core.
constexpr int kSpins = 300;
constexpr std::chrono::milliseconds kLookEvery{10};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// The arguments of an all_reduce, to be compared between ranks, and the place of the numbers.
struct Call {
  std::int64_t block = 0;  // -1: in the staging area
  std::int64_t offset = 0;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
};

/// Only its own rank writes it, except the doorbell.
struct alignas(kLine) Desk {
  std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> asleep;
  alignas(kLine) std::atomic<std::uint32_t> stage;  // number of stages that it has reached
  // For the last two stages, since a slow rank may still read the older one.
  Call calls[2];
  std::uint64_t fingerprints[2];
};

/// From one rank to another. The counters of bytes wrap around.
struct alignas(kLine) Channel {
  std::atomic<std::uint32_t> written;
  alignas(kLine) std::atomic<std::uint32_t> read;
};

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// Where things are in the memory that a group begins with.
struct Layout {
  explicit Layout(int ranks)
      : n(static_cast<std::size_t>(ranks)),
        staging(kStagingBytes / n / 2 / kLine * kLine),
        channel(std::min(kMostChannelBytes,
                         std::bit_floor(kChannelsBytes / std::max<std::size_t>(n * (n - 1), 1)))) {}

  std::size_t n;
  std::size_t staging;  // bytes per half; each rank has two halves
  std::size_t channel;  // bytes; a power of two, for counters that wrap around

  std::size_t desk(std::size_t rank) const { return rank * sizeof(Desk); }
  std::size_t channel_head(std::size_t from, std::size_t to) const {
    return desk(n) + (from * n + to) * sizeof(Channel);
  }
  std::size_t channel_bytes(std::size_t from, std::size_t to) const {
    return channel_head(n, 0) + (from * n + to) * channel;
  }
  std::size_t staging_bytes(std::size_t rank, std::size_t half) const {
    return channel_bytes(n, 0) + (rank * 2 + half) * staging;
  }
  std::size_t bytes() const { return staging_bytes(n, 0); }
};

/// One block of allocate(): the same number of bytes for each rank, one after the other.
struct Block {
  std::unique_ptr<SharedMemory> memory;
  std::size_t bytes;  // per rank
};

class ShmBackend final : public Backend {
 public:
  ShmBackend(std::shared_ptr<LocalPeers> peers, int rank, int size, const Deadline& deadline)
      : Backend(rank, size),
        peers_(std::move(peers)),
        layout_(size),
        memory_(peers_->share(layout_.bytes(), deadline)) {}

  const char* name() const override { return kName; }
  void set_links(const ThinLinks& links) override { links_ = links; }

  void abort() noexcept override {
    state_.abort();
    peers_->shut_down();
    ring(rank());
  }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    state_.run([&] { pass_messages(out, in, deadline); });
  }
  void barrier(const Deadline& deadline) override {
    state_.run([&] { reach_next_stage(deadline); });
  }
  // Shared memory has no links to slow down. If a link is to be thin, all data goes in messages.
  void all_reduce(const Buffer& x, ReduceOp op, const Deadline& deadline) override {
    if (in_messages(deadline)) return Backend::all_reduce(x, op, deadline);
    state_.run([&] { reduce_for_all(x, op, deadline); });
  }
  void reduce_scatter(const Buffer& x, const Buffer& y, ReduceOp op,
                      const Deadline& deadline) override {
    // With very many ranks a staging area has no room for one piece per rank.
    if (in_messages(deadline) || layout_.staging < index(size()) * kLine) {
      return Backend::reduce_scatter(x, y, op, deadline);
    }
    state_.run([&] { reduce_for_owners(x, y, op, deadline); });
  }
  void broadcast(const Buffer& x, int root, const Deadline& deadline) override {
    if (in_messages(deadline)) return Backend::broadcast(x, root, deadline);
    state_.run([&] { show_to_all(x, root, deadline); });
  }
  void all_gather(const Buffer& x, const Buffer& y, const Deadline& deadline) override {
    if (in_messages(deadline)) return Backend::all_gather(x, y, deadline);
    state_.run([&] { collect(x, y, deadline); });
  }
  void all_to_all(const Buffer& x, const Buffer& y, const Deadline& deadline) override {
    barrier(deadline);  // as in in_messages(): finds mismatches first
    Backend::all_to_all(x, y, deadline);
  }
  bool has_memory() const override { return true; }
  intrusive_ptr<Storage> allocate(std::size_t bytes, const Deadline& deadline) override {
    intrusive_ptr<Storage> memory;
    state_.run([&] { memory = share_block(bytes, deadline); });
    return memory;
  }

 private:
  // Whether a collective is to run over messages. If so, the ranks first meet in a barrier, which
  // finds a rank in another operation before its messages do.
  bool in_messages(const Deadline& deadline) {
    if (links_.any()) barrier(deadline);
    return links_.any();
  }

  Desk& desk(int rank) const { return *at<Desk>(layout_.desk(index(rank))); }
  Channel& channel(int from, int to) const {
    return *at<Channel>(layout_.channel_head(index(from), index(to)));
  }
  std::byte* channel_bytes(int from, int to) const {
    return at<std::byte>(layout_.channel_bytes(index(from), index(to)));
  }
  std::byte* staging(int rank, std::size_t half) const {
    return at<std::byte>(layout_.staging_bytes(index(rank), half));
  }
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_->data() + offset);
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void ring(int rank) const noexcept;
  template <class Lacking, class What>
  void wait(const Lacking& lacking, const What& what, const Deadline& deadline);
  void reach_next_stage(const Deadline& deadline);
  void reduce_for_all(const Buffer& x, ReduceOp op, const Deadline& deadline);
  void reduce_for_owners(const Buffer& x, const Buffer& y, ReduceOp op, const Deadline& deadline);
  bool agree(const char* name, const Call& call, const Deadline& deadline);
  Call call_of(const Buffer& x, ReduceOp op) const;
  template <class NumbersOf>
  void reduce_part(const Buffer& x, ReduceOp op, const NumbersOf& numbers_of);
  void reduce_staged(const Buffer& x, ReduceOp op, const Deadline& deadline);
  template <class F>
  void for_each_piece(std::size_t bytes, const F& f);

  void show_to_all(const Buffer& x, int root, const Deadline& deadline);
  void collect(const Buffer& x, const Buffer& y, const Deadline& deadline);
  void pass_messages(std::span<const Outgoing> out, std::span<const Incoming> in,
                     const Deadline& deadline);
  intrusive_ptr<Storage> share_block(std::size_t bytes, const Deadline& deadline);
  bool push(int to, std::span<const std::byte> bytes, std::size_t& done);
  bool pull(int from, std::span<std::byte> bytes, std::size_t& done);

  const std::shared_ptr<const LocalPeers> peers_;
  const Layout layout_;
  const std::unique_ptr<SharedMemory> memory_;
  std::uint32_t stage_ = 0;
  std::size_t half_ = 0;                      // the half of the staging area that nobody reads now
  std::vector<std::weak_ptr<Block>> blocks_;  // owned by the tensors in them
  ExchangeState state_{kName};
  ThinLinks links_;
  std::optional<std::chrono::nanoseconds> held_;  // until the next message passes its link
};

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout = nullptr) {
  ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

void ShmBackend::ring(int rank) const noexcept {
  Desk& other = desk(rank);
  other.doorbell.fetch_add(1);
  if (other.asleep.load() != 0) futex(other.doorbell, FUTEX_WAKE, 1);
}

/// Waits until lacking() is -1. lacking(): the rank that is still waited for; what(): what that
/// rank has not done, for the error.
template <class Lacking, class What>
void ShmBackend::wait(const Lacking& lacking, const What& what, const Deadline& deadline) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (lacking() < 0) return;
  }
  Desk& own = desk(rank());
  for (;;) {
    const std::uint32_t heard = own.doorbell.load();
    own.asleep.store(1);
    int rank = lacking();
    if (rank >= 0 && !state_.aborted()) {
      auto sleep = std::chrono::nanoseconds(deadline.left(kLookEvery));
      if (held_) sleep = std::min(sleep, *held_);
      const timespec timeout{0, static_cast<long>(sleep.count())};
      futex(own.doorbell, FUTEX_WAIT, heard, &timeout);
    }
    own.asleep.store(0);
    if (state_.aborted()) state_.throw_aborted();
    if ((rank = lacking()) < 0) return;
    if (peers_->gone(rank)) {
      // It may have finished just before it ended.
      if (lacking() < 0) return;
      state_.throw_closed(rank);
    }
    WEFT_CHECK(!deadline.passed(), Timeout, kName, "rank ", number_in_run(rank), ' ', what());
  }
}

void ShmBackend::reach_next_stage(const Deadline& deadline) {
  const std::size_t slot = stage_ % 2;
  desk(rank()).fingerprints[slot] = fingerprint();
  desk(rank()).stage.store(++stage_);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) ring(peer);
  }
  wait(
      [&] {
        for (int peer = 0; peer < size(); ++peer) {
          if (static_cast<std::int32_t>(desk(peer).stage.load() - stage_) < 0) return peer;
        }
        return -1;
      },
      [] { return "has not come"; }, deadline);
  for (int peer = 0; peer < size(); ++peer) {
    compare_fingerprint(peer, desk(peer).fingerprints[slot]);
  }
}

// --- all_reduce ----------------------------------------------------------------------------------

Call ShmBackend::call_of(const Buffer& x, ReduceOp op) const {
  const auto* const data = static_cast<const std::byte*>(x.data);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto block = blocks_[i].lock();
    if (!block) continue;
    const std::byte* const own = block->memory->data() + index(rank()) * block->bytes;
    if (data >= own && data + x.bytes() <= own + block->bytes) {
      return {static_cast<std::int64_t>(i), data - own, x.count, x.dtype, op};
    }
  }
  return {-1, 0, x.count, x.dtype, op};
}

/// Waits for all ranks and checks that they reduce the same: else Comm, on all of them. Returns
/// whether all have their numbers at the same place of one block.
bool ShmBackend::agree(const char* name, const Call& call, const Deadline& deadline) {
  const std::size_t slot = stage_ % 2;
  desk(rank()).calls[slot] = call;
  reach_next_stage(deadline);
  const Call& first = desk(0).calls[slot];
  bool direct = first.block >= 0;
  for (int peer = 1; peer < size(); ++peer) {
    const Call& other = desk(peer).calls[slot];
    WEFT_CHECK(other.count == first.count && other.dtype == first.dtype && other.op == first.op,
               Comm, kName, name, ": rank ", number_in_run(0), " has ", first.count, ' ',
               to_string(first.dtype), " (", to_string(first.op), "), rank ", number_in_run(peer),
               " has ", other.count, ' ', to_string(other.dtype), " (", to_string(other.op), ')');
    direct = direct && other.block == first.block && other.offset == first.offset;
  }
  return direct;
}

/// Reduces this rank's part of x: adds up the numbers of all ranks in their order, and writes the
/// sums to all. numbers_of(r): the address of rank r's x.
template <class NumbersOf>
void ShmBackend::reduce_part(const Buffer& x, ReduceOp op, const NumbersOf& numbers_of) {
  alignas(kLine) std::byte piece[kPieceBytes];
  const Buffer part = part_of(x, rank(), size());
  auto offset = static_cast<std::size_t>(static_cast<std::byte*>(part.data) -
                                         static_cast<std::byte*>(x.data));
  for (std::size_t left = part.bytes(); left > 0;) {
    const std::size_t bytes = std::min(left, kPieceBytes);
    const Buffer sum{piece, static_cast<std::int64_t>(bytes / size_of(x.dtype)), x.dtype};
    std::memcpy(piece, numbers_of(0) + offset, bytes);
    for (int r = 1; r < size(); ++r) reduce_into(sum, numbers_of(r) + offset, op);
    finish_reduce(sum, op, size());
    for (int r = 0; r < size(); ++r) std::memcpy(numbers_of(r) + offset, piece, bytes);
    offset += bytes;
    left -= bytes;
  }
}

void ShmBackend::reduce_for_all(const Buffer& x, ReduceOp op, const Deadline& deadline) {
  const Call call = call_of(x, op);
  const bool direct = agree("all_reduce", call, deadline);
  fault_point();
  const auto moved = static_cast<std::int64_t>(x.bytes()) * 2 * (size() - 1) / size();
  traffic_.bytes_sent += moved;
  traffic_.bytes_received += moved;
  if (!direct) return reduce_staged(x, op, deadline);
  const std::shared_ptr<Block> block = blocks_[static_cast<std::size_t>(call.block)].lock();
  reduce_part(x, op,
              [&](int r) { return block->memory->data() + index(r) * block->bytes + call.offset; });
  reach_next_stage(deadline);
}

/// Calls f(offset, bytes) for each piece that fits the staging area; f may use the half `half_`.
template <class F>
void ShmBackend::for_each_piece(std::size_t bytes, const F& f) {
  for (std::size_t offset = 0; offset < bytes; offset += layout_.staging) {
    f(offset, std::min(layout_.staging, bytes - offset));
    half_ = 1 - half_;
  }
}

void ShmBackend::reduce_staged(const Buffer& x, ReduceOp op, const Deadline& deadline) {
  for_each_piece(x.bytes(), [&](std::size_t offset, std::size_t bytes) {
    std::byte* const own = static_cast<std::byte*>(x.data) + offset;
    const Buffer shown{staging(rank(), half_), static_cast<std::int64_t>(bytes / size_of(x.dtype)),
                       x.dtype};
    std::memcpy(shown.data, own, bytes);
    reach_next_stage(deadline);
    if (bytes <= kSmallBytes) {  // one stage less for all ranks
      const Buffer sum{own, shown.count, x.dtype};
      std::memcpy(own, staging(0, half_), bytes);
      for (int r = 1; r < size(); ++r) reduce_into(sum, staging(r, half_), op);
      finish_reduce(sum, op, size());
      return;
    }
    reduce_part(shown, op, [&](int r) { return staging(r, half_); });
    reach_next_stage(deadline);
    std::memcpy(own, shown.data, bytes);
  });
}

// Adds up in the order of the ranks, as all_reduce does.
void ShmBackend::reduce_for_owners(const Buffer& x, const Buffer& y, ReduceOp op,
                                   const Deadline& deadline) {
  agree("reduce_scatter", {-1, 0, x.count, x.dtype, op}, deadline);
  const std::size_t most = layout_.staging / index(size()) / kLine * kLine;
  for (std::size_t offset = 0; offset < y.bytes(); offset += most, half_ = 1 - half_) {
    const std::size_t bytes = std::min(most, y.bytes() - offset);
    for (int r = 0; r < size(); ++r) {
      std::memcpy(staging(rank(), half_) + index(r) * bytes,
                  static_cast<std::byte*>(x.data) + index(r) * y.bytes() + offset, bytes);
    }
    reach_next_stage(deadline);
    if (offset == 0) fault_point();
    const auto shown = [&](int r) { return staging(r, half_) + index(rank()) * bytes; };
    const Buffer sum{static_cast<std::byte*>(y.data) + offset,
                     static_cast<std::int64_t>(bytes / size_of(x.dtype)), x.dtype};
    std::memcpy(sum.data, shown(0), bytes);
    for (int r = 1; r < size(); ++r) reduce_into(sum, shown(r), op);
    finish_reduce(sum, op, size());
  }
  const auto moved = static_cast<std::int64_t>(y.bytes()) * (size() - 1);
  traffic_.bytes_sent += moved;
  traffic_.bytes_received += moved;
}

// --- Operations in which many ranks read the same memory -----------------------------------------

// One stage for each piece. The two halves alternate: before a rank writes a half again, it has
// passed the stage of the other half, so all ranks have read this one.
void ShmBackend::show_to_all(const Buffer& x, int root, const Deadline& deadline) {
  for_each_piece(x.bytes(), [&](std::size_t offset, std::size_t bytes) {
    std::byte* const own = static_cast<std::byte*>(x.data) + offset;
    if (rank() == root) std::memcpy(staging(root, half_), own, bytes);
    reach_next_stage(deadline);
    if (rank() != root) std::memcpy(own, staging(root, half_), bytes);
  });
  if (rank() == root) {
    traffic_.bytes_sent += static_cast<std::int64_t>(x.bytes()) * (size() - 1);
  } else {
    traffic_.bytes_received += static_cast<std::int64_t>(x.bytes());
  }
}

void ShmBackend::collect(const Buffer& x, const Buffer& y, const Deadline& deadline) {
  agree("all_gather", {-1, 0, x.count, x.dtype, ReduceOp::sum}, deadline);
  for_each_piece(x.bytes(), [&](std::size_t offset, std::size_t bytes) {
    std::memcpy(staging(rank(), half_), static_cast<std::byte*>(x.data) + offset, bytes);
    reach_next_stage(deadline);
    if (offset == 0) fault_point();
    for (int r = 0; r < size(); ++r) {
      std::byte* const to = static_cast<std::byte*>(y.data) + index(r) * x.bytes() + offset;
      std::memcpy(to, staging(r, half_), bytes);
    }
  });
  traffic_.bytes_sent += static_cast<std::int64_t>(x.bytes()) * (size() - 1);
  traffic_.bytes_received += static_cast<std::int64_t>(x.bytes()) * (size() - 1);
}

// --- Messages ------------------------------------------------------------------------------------

/// Copies as much as has room; returns whether all of the message has been copied.
bool ShmBackend::push(int to, std::span<const std::byte> bytes, std::size_t& done) {
  if (done == bytes.size()) return true;  // an empty tensor has no address
  Channel& head = channel(rank(), to);
  std::byte* const ring_bytes = channel_bytes(rank(), to);
  const std::uint32_t written = head.written.load();
  const std::size_t room = layout_.channel - (written - head.read.load());
  const std::size_t count = std::min(room, bytes.size() - done);
  const std::size_t begin = written % layout_.channel;
  const std::size_t before_end = std::min(count, layout_.channel - begin);
  std::memcpy(ring_bytes + begin, bytes.data() + done, before_end);
  std::memcpy(ring_bytes, bytes.data() + done + before_end, count - before_end);
  if (count > 0) {
    done += count;
    head.written.store(written + static_cast<std::uint32_t>(count));
    ring(to);
  }
  return done == bytes.size();
}

bool ShmBackend::pull(int from, std::span<std::byte> bytes, std::size_t& done) {
  if (done == bytes.size()) return true;  // an empty tensor has no address
  Channel& head = channel(from, rank());
  const std::byte* const ring_bytes = channel_bytes(from, rank());
  const std::uint32_t read = head.read.load();
  const std::size_t there = head.written.load() - read;
  const std::size_t count = std::min(there, bytes.size() - done);
  const std::size_t begin = read % layout_.channel;
  const std::size_t before_end = std::min(count, layout_.channel - begin);
  std::memcpy(bytes.data() + done, ring_bytes + begin, before_end);
  std::memcpy(bytes.data() + done + before_end, ring_bytes, count - before_end);
  if (count > 0) {
    done += count;
    head.read.store(read + static_cast<std::uint32_t>(count));
    ring(from);
  }
  return done == bytes.size();
}

void ShmBackend::pass_messages(std::span<const Outgoing> out, std::span<const Incoming> in,
                               const Deadline& deadline) {
  // A message is sent as a header, then its bytes.
  struct Header {
    std::uint64_t bytes = 0, fingerprint = 0;
  };
  static_assert(sizeof(Header) == 16);
  struct Progress {
    Header header = {};
    std::size_t header_done = 0, done = 0;
    bool complete = false;
    ThinLinks::Clock::time_point passes_link = {};
  };
  std::vector<Progress> sent(out.size()), received(in.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    sent[i].header = {out[i].bytes.size(), fingerprint()};
    sent[i].passes_link = links_.passed(out[i].to, out[i].bytes.size());
  }

  const auto send = [&](std::size_t i) {
    Progress& p = sent[i];
    if (const auto held = held_for(p.passes_link)) {
      held_ = std::min(held_.value_or(*held), *held);
      return false;
    }
    return push(out[i].to, std::as_bytes(std::span(&p.header, 1)), p.header_done) &&
           push(out[i].to, out[i].bytes, p.done);
  };
  const auto receive = [&](std::size_t i) {
    Progress& p = received[i];
    const std::span header(&p.header, 1);
    if (!pull(in[i].from, std::as_writable_bytes(header), p.header_done)) return false;
    compare_fingerprint(in[i].from, p.header.fingerprint);
    state_.check_bytes(in[i].from, p.header.bytes, rank(), in[i].bytes.size());
    return pull(in[i].from, in[i].bytes, p.done);
  };
  // Moves messages; returns the rank of the first that is not complete, -1 if all are. Between the
  // same two ranks only the first incomplete message may move.
  const auto lacking_of = [this](const auto& messages, auto rank_of,
                                 std::vector<Progress>& progress, const auto& move) {
    int first = -1;
    std::vector<bool> busy(static_cast<std::size_t>(size()));  // ranks
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const int rank = rank_of(messages[i]);
      if (!progress[i].complete && !busy[index(rank)]) progress[i].complete = move(i);
      if (progress[i].complete) continue;
      busy[index(rank)] = true;
      if (first < 0) first = rank;
    }
    return first;
  };
  wait(
      [&] {
        held_ = {};
        const int not_sent = lacking_of(out, [](const Outgoing& m) { return m.to; }, sent, send);
        const int not_received =
            lacking_of(in, [](const Incoming& m) { return m.from; }, received, receive);
        return not_received >= 0 ? not_received : not_sent;
      },
      [&] {
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (received[i].complete) continue;
          return detail::concat("has sent ", received[i].done, " of ", in[i].bytes.size(),
                                " bytes");
        }
        return std::string("has not taken all of a message");
      },
      deadline);
  for (const Outgoing& message : out) {
    traffic_.bytes_sent += static_cast<std::int64_t>(message.bytes.size());
    ++traffic_.messages_sent;
  }
  for (const Incoming& message : in) {
    traffic_.bytes_received += static_cast<std::int64_t>(message.bytes.size());
  }
}

// --- Memory --------------------------------------------------------------------------------------

intrusive_ptr<Storage> ShmBackend::share_block(std::size_t bytes, const Deadline& deadline) {
  reach_next_stage(deadline);  // compares fingerprints: other numbers of bytes may round to this
  const std::size_t each = round_up(std::max<std::size_t>(bytes, 1), kLine);
  auto block = std::make_shared<Block>(Block{peers_->share(each * index(size()), deadline), each});
  {
    blocks_.push_back(block);
  }
  std::byte* const own = block->memory->data() + index(rank()) * each;
  return Storage::borrow(
      Device(), own, bytes, [](void* held) { delete static_cast<std::shared_ptr<Block>*>(held); },
      new std::shared_ptr<Block>(std::move(block)));
}

}  // namespace

BackendMaker shm_backend() {
  return [](const std::shared_ptr<Store>& store, int rank, int size, const Deadline& deadline) {
    const auto peers = std::make_shared<LocalPeers>(rank, size);
    return closing_late(peers, [&] {
      peers->connect(*store, deadline);
      return std::make_unique<ShmBackend>(peers, rank, size, deadline);
    });
  };
}

}  // namespace weft::comm
