#include "weft/learn/03_tree_and_doubling/reference/reference.h"

#include <bit>
#include <cstddef>
#include <vector>

namespace weft::learn::reference {
namespace {

void receive_and_add(Messages& me, int from, std::span<float> x) {
  std::vector<float> received(x.size());
  me.receive(from, received);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += received[i];
}

}  // namespace

void tree_all_reduce(Messages& me, std::span<float> x) {
  const int n = me.size(), rank = me.rank();
  // A rank's parent is the rank without its lowest bit.
  int bit = 1;
  for (; bit < n && !(rank & bit); bit *= 2) {
    if (rank + bit < n) receive_and_add(me, rank + bit, x);
  }
  if (rank != 0) {
    me.send(rank - bit, x);
    me.receive(rank - bit, x);
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (rank + bit < n) me.send(rank + bit, x);
  }
}

void doubling_all_reduce(Messages& me, std::span<float> x) {
  const int n = me.size(), rank = me.rank();
  const int paired = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  // The ranks from `paired` on lend their numbers to the first ones.
  if (rank >= paired) {
    me.send(rank - paired, x);
    return me.receive(rank - paired, x);
  }
  if (rank + paired < n) receive_and_add(me, rank + paired, x);
  std::vector<float> received(x.size());
  for (int bit = 1; bit < paired; bit *= 2) {
    me.exchange(rank ^ bit, x, rank ^ bit, received);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += received[i];
  }
  if (rank + paired < n) me.send(rank + paired, x);
}

}  // namespace weft::learn::reference
