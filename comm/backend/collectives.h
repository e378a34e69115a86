// The collective algorithms, written over nothing but Backend::exchange(). n is the number of
// ranks, B the bytes of the buffer, a step one exchange that all ranks make together.
//
// All-reduce by a ring, here of 3 ranks with the numbers a, b and c in 3 parts. In each step every
// rank sends one part to the next rank, which adds its own numbers to it (reduce-scatter):
//
//   rank 0   a0  a1  a2        a0     a1+c1  a2           a0+b0+c0
//   rank 1   b0  b1  b2   ->   b0     b1     b2+a2   ->             a1+b1+c1
//   rank 2   c0  c1  c2        c0+b0  c1     c2                                a2+b2+c2
//
// After n-1 steps each rank has one part of the sum. The finished parts then go round in the same
// way, and replace instead of adding (all-gather): n-1 steps more. No rank ever sends more than one
// n-th of the numbers at once, so all connections are busy all the time, and each rank sends
// 2(n-1)/n B in all, however many ranks there are.
//
// Each number is computed on one rank, or on all ranks in the order of the ranks: so all ranks end
// with the same bits.
//
// The ranks must call the same function with the same counts, dtype, op and root. Counts may be 0.
// Errors are those of Backend, and Dtype for an avg of a dtype that is not floating.
#pragma once

#include <cstdint>

#include "weft/comm/backend/backend.h"

namespace weft::comm {

/// Large buffers travel in messages of this size, 256 KiB: a message is still in the cache when it
/// is added, and the memory for it is small. exchange() returns when its messages have arrived, so
/// a chunk is not added while the next one moves: on one machine the same core would do both.
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 18;

/// Part `r` of n, of nearly equal size: the first count % n parts are one longer than the others.
Buffer part_of(const Buffer& x, int r, int n);

// --- Rings: few bytes ----------------------------------------------------------------------------

/// y becomes the reduced part_of(x, rank, n), and may be that part itself; the rest of x is
/// undefined afterwards. n-1 steps; each rank sends (n-1)/n B.
void ring_reduce_scatter(Backend& backend, const Buffer& x, const Buffer& y, ReduceOp op,
                         const Deadline& deadline);
/// Rank r's x becomes part_of(y, r, n) on all ranks, and may be that part itself. n-1 steps; each
/// rank sends (n-1)/n B.
void ring_all_gather(Backend& backend, const Buffer& x, const Buffer& y, const Deadline& deadline);
/// Returns when all ranks have called it. n-1 steps of no bytes; needs only the neighbours.
void ring_barrier(Backend& backend, const Deadline& deadline);
/// ring_reduce_scatter() and ring_all_gather(). 2(n-1) steps; each rank sends 2(n-1)/n B.
void ring_all_reduce(Backend& backend, const Buffer& x, ReduceOp op, const Deadline& deadline);

// --- Chains: one rank has all, or gets all -------------------------------------------------------

/// root sends x to the next rank, which sends it to the one after it, and so on; a rank sends a
/// chunk on while the next one comes. c chunks: c + n-2 steps; each rank but the last sends B.
void chain_broadcast(Backend& backend, const Buffer& x, int root, const Deadline& deadline);
/// The opposite direction: each rank adds its own numbers to what it receives, up to root; the
/// other ranks' x is undefined afterwards. c + n-2 steps; each rank but root sends B.
void chain_reduce(Backend& backend, const Buffer& x, ReduceOp op, int root,
                  const Deadline& deadline);

// --- Few steps, for small buffers ----------------------------------------------------------------

/// Each rank sends x to all others, and reduces all of them in the order of the ranks. 1 step; each
/// rank sends (n-1) B.
void direct_all_reduce(Backend& backend, const Buffer& x, ReduceOp op, const Deadline& deadline);
/// Each rank sends x to root, which reduces all of them in the order of the ranks. 1 step of B.
void direct_reduce(Backend& backend, const Buffer& x, ReduceOp op, int root,
                   const Deadline& deadline);
/// Each rank that has x sends it to one that has not: 1, 2, 4 ... ranks have it. Steps: log2 n,
/// rounded up.
void tree_broadcast(Backend& backend, const Buffer& x, int root, const Deadline& deadline);
/// In round k each rank hears from the rank 2^k before it, and so indirectly from 2^(k+1) ranks.
/// Rounds: log2 n, rounded up.
void dissemination_barrier(Backend& backend, const Deadline& deadline);

// --- One step, each message directly to its receiver ---------------------------------------------

/// Do the same as the functions of Backend with these names. Each rank sends only the numbers that
/// the receiver needs.
void direct_all_gather(Backend& backend, const Buffer& x, const Buffer& y,
                       const Deadline& deadline);
void direct_gather(Backend& backend, const Buffer& x, const Buffer& y, int root,
                   const Deadline& deadline);
void direct_scatter(Backend& backend, const Buffer& x, const Buffer& y, int root,
                    const Deadline& deadline);
void direct_all_to_all(Backend& backend, const Buffer& x, const Buffer& y,
                       const Deadline& deadline);

}  // namespace weft::comm
