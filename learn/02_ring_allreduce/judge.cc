// Judges exercise 2, and has typical wrong solutions of it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/comm/backend/collectives.h"
#include "weft/learn/02_ring_allreduce/solution.h"
#include "weft/learn/judge/all_reduce.h"
#include "weft/learn/judge/lab.h"

namespace weft::learn {
namespace {

constexpr const char* kAdvice =
    ": the rank before 0 is (rank - 1 + n) % n, the one after the last (rank + 1) % n";

// Each message must go to a neighbour, all in one direction, and have at most one part. Together
// the messages must not have a byte too many.
void check_traffic(const std::vector<Traffic>& ranks, std::int64_t count) {
  const int n = static_cast<int>(ranks.size());
  const std::int64_t shortest = count / n * 4, longest = (count + n - 1) / n * 4;
  for (int r = 0; r < n; ++r) {
    for (const Sent& sent : ranks[r].sent) {
      const int next = (r + 1) % n, previous = (r - 1 + n) % n;
      require(sent.to == next || sent.to == previous, "rank ", r, " sent to rank ", sent.to,
              ", which is no neighbour: in the ring it sends to rank ", next, " alone");
      require(sent.to == ranks[r].sent[0].to, "rank ", r, " sent to rank ", ranks[r].sent[0].to,
              " and later to rank ", sent.to, ": the parts go round in one direction");
    }
    const std::int64_t most = 2 * (count * 4 - shortest), got = ranks[r].bytes();
    require(got <= most, "rank ", r, " sent ", bytes_of(got, most),
            ": each step should send one part");
    for (const Sent& sent : ranks[r].sent) {
      require(sent.bytes <= longest, "rank ", r, " sent ", bytes_of(sent.bytes, longest),
              " in step ", sent.step + 1, ": a message should have one part, an n-th of x");
    }
  }
}

std::string judge(AllReduce f) {
  check_sums(f, 5, kAdvice, check_exact);
  for (const int n : {4, 5, 3, 2}) {
    for (const std::int64_t count : {100'000, 12, 13, 1001}) {
      const std::vector<Traffic> ranks = check_exact(f, n, count, kAdvice);
      check_traffic(ranks, count);
      for (int r = 0; r < n; ++r) {
        require(ranks[r].steps <= 2 * (n - 1), "rank ", r, " took ", ranks[r].steps,
                " steps, 2 (n - 1) = ", 2 * (n - 1),
                " are enough: send one part and receive another in the same step, by exchange()");
      }
    }
  }
  // Last: whoever sends all of x round also adds in another order on each rank.
  check_sums(f, 5, kAdvice, check_bits);
  for (const int n : {4, 5, 3, 2}) check_bits(f, n, 100'000, kAdvice);
  return "the sums are right for 1 to 5 ranks, also where x does not divide, to the bit the same "
         "on all; each rank sent 2 (n - 1) / n of x, in 2 (n - 1) steps";
}

void weft_s(Messages& me, std::span<float> x) {
  comm::ring_all_reduce(me.backend(), {x.data(), std::ssize(x), DType::f32}, comm::ReduceOp::sum,
                        me.deadline());
}

// --- Wrong ones ----------------------------------------------------------------------------------

std::span<float> part_of(std::span<float> x, int r, int n) {
  const std::size_t least = x.size() / n, longer = x.size() % n, place = r;
  return x.subspan(place * least + std::min(place, longer), least + (place < longer));
}

using wrong::add;
using wrong::receive_and_add;

struct Ring {
  explicit Ring(Messages& messages)
      : me(messages), n(me.size()), next((me.rank() + 1) % n), previous((me.rank() - 1 + n) % n) {}
  int behind(int places) const { return ((me.rank() - places) % n + n) % n; }

  Messages& me;
  int n, next, previous;
};

void whole_x(Messages& me, std::span<float> x) {
  const Ring ring(me);
  std::vector<float> going(x.begin(), x.end()), coming(x.size());
  std::vector<std::vector<float>> all(ring.n);
  all[me.rank()] = going;
  for (int step = 1; step < ring.n; ++step) {
    me.exchange(ring.next, going, ring.previous, coming);
    all[ring.behind(step)] = coming;
    going = coming;
  }
  std::ranges::fill(x, 0.0f);
  for (const std::vector<float>& one : all) add(x, one);
}

// Each rank adds what comes to what it has. So the order of the sum differs from rank to rank, too,
// but that all of x goes round is what is to be said first.
void own_order(Messages& me, std::span<float> x) {
  const Ring ring(me);
  std::vector<float> going(x.begin(), x.end()), coming(x.size());
  for (int step = 1; step < ring.n; ++step) {
    me.exchange(ring.next, going, ring.previous, coming);
    add(x, coming);
    going = coming;
  }
}

void no_rest(Messages& me, std::span<float> x) {
  weft_s(me, x.first(x.size() / me.size() * me.size()));
}

void equal_parts(Messages& me, std::span<float> x) {
  const Ring ring(me);
  const std::size_t size = (x.size() + ring.n - 1) / ring.n;
  const auto part = [&](int r) { return std::span(x.data() + r * size, size); };
  std::vector<float> coming(size);
  for (int step = 0; step < ring.n - 1; ++step) {
    me.exchange(ring.next, part(ring.behind(step)), ring.previous, coming);
    add(part(ring.behind(step + 1)), coming);
  }
  for (int step = 0; step < ring.n - 1; ++step) {
    me.exchange(ring.next, part(ring.behind(step - 1)), ring.previous, part(ring.behind(step)));
  }
}

void adds_twice(Messages& me, std::span<float> x) {
  const Ring ring(me);
  std::vector<float> room(x.size() / ring.n + 1);
  for (int step = 0; step < 2 * (ring.n - 1); ++step) {
    const std::span<float> part = part_of(x, ring.behind(step + 1), ring.n);
    const std::span<float> coming = std::span(room).first(part.size());
    me.exchange(ring.next, part_of(x, ring.behind(step), ring.n), ring.previous, coming);
    add(part, coming);
  }
}

void half(Messages& me, std::span<float> x) {
  const comm::Buffer all{x.data(), std::ssize(x), DType::f32};
  comm::ring_reduce_scatter(me.backend(), all, comm::part_of(all, me.rank(), me.size()),
                            comm::ReduceOp::sum, me.deadline());
}

void sends_first(Messages& me, std::span<float> x) {
  const Ring ring(me);
  std::vector<float> room(x.size() / ring.n + 1);
  for (int step = 0; step < ring.n - 1; ++step) {
    const std::span<float> part = part_of(x, ring.behind(step + 1), ring.n);
    const std::span<float> coming = std::span(room).first(part.size());
    me.send(ring.next, part_of(x, ring.behind(step), ring.n));
    me.receive(ring.previous, coming);
    add(part, coming);
  }
}

void negative_rank(Messages& me, std::span<float> x) {
  if (me.size() == 1) return;
  std::vector<float> coming(x.size());
  me.exchange((me.rank() + 1) % me.size(), x, (me.rank() - 1) % me.size(), coming);
}

void off_by_one(Messages& me, std::span<float> x) {
  const Ring ring(me);
  std::vector<float> room(x.size() / ring.n + 1);
  for (int step = 0; step < ring.n - 1; ++step) {
    const std::span<float> part = part_of(x, ring.behind(step + 2), ring.n);
    const std::span<float> coming = std::span(room).first(part.size());
    me.exchange(ring.next, part_of(x, ring.behind(step), ring.n), ring.previous, coming);
    add(part, coming);
  }
}

void star(Messages& me, std::span<float> x) {
  if (me.rank() != 0) {
    me.send(0, x);
    return me.receive(0, x);
  }
  for (int r = 1; r < me.size(); ++r) receive_and_add(me, r, x);
  for (int r = 1; r < me.size(); ++r) me.send(r, x);
}

void endless(Messages& me, std::span<float>) {
  volatile bool ready = me.size() == 1;
  while (!ready) {
  }
}

const std::vector<WrongOne<AllReduce>> kWrong = {
    {"whole_x", whole_x, "each step should send one part",
     "all of x goes round: right sums, but too many bytes"},
    {"own_order", own_order, "each step should send one part",
     "all of x goes round, and each rank adds in another order"},
    {"no_rest", no_rest, "it lacks rank 1",
     "the numbers behind the last whole part are never added"},
    {"equal_parts", equal_parts, "wrote outside of x", "all parts are as long as the longest"},
    {"adds_twice", adds_twice, "twice", "the second phase adds, as the first does"},
    {"half", half,
     "it lacks rank 1. Each sum is on some rank already, and need only be copied to the others",
     "without the second phase"},
    {"sends_first", sends_first, "deadlock: rank 0 waits until rank 1 receives 6 numbers",
     "sends, then receives: all wait until somebody receives"},
    {"negative_rank", negative_rank,
     "receives from rank -1, but the ranks are 0 to 1: the rank before 0 is",
     "% of a negative number is negative"},
    {"off_by_one", off_by_one, "parts of different places", "one part too late"},
    {"star", star, "which is no neighbour", "rank 0 collects and gives back"},
    {"endless", endless, "not all ranks have returned after 8 s",
     "waits for a flag that nobody sets"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "02_ring_allreduce", judge, ring_all_reduce, weft_s, kWrong);
}
