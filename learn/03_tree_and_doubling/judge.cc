// Judges exercise 3, and has typical wrong solutions of it.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/learn/03_tree_and_doubling/reference/reference.h"
#include "weft/learn/03_tree_and_doubling/solution.h"
#include "weft/learn/judge/all_reduce.h"
#include "weft/learn/judge/lab.h"

namespace weft::learn {
namespace {

constexpr const char* kAdvice = ": where there is no such rank, there is no message";

struct Both {
  AllReduce tree, doubling;
};

int rounds_of(const std::vector<Traffic>& ranks) {
  return std::ranges::max(ranks, {}, &Traffic::rounds).rounds;
}

// Of a tree: each rank's first message goes up, but that of the root, which is the first on the way
// down.
int rounds_up(const std::vector<Traffic>& ranks) {
  int first_down = 1;
  for (const Traffic& rank : ranks) {
    if (!rank.sent.empty()) first_down = std::max(first_down, rank.sent[0].round);
  }
  return first_down - 1;
}

// The logarithm of n, rounded down.
int log2_of(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }

void judge_tree(AllReduce f) {
  check_sums(f, 5, kAdvice);
  for (int n = 2; n <= 8; ++n) {
    const std::vector<Traffic> ranks = check_all_reduce(f, n, 100, kAdvice);
    std::size_t messages = 0;
    for (const Traffic& rank : ranks) messages += rank.sent.size();
    const int one_way = log2_of(n - 1) + 1, needed = 2 * (n - 1);
    require(static_cast<int>(messages) <= needed, "the ranks sent ", messages,
            " messages together, a tree has ", needed,
            ": one up and one down along each of its n - 1 branches");
    const int up = rounds_up(ranks), down = rounds_of(ranks) - up;
    require(up + down <= 2 * one_way, "it takes ", up + down, " rounds, ", 2 * one_way,
            " are enough. The way up takes ", up, ", the way down ", down, ": ",
            up > one_way ? "in each round half of the ranks that still have something can send it"
                         : "the way down is the mirror of the way up, so the farthest rank is the "
                           "first to which a rank sends");
  }
}

void judge_doubling(AllReduce f) {
  check_sums(f, 5, kAdvice);
  for (int n = 2; n <= 8; ++n) {
    const std::vector<Traffic> ranks = check_all_reduce(f, n, 100, kAdvice);
    const int k = log2_of(n), enough = n == 1 << k ? k : k + 2;
    require(rounds_of(ranks) <= enough, "it takes ", rounds_of(ranks), " rounds, ", enough,
            enough == 1 ? " is" : " are",
            " enough: in each round a rank sends its sum and receives another's at once, by "
            "exchange()",
            n == 1 << k ? "" : ", and the ranks beyond 2^k need one before and one after");
    for (int r = 0; r < n; ++r) {
      require(ranks[r].bytes() <= enough * 400, "rank ", r, " sent ",
              bytes_of(ranks[r].bytes(), enough * 400), ": x once in each round is enough");
    }
  }
}

// Judges f. The sentence about what is wrong begins with the name of the algorithm, since there are
// two.
template <class Judge>
void named(const char* name, Judge judge, AllReduce f) {
  try {
    judge(f);
  } catch (const NotYet& missing) {
    throw NotYet(detail::concat(name, ": ", missing.what()));
  } catch (const Wrong& wrong) {
    throw Wrong(detail::concat(name, ": ", wrong.what()));
  }
}

std::string judge(Both both) {
  named("tree_all_reduce", judge_tree, both.tree);
  named("doubling_all_reduce", judge_doubling, both.doubling);
  return "both are right for 1 to 8 ranks. With 8 ranks the tree takes 6 rounds, doubling 3, a "
         "ring "
         "14, but of a ring's messages each has an 8th of x: at 20 us and 1 GB/s doubling wins "
         "below 176 KB, the ring above";
}

// --- Wrong ones ----------------------------------------------------------------------------------

using wrong::add;
using wrong::receive_and_add;

void chain(Messages& me, std::span<float> x) {
  const int n = me.size(), rank = me.rank();
  if (rank + 1 < n) receive_and_add(me, rank + 1, x);
  if (rank > 0) {
    me.send(rank - 1, x);
    me.receive(rank - 1, x);
  }
  if (rank + 1 < n) me.send(rank + 1, x);
}

void only_up(Messages& me, std::span<float> x) {
  for (int bit = 1; bit < me.size(); bit *= 2) {
    if (me.rank() & bit) return me.send(me.rank() - bit, x);
    if (me.rank() + bit < me.size()) receive_and_add(me, me.rank() + bit, x);
  }
}

void rank_0_to_all(Messages& me, std::span<float> x) {
  only_up(me, x);
  if (me.rank() != 0) return me.receive(0, x);
  for (int r = 1; r < me.size(); ++r) me.send(r, x);
}

void no_such_child(Messages& me, std::span<float> x) {
  const int n = me.size(), rank = me.rank();
  int bit = 1;
  for (; bit < n && !(rank & bit); bit *= 2) receive_and_add(me, rank + bit, x);
  if (rank != 0) {
    me.send(rank - bit, x);
    me.receive(rank - bit, x);
  }
  for (bit /= 2; bit > 0; bit /= 2) me.send(rank + bit, x);
}

void adds_on_the_way_down(Messages& me, std::span<float> x) {
  const int n = me.size(), rank = me.rank();
  int bit = 1;
  for (; bit < n && !(rank & bit); bit *= 2) {
    if (rank + bit < n) receive_and_add(me, rank + bit, x);
  }
  if (rank != 0) {
    me.send(rank - bit, x);
    receive_and_add(me, rank - bit, x);
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (rank + bit < n) me.send(rank + bit, x);
  }
}

void powers_only(Messages& me, std::span<float> x) {
  std::vector<float> received(x.size());
  for (int bit = 1; bit < me.size(); bit *= 2) {
    if ((me.rank() ^ bit) >= me.size()) continue;
    me.exchange(me.rank() ^ bit, x, me.rank() ^ bit, received);
    add(x, received);
  }
}

void ahead(Messages& me, std::span<float> x) {
  std::vector<float> received(x.size());
  for (int bit = 1; bit < me.size(); bit *= 2) {
    const int partner = (me.rank() + bit) % me.size();
    me.exchange(partner, x, partner, received);
    add(x, received);
  }
}

void in_place(Messages& me, std::span<float> x) {
  for (int bit = 1; bit < me.size(); bit *= 2) me.exchange(me.rank() ^ bit, x, me.rank() ^ bit, x);
}

void in_turns(Messages& me, std::span<float> x) {
  const int n = me.size(), rank = me.rank();
  if (n != 1 << log2_of(n)) return reference::doubling_all_reduce(me, x);
  std::vector<float> received(x.size());
  for (int bit = 1; bit < n; bit *= 2) {
    if (rank & bit) me.send(rank ^ bit, x);
    me.receive(rank ^ bit, received);
    if (!(rank & bit)) me.send(rank ^ bit, x);
    add(x, received);
  }
}

const std::vector<WrongOne<Both>> kWrong = {
    {"chain",
     {chain, reference::doubling_all_reduce},
     "it takes 6 rounds, 4 are enough. The way up takes 3, the way down 3: in each round half",
     "one rank after the other"},
    {"rank_0_to_all",
     {rank_0_to_all, reference::doubling_all_reduce},
     "The way up takes 2, the way down 3: the way down is the mirror of the way up",
     "rank 0 gives the sum to all others itself"},
    {"only_up", {only_up, reference::doubling_all_reduce}, "it lacks rank 0", "up, and not down"},
    {"no_such_child",
     {no_such_child, reference::doubling_all_reduce},
     "there is no message",
     "does not ask whether the child exists"},
    {"adds_on_the_way_down",
     {adds_on_the_way_down, reference::doubling_all_reduce},
     "it has rank 1 twice",
     "adds the sum to what was in it"},
    {"powers_only",
     {reference::tree_all_reduce, powers_only},
     "it lacks rank 2",
     "only powers of two"},
    {"ahead",
     {reference::tree_all_reduce, ahead},
     "deadlock",
     "exchanges with the rank a bit ahead, not with the one that differs in the bit"},
    {"in_place",
     {reference::tree_all_reduce, in_place},
     "receives over what it sends",
     "receives over what it sends"},
    {"in_turns",
     {reference::tree_all_reduce, in_turns},
     "by exchange()",
     "first one sends, then the other"},
    {"tree_again",
     {reference::tree_all_reduce, reference::tree_all_reduce},
     "it takes 2 rounds, 1 is enough",
     "the tree in place of doubling"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "03_tree_and_doubling", judge,
                 Both{tree_all_reduce, doubling_all_reduce},
                 Both{reference::tree_all_reduce, reference::doubling_all_reduce}, kWrong);
}
