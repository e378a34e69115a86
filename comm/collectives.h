// The collective algorithms, written over nothing but Backend::exchange(). n is the number of
// ranks, B the bytes of the buffer, a step one exchange that all ranks make together.
//
// All-reduce by a ring, here of 3 ranks with the numbers a, b and c in 3 parts. In each step every
// rank sends one part to the next rank, which adds its own numbers to it (reduce-scatter):
//
//   rank 0   a0  a1  a2        a0     a1     a2+c2        a0+b0+c0
//   rank 1   b0  b1  b2   ->   b0+a0  b1     b2      ->             a1+b1+c1
//   rank 2   c0  c1  c2        c0     c1+b1  c2                                a2+b2+c2
//
// After n-1 steps each rank has one part of the sum. The finished parts then go round in the same
// way, and replace instead of adding (all-gather): n-1 steps more. Nobody ever sends more than one
// n-th of the numbers at once, so that all connections are busy all the time, and each rank sends
// 2(n-1)/n B in all, however many ranks there are.
//
// Each number is computed at one rank, or at all in the order of the ranks: all ranks end with the
// same bits.
//
// The ranks must call the same function with the same counts, dtype, op and root. Counts may be 0.
// Errors are those of Backend, and Dtype for an avg of what is no floating dtype.
#pragma once

#include <cstdint>

#include "weft/comm/backend.h"

namespace weft::comm {

/// Of big buffers so much travels as one message, 256 KiB: what has come is still in the cache when
/// it is added, and memory for it is small. exchange() returns when its messages are through, so a
/// chunk is not added while the next one moves: on one machine the same core would do both.
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 18;

/// Part `r` of n, of nearly equal size: the first count % n parts are one longer than the others.
Buffer part_of(const Buffer& x, int r, int n);

// --- Rings: few bytes
// -----------------------------------------------------------------------------

/// y becomes the reduced part_of(x, rank, n), which it may be; x is left with anything. n-1 steps;
/// each rank sends (n-1)/n B.
void ring_reduce_scatter(Backend& backend, const Buffer& x, const Buffer& y, ReduceOp op,
                         const Deadline& deadline);
/// Rank r's x becomes part_of(y, r, n) at all ranks, which it may be. n-1 steps; each rank sends
/// (n-1)/n B.
void ring_all_gather(Backend& backend, const Buffer& x, const Buffer& y, const Deadline& deadline);
/// The two, one after the other. 2(n-1) steps; each rank sends 2(n-1)/n B.
void ring_all_reduce(Backend& backend, const Buffer& x, ReduceOp op, const Deadline& deadline);

// --- Chains: one rank has it all, or gets it all
// --------------------------------------------------

/// root passes x on to the next rank, that to the one behind it, and so on; a chunk goes on while
/// the next one comes. c chunks: c + n-2 steps; each rank but the last sends B.
void chain_broadcast(Backend& backend, const Buffer& x, int root, const Deadline& deadline);
/// The way back: each rank adds its own numbers to what comes, up to root; the other ranks' x is
/// left with anything. c + n-2 steps; each rank but root sends B.
void chain_reduce(Backend& backend, const Buffer& x, ReduceOp op, int root,
                  const Deadline& deadline);

// --- Few steps, for small buffers
// -----------------------------------------------------------------

/// Everybody sends x to everybody, and reduces all of them in the order of the ranks. 1 step; each
/// rank sends (n-1) B.
void direct_all_reduce(Backend& backend, const Buffer& x, ReduceOp op, const Deadline& deadline);
/// Everybody sends x to root, which reduces all of them in the order of the ranks. 1 step of B.
void direct_reduce(Backend& backend, const Buffer& x, ReduceOp op, int root,
                   const Deadline& deadline);
/// Who has x sends it to one that has not: 1, 2, 4 ... ranks have it. Steps: log2 n, rounded up.
void tree_broadcast(Backend& backend, const Buffer& x, int root, const Deadline& deadline);
/// In round k everybody hears from the rank 2^k before it, and so of 2^(k+1) ranks. Rounds: log2 n,
/// rounded up.
void dissemination_barrier(Backend& backend, const Deadline& deadline);

// --- One step, each message straight to where it belongs
// ------------------------------------------

/// As the functions of Backend of these names. Each rank sends, and gets, what the others need of
/// its own and nothing else.
void direct_all_gather(Backend& backend, const Buffer& x, const Buffer& y,
                       const Deadline& deadline);
void direct_gather(Backend& backend, const Buffer& x, const Buffer& y, int root,
                   const Deadline& deadline);
void direct_scatter(Backend& backend, const Buffer& x, const Buffer& y, int root,
                    const Deadline& deadline);
void direct_all_to_all(Backend& backend, const Buffer& x, const Buffer& y,
                       const Deadline& deadline);

}  // namespace weft::comm
