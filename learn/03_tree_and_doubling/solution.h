// Exercise 3: what you write, and what you write it with.
#pragma once

#include <span>

#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// Both: every rank calls it with an x of the same size; on all of them x becomes the sum of all x.
/// Up a tree to rank 0 and down again: 2 (n - 1) messages in 2 log2 n rounds.
void tree_all_reduce(Messages& me, std::span<float> x);
/// Recursive doubling: for n = 2^k k rounds, in which each rank exchanges its sum with another; for
/// other n at most two rounds more.
void doubling_all_reduce(Messages& me, std::span<float> x);

}  // namespace weft::learn
