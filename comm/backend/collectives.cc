#include "weft/comm/backend/collectives.h"

#include <algorithm>
#include <span>
#include <vector>

#include "weft/comm/backend/reduce.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/pool.h"

namespace weft::comm {
namespace {

template <class Message>
using Messages = std::vector<Message, PoolAllocator<Message>>;

// A rank's place in the ring.
struct Ring {
  explicit Ring(const Backend& backend) : size(backend.size()), rank(backend.rank()) {}

  // The rank `places` behind this one, or ahead of it; `places` is at most `size`.
  int behind(int places) const { return (rank - places + size) % size; }
  int ahead(int places) const { return (rank + places) % size; }

  int size, rank;
};

// How a buffer is cut into messages.
struct Chunks {
  // For a buffer of `longest` numbers. Shorter buffers have the same count of chunks, the last ones
  // empty.
  Chunks(Backend& backend, std::int64_t longest, DType dtype)
      : numbers(static_cast<std::int64_t>(backend.arithmetic().chunk_bytes() / size_of(dtype))),
        count(std::max<std::int64_t>((longest + numbers - 1) / numbers, 1)) {}

  Buffer of(const Buffer& x, std::int64_t chunk) const {
    const std::int64_t first = std::min(chunk * numbers, x.count);
    return x.part(first, std::min(numbers, x.count - first));
  }

  std::int64_t numbers, count;
};

// All messages of a step: f(rank) for every other rank. Each rank begins with the one ahead of it,
// so that they do not all send to the same rank first.
template <class Message, class F>
Messages<Message> for_others(const Ring& ring, F f) {
  Messages<Message> messages;
  messages.reserve(ring.size);
  for (int i = 1; i < ring.size; ++i) messages.push_back({ring.ahead(i), f(ring.ahead(i)).span()});
  return messages;
}

// Part r of n equal parts of x; n divides x.count.
Buffer equal_part(const Buffer& x, int r, int n) { return x.part(x.count / n * r, x.count / n); }

// Reduces the parts into x, in the order of the ranks.
void reduce_in_order(Backend& backend, const Buffer& x, const Buffer& parts, ReduceOp op) {
  Arithmetic& here = backend.arithmetic();
  const int n = backend.size();
  here.copy(x, equal_part(parts, 0, n));
  for (int r = 1; r < n; ++r) here.reduce_into(x, equal_part(parts, r, n).data, op);
  here.finish_reduce(x, op, n);
}

// Room for one x of each rank.
Buffer scratch_for_all(Backend& backend, const Buffer& x) {
  const int n = backend.size();
  return {backend.arithmetic().scratch(x.bytes() * n), x.count * n, x.dtype};
}

// Sends the chunks of x along the ring, from rank `first` to the rank behind it. A rank sends chunk
// i - 1 on while it receives chunk i. A received chunk is put into target(chunk), and then
// taken(chunk) is called.
template <class Target, class Taken>
void run_along(Backend& backend, int first, const Buffer& x, Target target, Taken taken,
               const Deadline& deadline) {
  const Ring ring(backend);
  const Chunks chunks(backend, x.count, x.dtype);
  const bool receives = ring.rank != first, sends = ring.ahead(1) != first;
  for (std::int64_t i = 0; i <= chunks.count; ++i) {
    const bool one_goes = sends && i > 0, one_comes = receives && i < chunks.count;
    const Buffer coming = chunks.of(x, i);
    const Outgoing out{ring.ahead(1),
                       one_goes ? chunks.of(x, i - 1).span() : std::span<std::byte>()};
    const Incoming in{ring.behind(1), one_comes ? target(coming) : std::span<std::byte>()};
    backend.exchange({&out, one_goes}, {&in, one_comes}, deadline);
    if (one_comes) taken(coming);
  }
}

}  // namespace

Buffer part_of(const Buffer& x, int r, int n) {
  const std::int64_t count = x.count / n, longer = x.count % n;
  return x.part(r * count + std::min<std::int64_t>(r, longer), count + (r < longer));
}

void ring_reduce_scatter(Backend& backend, const Buffer& x, const Buffer& y, ReduceOp op,
                         const Deadline& deadline) {
  const Ring ring(backend);
  Arithmetic& here = backend.arithmetic();
  const Chunks chunks(backend, part_of(x, 0, ring.size).count, x.dtype);
  // A part starts at the rank ahead of its owner, so in the last step each rank adds to its own
  // part.
  for (int step = 1; step < ring.size; ++step) {
    const Buffer leaving = part_of(x, ring.behind(step), ring.size);
    const Buffer coming = part_of(x, ring.behind(step + 1), ring.size);
    for (std::int64_t i = 0; i < chunks.count; ++i) {
      const Buffer sum = chunks.of(coming, i);
      const Outgoing out{ring.ahead(1), chunks.of(leaving, i).span()};
      const Incoming in{ring.behind(1), {here.scratch(sum.bytes()), sum.bytes()}};
      backend.exchange({&out, 1}, {&in, 1}, deadline);
      if (step == 1 && i == 0) fault_point();
      here.reduce_into(sum, in.bytes.data(), op);
    }
  }
  here.copy(y, part_of(x, ring.rank, ring.size));
  here.finish_reduce(y, op, ring.size);
}

void ring_all_gather(Backend& backend, const Buffer& x, const Buffer& y, const Deadline& deadline) {
  const Ring ring(backend);
  backend.arithmetic().copy(part_of(y, ring.rank, ring.size), x);
  for (int step = 1; step < ring.size; ++step) {
    const Outgoing out{ring.ahead(1), part_of(y, ring.behind(step - 1), ring.size).span()};
    const Incoming in{ring.behind(1), part_of(y, ring.behind(step), ring.size).span()};
    backend.exchange({&out, 1}, {&in, 1}, deadline);
    if (step == 1) fault_point();
  }
}

void ring_barrier(Backend& backend, const Deadline& deadline) {
  const Ring ring(backend);
  for (int step = 1; step < ring.size; ++step) {
    const Outgoing out{ring.ahead(1), {}};
    const Incoming in{ring.behind(1), {}};
    backend.exchange({&out, 1}, {&in, 1}, deadline);
  }
}

void ring_all_reduce(Backend& backend, const Buffer& x, ReduceOp op, const Deadline& deadline) {
  const Buffer own = part_of(x, backend.rank(), backend.size());
  ring_reduce_scatter(backend, x, own, op, deadline);
  ring_all_gather(backend, own, x, deadline);
}

void chain_broadcast(Backend& backend, const Buffer& x, int root, const Deadline& deadline) {
  run_along(
      backend, root, x, [](const Buffer& chunk) { return chunk.span(); }, [](const Buffer&) {},
      deadline);
}

void chain_reduce(Backend& backend, const Buffer& x, ReduceOp op, int root,
                  const Deadline& deadline) {
  Arithmetic& here = backend.arithmetic();
  std::byte* const received = here.scratch(std::min(x.bytes(), here.chunk_bytes()));
  run_along(
      backend, (root + 1) % backend.size(), x,
      [&](const Buffer& chunk) { return std::span(received, chunk.bytes()); },
      [&](const Buffer& chunk) { here.reduce_into(chunk, received, op); }, deadline);
  if (backend.rank() == root) here.finish_reduce(x, op, backend.size());
}

void direct_all_reduce(Backend& backend, const Buffer& x, ReduceOp op, const Deadline& deadline) {
  const Buffer parts = scratch_for_all(backend, x);
  direct_all_gather(backend, x, parts, deadline);
  reduce_in_order(backend, x, parts, op);
}

void direct_reduce(Backend& backend, const Buffer& x, ReduceOp op, int root,
                   const Deadline& deadline) {
  const bool is_root = backend.rank() == root;
  const Buffer parts = is_root ? scratch_for_all(backend, x) : Buffer{};
  direct_gather(backend, x, parts, root, deadline);
  if (is_root) reduce_in_order(backend, x, parts, op);
}

void tree_broadcast(Backend& backend, const Buffer& x, int root, const Deadline& deadline) {
  const Ring ring(backend);
  const int place = ring.behind(root);
  for (int have = 1; have < ring.size; have *= 2) {
    if (place < have && place + have < ring.size) {
      const Outgoing out{ring.ahead(have), x.span()};
      backend.exchange({&out, 1}, {}, deadline);
    } else if (place >= have && place < 2 * have) {
      const Incoming in{ring.behind(have), x.span()};
      backend.exchange({}, {&in, 1}, deadline);
    }
  }
}

void dissemination_barrier(Backend& backend, const Deadline& deadline) {
  const Ring ring(backend);
  for (int distance = 1; distance < ring.size; distance *= 2) {
    const Outgoing out{ring.ahead(distance), {}};
    const Incoming in{ring.behind(distance), {}};
    backend.exchange({&out, 1}, {&in, 1}, deadline);
  }
}

void direct_all_gather(Backend& backend, const Buffer& x, const Buffer& y,
                       const Deadline& deadline) {
  const Ring ring(backend);
  backend.arithmetic().copy(equal_part(y, ring.rank, ring.size), x);
  backend.exchange(for_others<Outgoing>(ring, [&](int) { return x; }),
                   for_others<Incoming>(ring, [&](int r) { return equal_part(y, r, ring.size); }),
                   deadline);
  fault_point();
}

void direct_gather(Backend& backend, const Buffer& x, const Buffer& y, int root,
                   const Deadline& deadline) {
  const Ring ring(backend);
  if (ring.rank != root) {
    const Outgoing out{root, x.span()};
    return backend.exchange({&out, 1}, {}, deadline);
  }
  backend.arithmetic().copy(equal_part(y, root, ring.size), x);
  backend.exchange(
      {}, for_others<Incoming>(ring, [&](int r) { return equal_part(y, r, ring.size); }), deadline);
}

void direct_scatter(Backend& backend, const Buffer& x, const Buffer& y, int root,
                    const Deadline& deadline) {
  const Ring ring(backend);
  if (ring.rank != root) {
    const Incoming in{root, y.span()};
    return backend.exchange({}, {&in, 1}, deadline);
  }
  backend.arithmetic().copy(y, equal_part(x, root, ring.size));
  backend.exchange(for_others<Outgoing>(ring, [&](int r) { return equal_part(x, r, ring.size); }),
                   {}, deadline);
}

void direct_all_to_all(Backend& backend, const Buffer& x, const Buffer& y,
                       const Deadline& deadline) {
  const Ring ring(backend);
  backend.arithmetic().copy(equal_part(y, ring.rank, ring.size),
                            equal_part(x, ring.rank, ring.size));
  backend.exchange(for_others<Outgoing>(ring, [&](int r) { return equal_part(x, r, ring.size); }),
                   for_others<Incoming>(ring, [&](int r) { return equal_part(y, r, ring.size); }),
                   deadline);
}

}  // namespace weft::comm
