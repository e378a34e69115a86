// Judges exercise 1, and has typical wrong solutions of it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "weft/comm/backend/collectives.h"
#include "weft/learn/01_allreduce/solution.h"
#include "weft/learn/judge/all_reduce.h"
#include "weft/learn/judge/lab.h"

namespace weft::learn {
namespace {

std::string judge(AllReduce f) {
  check_sums(f, 5);
  std::int64_t most = 0;
  for (int n = 2; n <= 5; ++n) {
    const std::vector<Traffic> ranks = check_all_reduce(f, n, 1000);
    for (int r = 0; r < n; ++r) {
      most = std::max(most, ranks[r].bytes());
      require(ranks[r].bytes() <= 4000 * (n - 1), "rank ", r, " sent ", ranks[r].bytes(),
              " bytes; x once to each other rank is ", 4000 * (n - 1));
    }
  }
  return detail::concat(
      "the sums are right for 1 to 5 ranks, with the same bits on all. Of 5 ranks with 4000 bytes "
      "the busiest sent ",
      most, "; exercise 2 does it with 6400");
}

void weft_s(Messages& me, std::span<float> x) {
  comm::direct_all_reduce(me.backend(), {x.data(), std::ssize(x), DType::f32}, comm::ReduceOp::sum,
                          me.deadline());
}

// --- Wrong ones ----------------------------------------------------------------------------------

using wrong::add;
using wrong::receive_and_add;

// What comes from all others, when r sends in round r.
std::vector<std::vector<float>> all_of(Messages& me, std::span<const float> x) {
  std::vector<std::vector<float>> all(me.size(), std::vector<float>(x.begin(), x.end()));
  for (int r = 0; r < me.size(); ++r) {
    for (int to = 0; to < me.size(); ++to) {
      if (me.rank() == r && to != r) me.send(to, x);
    }
    if (me.rank() != r) me.receive(r, all[r]);
  }
  return all;
}

void all_send_first(Messages& me, std::span<float> x) {
  for (int r = 0; r < me.size(); ++r) {
    if (r != me.rank()) me.send(r, x);
  }
  for (int r = 0; r < me.size(); ++r) {
    if (r != me.rank()) receive_and_add(me, r, x);
  }
}

void own_first(Messages& me, std::span<float> x) {
  const std::vector<std::vector<float>> all = all_of(me, x);
  for (int r = 0; r < me.size(); ++r) {
    if (r != me.rank()) add(x, all[r]);
  }
}

void without_own(Messages& me, std::span<float> x) {
  const std::vector<std::vector<float>> all = all_of(me, x);
  std::ranges::fill(x, 0.0f);
  for (int r = 0; r < me.size(); ++r) {
    if (r != me.rank() || me.size() == 1) add(x, all[r]);
  }
}

void reduce_only(Messages& me, std::span<float> x) {
  if (me.rank() != 0) return me.send(0, x);
  for (int r = 1; r < me.size(); ++r) receive_and_add(me, r, x);
}

void overwrites(Messages& me, std::span<float> x) {
  if (me.rank() != 0) {
    me.send(0, x);
    return me.receive(0, x);
  }
  for (int r = 1; r < me.size(); ++r) me.receive(r, x);
  for (int r = 1; r < me.size(); ++r) me.send(r, x);
}

void sends_sums(Messages& me, std::span<float> x) {
  for (int r = 0; r < me.size(); ++r) {
    for (int to = 0; to < me.size(); ++to) {
      if (me.rank() == r && to != r) me.send(to, x);
    }
    if (me.rank() != r) receive_and_add(me, r, x);
  }
}

void two_ranks(Messages& me, std::span<float> x) {
  std::vector<float> coming(x.size());
  if (me.rank() > 1 || me.size() == 1) return;
  if (me.rank() == 0) me.send(1, x);
  me.receive(1 - me.rank(), coming);
  if (me.rank() == 1) me.send(0, x);
  add(x, coming);
}

void forgets_a_rank(Messages& me, std::span<float> x) {
  if (me.rank() != 0) {
    me.send(0, x);
    return me.receive(0, x);
  }
  for (int r = 1; r < me.size(); ++r) receive_and_add(me, r, x);
  for (int r = 1; r < me.size() - 1; ++r) me.send(r, x);
}

void divides(Messages& me, std::span<float> x) {
  weft_s(me, x);
  for (float& value : x) value /= static_cast<float>(me.size());
}

void rounds(Messages& me, std::span<float> x) {
  weft_s(me, x);
  for (float& value : x) value = std::round(value);
}

void not_cleared(Messages& me, std::span<float> x) {
  weft_s(me, x);
  if (!x.empty()) x.back() += std::numeric_limits<float>::quiet_NaN();
}

void twice(Messages& me, std::span<float> x) {
  std::vector<float> before(x.begin(), x.end());
  for (int i = 0; i < 2; ++i) {
    std::ranges::copy(before, x.begin());
    weft_s(me, x);
  }
}

const std::vector<WrongOne<AllReduce>> kWrong = {
    {"all_send_first", all_send_first, "deadlock: rank 0 waits until rank 1 receives 12 numbers",
     "everybody sends, and nobody receives"},
    {"own_first", own_first, "the ranks have different bits",
     "each rank begins with its own numbers"},
    {"without_own", without_own, "it lacks rank 0", "only what comes from others"},
    {"reduce_only", reduce_only, "it lacks rank 0. Each sum is on some rank already",
     "rank 0 keeps the sum for itself"},
    {"overwrites", overwrites, "it lacks rank 0", "receives into x, and so loses its own numbers"},
    {"sends_sums", sends_sums, "it has rank 0 twice",
     "sends a sum in which the others' numbers already are"},
    {"two_ranks", two_ranks, "it lacks rank 2", "written with two ranks in mind"},
    {"forgets_a_rank", forgets_a_rank, "from rank 0, which has returned",
     "rank 0 forgets the last rank, which waits for the sum"},
    {"twice", twice, "rank 0 sent 8000 bytes; x once to each other rank is 4000",
     "all of it twice, to be sure"},
    {"divides", divides, "it is the sum divided by the number of ranks",
     "the mean, as for gradients"},
    {"not_cleared", not_cleared, "it is not a number: was memory added",
     "the sums begin with what lay in the memory"},
    {"rounds", rounds, "that is more than additions in float round",
     "as if all numbers were whole ones"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "01_allreduce", judge, all_reduce, weft_s, kWrong);
}
