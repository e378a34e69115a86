// Judges exercise 14, and has typical wrong solutions of it.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "weft/learn/14_dead_rank/reference/reference.h"
#include "weft/learn/14_dead_rank/solution.h"
#include "weft/learn/judge/lab.h"

namespace weft::learn {
namespace {

using Run = std::vector<LastSeen>;
using FindCulprit = int (*)(const Run& ranks);

// A ring of n ranks in operation 7. In the end all wait for rank `dead`: the nearer half of the
// ranks after it for the rank before them, the others for the rank after them.
Run ring(int n, int dead) {
  Run run(n, {.operation = 7});
  for (int i = 1; i < n; ++i) {
    const int r = (dead + i) % n;
    run[r].waits_for = i <= n / 2 ? (r - 1 + n) % n : (r + 1) % n;
    run[r].silent_s = 0.01 * i;
  }
  return run;
}

std::string table(const Run& run) {
  std::string text;
  for (std::size_t r = 0; r < run.size(); ++r) {
    text += detail::concat(
        r ? "; " : "", "rank ", r, ": operation ", run[r].operation,
        run[r].waits_for < 0 ? ", computes" : detail::concat(", waits for ", run[r].waits_for),
        ", silent ", run[r].silent_s, " s");
  }
  return text;
}

void check(FindCulprit f, const Run& run, int culprit, const std::string& story) {
  begin_case(run.empty() ? "no ranks" : table(run));
  int said = -1;
  within_patience("who follows ranks that wait for each other goes round in a circle",
                  [&] { said = f(run); });
  require(said >= -1 && said < static_cast<int>(run.size()), "you say rank ", said,
          ", but the ranks are 0 to ", run.size() - 1, ", and -1 means nobody");
  require(said == culprit, "you say ", said < 0 ? "nobody" : detail::concat("rank ", said),
          ", but ", story);
}

// All wait for the rank before them. If `outside` is a rank, it computes and nobody waits for it.
Run circle(int n, int outside = -1) {
  Run run(n, {.operation = 7});
  for (int r = 0; r < n; ++r) {
    if (r == outside) continue;
    const int before = (r - 1 + n) % n;
    run[r].waits_for = before == outside ? (r - 2 + n) % n : before;
  }
  return run;
}

void judge_killed(FindCulprit f, int n, int dead) {
  const std::string who = detail::concat("rank ", dead);
  Run run = ring(n, dead);
  run[dead].silent_s = 4.2;
  check(f, run, dead, who + " was killed: it is silent, and the others wait for it");
  // The dead rank waited for a rank that has gone on since.
  run[dead].waits_for = (dead + n - 1) % n;
  check(f, run, dead,
        who +
            " was killed while it waited: for whom a dead rank waited says "
            "nothing, since nobody has told it that the message came");
  if (n == 2) return;
  run[(dead + 1) % n].silent_s = 1.5;
  check(f, run, dead,
        detail::concat(who, " died first; rank ", (dead + 1) % n,
                       " did so later, perhaps because it had lost its neighbour"));
}

void judge_hanging(FindCulprit f, int n, int hanging) {
  const std::string who = detail::concat("rank ", hanging);
  Run run = ring(n, hanging);
  for (const int operation : {6, 7}) {
    run[hanging].operation = operation;
    check(f, run, hanging,
          detail::concat(who, " is alive but does not come: it computes, maybe for ever, ",
                         operation < 7 ? "" : "in the operation in which the others are, ",
                         "and all wait for it, directly or by way of others"));
  }
  const int other = (hanging + 1) % n;
  run[other].silent_s = 0.9;
  check(f, run, hanging,
        detail::concat("all wait for ", who, "; rank ", other,
                       " is alive: its last sign is not yet a second old"));
}

void judge_other_call(FindCulprit f, int n, int wrong) {
  for (const int operation : {6, 8}) {
    Run run = circle(n);
    run[wrong].operation = operation;
    if (n == 2) {
      check(f, run, -1,
            "of two ranks that wait for each other nobody can tell which has made a call too few "
            "or too many");
      continue;
    }
    check(f, run, wrong,
          detail::concat("all wait in a circle, all in operation 7 but rank ", wrong,
                         ", which is in ", operation, ": it has ",
                         operation < 7 ? "left a call out" : "made a call more"));
  }
}

// Rank r alone waits, for one of the ranks that compute. Then two compute, and the others wait for
// either.
void judge_two_that_compute(FindCulprit f, int n, int r) {
  const int other = (r + n - 1) % n;
  Run run(n, {.operation = 7});
  run[r].waits_for = other;
  for (const int operation : {7, 8}) {
    run[r].operation = operation;
    check(f, run, -1,
          detail::concat("rank ", r, operation > 7 ? " is ahead, and" : "", " waits for rank ",
                         other, ": others compute as well, and may still come"));
  }
  run = ring(n, r);
  run[(r + n / 2) % n].waits_for = -1;
  check(f, run, -1,
        detail::concat("ranks ", r, " and ", (r + n / 2) % n,
                       " both compute: neither is waited for by all others, and may still come"));
}

void judge_healthy(FindCulprit f, int n) {
  check(f, circle(n), -1,
        "all are alive, in the same operation, and wait for messages that are "
        "under way");
  for (int r = 0; n > 2 && r < n; ++r) {
    check(f, circle(n, r), -1,
          detail::concat("rank ", r,
                         " computes, though nobody waits for it, and the others wait for messages "
                         "that are under way"));
    Run run = circle(n, r);
    run[r].operation = 6;
    check(f, run, -1,
          detail::concat("rank ", r,
                         " has not begun operation 7 and may still come: it computes, and none of "
                         "the others, which are in it, waits for it"));
  }
  for (int r = 0; n > 2 && r < n; ++r) judge_two_that_compute(f, n, r);
  for (int r = 0; n > 3 && r < n; ++r) {
    Run run = circle(n, r);
    const int a = (r + n - 2) % n, b = (r + n - 1) % n;
    run[a].waits_for = b, run[b].waits_for = a, run[(r + 1) % n].waits_for = r;
    check(f, run, -1,
          detail::concat("ranks ", a, " and ", b, " wait for each other and not for rank ", r,
                         ": only a rank for which *all* others wait hangs"));
  }
  check(f, Run(n, {.operation = 7}), -1, "all are alive, and compute");
}

std::string judge(FindCulprit f) {
  for (const int n : {4, 2, 3, 8}) {
    for (int culprit = 0; culprit < n; ++culprit) {
      judge_killed(f, n, culprit);
      judge_hanging(f, n, culprit);
      judge_other_call(f, n, culprit);
    }
    judge_healthy(f, n);
  }
  check(f, {}, -1, "there is no rank");
  return "the killed, the hanging, and who has left a call out, among 2 to 8 ranks";
}

// --- Wrong ones ----------------------------------------------------------------------------------

// Whoever looks busy.
int first_that_waits(const Run& ranks) {
  const auto found =
      std::ranges::find_if(ranks, [](const LastSeen& r) { return r.waits_for >= 0; });
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

// One step of the chain.
int whom_it_waits_for(const Run& ranks) {
  const int first = first_that_waits(ranks);
  return first < 0 ? -1 : ranks[first].waits_for;
}

int most_silent(const Run& ranks) {
  const auto longest = std::ranges::max_element(ranks, {}, &LastSeen::silent_s);
  return longest == ranks.end() ? -1 : static_cast<int>(longest - ranks.begin());
}

int first_dead(const Run& ranks) {
  const auto found = std::ranges::find_if(ranks, [](const LastSeen& r) { return r.silent_s > 1; });
  return found == ranks.end() ? reference::find_culprit(ranks)
                              : static_cast<int>(found - ranks.begin());
}

// In a circle, the one that is behind, and nothing else.
int lowest_operation(const Run& ranks) {
  const auto least = std::ranges::min_element(ranks, {}, &LastSeen::operation);
  if (std::ranges::any_of(ranks,
                          [](const LastSeen& r) { return r.silent_s > 1 || r.waits_for < 0; })) {
    return reference::find_culprit(ranks);
  }
  if (ranks.empty()) return -1;
  return std::ranges::count(ranks, least->operation, &LastSeen::operation) == 1
             ? static_cast<int>(least - ranks.begin())
             : -1;
}

// Follows the chain, also from a dead rank on.
int endless(const Run& ranks) {
  int at = first_that_waits(ranks);
  if (at < 0) return -1;
  while (ranks[at].waits_for >= 0) at = ranks[at].waits_for;
  return at;
}

// Who is silent for a tenth of a second is dead.
int impatient(const Run& ranks) {
  Run older = ranks;
  for (LastSeen& r : older) r.silent_s *= 10;
  return reference::find_culprit(older);
}

// Has heard of circles, and blames somebody.
int blames_in_circles(const Run& ranks) {
  const int culprit = reference::find_culprit(ranks);
  return culprit < 0 && first_that_waits(ranks) >= 0 ? 0 : culprit;
}

// Whoever computes while others wait, also if they do not wait for it.
int computes_alone(const Run& ranks) {
  const auto computes = [](const LastSeen& r) { return r.waits_for < 0; };
  const int culprit = reference::find_culprit(ranks);
  if (culprit >= 0 || std::ranges::count_if(ranks, computes) != 1) return culprit;
  return static_cast<int>(std::ranges::find_if(ranks, computes) - ranks.begin());
}

// The one whose operation no other has; -1 if there is none.
int other_operation(const Run& ranks) {
  const auto found = std::ranges::find_if(ranks, [&](const LastSeen& r) {
    return std::ranges::count(ranks, r.operation, &LastSeen::operation) == 1;
  });
  return found == ranks.end() || ranks.size() <= 2 ? -1 : static_cast<int>(found - ranks.begin());
}

// Follows one rank that waits, and blames the rank to which it comes.
int first_way(const Run& ranks) {
  const int first = first_that_waits(ranks);
  const bool one_is_dead =
      std::ranges::any_of(ranks, [](const LastSeen& r) { return r.silent_s > 1; });
  if (one_is_dead || first < 0) return reference::find_culprit(ranks);
  int at = first;
  for (std::size_t i = 0; i < ranks.size() && ranks[at].waits_for >= 0; ++i) {
    at = ranks[at].waits_for;
  }
  return ranks[at].waits_for < 0 ? at : reference::find_culprit(ranks);
}

// Compares the operations also if several compute.
int compares_beside_two(const Run& ranks) {
  const auto computing =
      std::ranges::count_if(ranks, [](const LastSeen& r) { return r.waits_for < 0; });
  return computing > 1 ? other_operation(ranks) : reference::find_culprit(ranks);
}

// The only one that computes, if anybody waits for it.
int one_waits_for_it(const Run& ranks) {
  const int culprit = computes_alone(ranks);
  return culprit >= 0 && std::ranges::count(ranks, culprit, &LastSeen::waits_for) > 0
             ? culprit
             : reference::find_culprit(ranks);
}

// Does not ask for whom anybody waits.
int without_the_chain(const Run& ranks) {
  const bool one_is_dead =
      std::ranges::any_of(ranks, [](const LastSeen& r) { return r.silent_s > 1; });
  return one_is_dead || ranks.size() <= 2 ? reference::find_culprit(ranks) : other_operation(ranks);
}

// Compares the operations, also if a rank computes beside the circle.
int compares_all(const Run& ranks) {
  const int culprit = reference::find_culprit(ranks);
  return culprit >= 0 ? culprit : other_operation(ranks);
}

// Of two, the one that is behind.
int blames_one_of_two(const Run& ranks) {
  const int culprit = reference::find_culprit(ranks);
  if (culprit >= 0 || ranks.size() != 2 || ranks[0].operation == ranks[1].operation) {
    return culprit;
  }
  return ranks[0].operation < ranks[1].operation ? 0 : 1;
}

int one_too_many(const Run& ranks) { return reference::find_culprit(ranks) + 1; }

const std::vector<WrongOne<FindCulprit>> kWrong = {
    {"first_that_waits", first_that_waits, "you say rank 1, but rank 0 was killed"},
    {"whom_it_waits_for", whom_it_waits_for, "but rank"},
    {"most_silent", most_silent, "is alive but does not come"},
    {"first_dead", first_dead, "died first; rank"},
    {"lowest_operation", lowest_operation, "it has made a call more"},
    {"endless", endless, "goes round in a circle"},
    {"impatient", impatient, "is alive: its last sign is not yet a second old"},
    {"blames_in_circles", blames_in_circles, "messages that are under way"},
    {"computes_alone", computes_alone, "computes, though nobody waits for it"},
    {"first_way", first_way, "others compute as well, and may still come"},
    {"compares_beside_two", compares_beside_two, "is ahead, and waits for rank"},
    {"one_waits_for_it", one_waits_for_it, "wait for each other and not for rank"},
    {"without_the_chain", without_the_chain, "in the operation in which the others are"},
    {"compares_all", compares_all, "has not begun operation 7 and may still come"},
    {"blames_one_of_two", blames_one_of_two, "nobody can tell which has made a call too few"},
    {"one_too_many", one_too_many, "you say rank 1, but rank 0"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "14_dead_rank", judge, find_culprit, reference::find_culprit, kWrong);
}
