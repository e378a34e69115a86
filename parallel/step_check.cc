#include "weft/parallel/step_check.h"

#include <algorithm>
#include <array>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::parallel {
namespace {

using Kind = StepAction::Kind;
using Phase = StepAction::Phase;

constexpr std::array<const char*, kMessageGroups> kGroupNames = {"gathers", "sums of gradients",
                                                                 "sums of what layers make"};

struct Place {
  int rank = 0;
  int position = -1;  // -1: nowhere
  bool exists() const { return position >= 0; }
};

class Checker {
 public:
  Checker(const StepSchedule& step, const TextPlaces& texts) : step_(step), texts_(texts) {}

  StepCheck check() {
    check_sizes();
    const auto ranks = static_cast<int>(step_.ranks.size());
    for (int r = 0; r < ranks; ++r) check_rank(r);
    for (int r = 1; r < ranks; ++r) check_same_messages(r);
    run();
    return std::move(result_);
  }

 private:
  const StepAction& at(Place p) const { return step_.ranks[p.rank][p.position]; }

  std::string text(Place p) const {
    std::string text =
        detail::concat(to_string(at(p)), " (rank ", p.rank, ", action ", p.position + 1);
    if (!texts_.empty()) {
      const auto [line, column] = texts_[p.rank][p.position];
      text += detail::concat("; line ", line, ", column ", column);
    }
    return text + ")";
  }

  void check_sizes() const {
    WEFT_CHECK(1 <= step_.units && step_.units <= kMostStages, InvalidArgument, "schedule", "got ",
               step_.units, " units, expected 1 to ", kMostStages);
    const std::size_t ranks = step_.ranks.size();
    WEFT_CHECK(1 <= ranks && ranks <= kMostStages, InvalidArgument, "schedule", "got ", ranks,
               " ranks, expected 1 to ", kMostStages);
    std::size_t actions = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      actions += step_.ranks[r].size();
      for (const StepAction& a : step_.ranks[r]) {
        WEFT_CHECK(0 <= a.unit && a.unit < step_.units, InvalidArgument, "schedule", to_string(a),
                   " of rank ", r, ": the units are 0 to ", step_.units - 1);
        WEFT_CHECK(is_possible(a), InvalidArgument, "schedule", to_string(a), " of rank ", r,
                   a.phase == Phase::run ? ": a message is started, >, or waited for, <"
                                         : ": this is no message; leave > or < out");
      }
    }
    WEFT_CHECK(actions <= std::size_t{kMostActions}, InvalidArgument, "schedule", "got ", actions,
               " actions, at most ", kMostActions, " are read; take fewer units or ranks");
  }

  // The state of a unit at a point of a rank's list.
  struct Unit {
    enum class Parameters { whole, coming, parts } parameters = Parameters::whole;
    Place changed;            // the action that last changed `parameters`
    Place freed;              // an S of it, anywhere in the list
    int open = 0;             // forwards without a backward yet
    Place forward, backward;  // the last ones
    Place reduced;            // the start of its G or A
    bool gradients_whole = false;
    std::array<Place, 7> under_way{};  // messages by kind, started and not waited for
    std::array<int, 7> number{};       // of the last message
  };

  void check_rank(int r) {
    const std::vector<StepAction>& list = step_.ranks[r];
    std::vector<Unit> units(static_cast<std::size_t>(step_.units));
    for (int i = 0; i < std::ssize(list); ++i) {
      if (list[i].kind == Kind::reshard) units[list[i].unit].freed = {r, i};
    }
    for (Unit& unit : units) {
      if (unit.freed.exists()) unit.parameters = Unit::Parameters::parts;
    }
    std::vector<std::pair<Place, int>> tape;  // forwards without a backward, and their numbers
    std::array<int, kMessageGroups> sent{};
    int visits = 0, whole = 0, peak_whole = 0, gradients = 0, peak_gradients = 0;
    Place last, optimizer;  // the last F or B; O
    auto& turns = turns_.emplace_back();
    for (int i = 0; i < std::ssize(list); ++i) {
      const Place here{r, i};
      const StepAction& a = list[i];
      Unit& unit = units[a.unit];
      const auto kind = static_cast<std::size_t>(a.kind);
      StepCheck::Turn turn{a, r, -1, -1};
      if (a.phase == Phase::start) {
        WEFT_CHECK(!unit.under_way[kind].exists(), InvalidArgument, "schedule", text(here),
                   " stands twice, first ", text(unit.under_way[kind]),
                   ", which is not waited for between them; leave one out");
        check_start(here, unit, last, optimizer);
        if (a.kind == Kind::unshard) {
          peak_whole = std::max(peak_whole, whole += unit.freed.exists());
        }
        unit.under_way[kind] = here;
        turn.message = unit.number[kind] = sent[group_of(a.kind)]++;
        started_[group_of(a.kind)].resize(step_.ranks.size());
        started_[group_of(a.kind)][r].push_back(here);
      } else if (a.phase == Phase::wait) {
        const Place start = std::exchange(unit.under_way[kind], {});
        WEFT_CHECK(start.exists(), InvalidArgument, "schedule", text(here),
                   " waits for no message; put ",
                   to_string(StepAction{a.kind, a.unit, Phase::start}), " before it");
        if (a.kind == Kind::unshard) unit.parameters = Unit::Parameters::whole, unit.changed = here;
        if (a.kind == Kind::reduce) gradients -= std::exchange(unit.gradients_whole, false);
        turn.message = unit.number[kind];
      } else {
        WEFT_CHECK(!optimizer.exists(), InvalidArgument, "schedule", text(here), " comes behind ",
                   text(optimizer), ", which ends the step; put it before");
        if (a.kind != Kind::reshard && last.exists()) check_activations(here, last, units);
        switch (a.kind) {
          case Kind::forward:
            check_whole(here, unit);
            ++unit.open;
            turn.visit = visits;
            tape.emplace_back(here, visits++);
            last = unit.forward = here;
            break;
          case Kind::backward:
            check_whole(here, unit);
            check_reverse(here, tape);
            WEFT_CHECK(!unit.reduced.exists(), InvalidArgument, "schedule", text(here),
                       " adds to gradients that ", text(unit.reduced),
                       " has summed; put the sum behind the last backward of the unit");
            turn.visit = tape.back().second;
            tape.pop_back();
            --unit.open;
            gradients += !std::exchange(unit.gradients_whole, true);
            peak_gradients = std::max(peak_gradients, gradients);
            last = unit.backward = here;
            break;
          case Kind::reshard:
            WEFT_CHECK(unit.parameters == Unit::Parameters::whole, InvalidArgument, "schedule",
                       text(here), " frees parameters that are not whole", since(unit),
                       "; leave it out, or gather them before");
            unit.parameters = Unit::Parameters::parts;
            unit.changed = here;
            --whole;
            break;
          default:  // the optimiser's step
            optimizer = here;
            check_waited(here, units);
            gradients = 0;
        }
      }
      turns.push_back(turn);
    }
    check_end(r, units, tape);
    if (r > 0) {
      WEFT_CHECK(optimizer.exists() == optimizer_.exists(), InvalidArgument, "schedule", "rank ",
                 optimizer.exists() ? 0 : r, " has no O, while there is ",
                 text(optimizer.exists() ? optimizer : optimizer_),
                 "; the ranks' weights would differ");
      WEFT_CHECK(visits == result_.visits, InvalidArgument, "schedule", "rank ", r, " has ", visits,
                 " F, and rank 0 has ", result_.visits, "; give all ranks the same");
    }
    optimizer_ = optimizer;
    result_.visits = visits;
    result_.peak_whole.push_back(peak_whole);
    result_.peak_gradients.push_back(peak_gradients);
  }

  std::string since(const Unit& unit) const {
    if (unit.changed.exists()) return ", since " + text(unit.changed);
    return unit.freed.exists() ? ", since " + text(unit.freed) + " of the step before" : "";
  }

  void check_whole(Place here, const Unit& unit) const {
    const int u = at(here).unit;
    const Place gather = unit.under_way[static_cast<std::size_t>(Kind::unshard)];
    WEFT_CHECK(!gather.exists(), InvalidArgument, "schedule", text(here), " does not wait for ",
               text(gather), "; put <U", u, " between them");
    WEFT_CHECK(unit.parameters == Unit::Parameters::whole, InvalidArgument, "schedule", text(here),
               " uses parameters that are not gathered", since(unit), "; put >U", u, " and <U", u,
               " before it");
  }

  void check_reverse(Place here, const std::vector<std::pair<Place, int>>& tape) const {
    WEFT_CHECK(!tape.empty(), InvalidArgument, "schedule", text(here), " comes before its F",
               at(here).unit, "; put it behind");
    WEFT_CHECK(at(tape.back().first).unit == at(here).unit, InvalidArgument, "schedule", text(here),
               " comes before the backward of ", text(tape.back().first),
               ", the last forward without one; backwards have the reverse order of forwards");
  }

  // If the last F or B has started a sum, the next action needs it, so it must have been waited
  // for.
  void check_activations(Place here, Place last, const std::vector<Unit>& units) const {
    const StepAction& before = at(last);
    const Place sum = units[before.unit].under_way[static_cast<std::size_t>(before.kind)];
    WEFT_CHECK(!sum.exists(), InvalidArgument, "schedule", text(here), " does not wait for ",
               text(sum), "; put ", to_string(StepAction{before.kind, before.unit, Phase::wait}),
               " between them");
  }

  void check_start(Place here, Unit& unit, Place last, Place optimizer) const {
    const StepAction& a = at(here);
    if (a.kind == Kind::forward || a.kind == Kind::backward) {
      const StepAction source{a.kind, a.unit};
      WEFT_CHECK(last.exists() && at(last) == source, InvalidArgument, "schedule", text(here),
                 " sums what ", to_string(source), " has made",
                 last.exists() ? ", but stands behind " + text(last) : "", "; put it behind ",
                 to_string(source));
      return;
    }
    if (a.kind == Kind::unshard) {
      const bool stale = optimizer.exists() && !unit.freed.exists() &&
                         (!unit.changed.exists() || unit.changed.position < optimizer.position);
      WEFT_CHECK(unit.parameters == Unit::Parameters::parts || stale, InvalidArgument, "schedule",
                 text(here), " gathers parameters that are whole", since(unit),
                 unit.freed.exists() ? "; leave it out, or put S before it"
                                     : ", and that no S frees; leave it out, or put it behind O");
      unit.parameters = Unit::Parameters::coming;
      unit.changed = here;
      return;
    }
    WEFT_CHECK(!optimizer.exists(), InvalidArgument, "schedule", text(here), " comes behind ",
               text(optimizer), ", which needs the sum; put it before");
    WEFT_CHECK(unit.backward.exists(), InvalidArgument, "schedule", text(here), " comes before B",
               a.unit, ", which makes the gradients; put it behind");
    WEFT_CHECK(unit.open == 0, InvalidArgument, "schedule", text(here),
               " comes before the backward of ", text(unit.forward),
               ", which adds to the gradients; put it behind");
    WEFT_CHECK(!unit.reduced.exists(), InvalidArgument, "schedule", text(here),
               " sums gradients that ", text(unit.reduced), " has summed; leave one out");
    unit.reduced = here;
  }

  // O needs all sums of gradients.
  void check_waited(Place here, const std::vector<Unit>& units) const {
    for (const Unit& unit : units) {
      for (const Kind kind : {Kind::reduce, Kind::all_reduce}) {
        const Place sum = unit.under_way[static_cast<std::size_t>(kind)];
        WEFT_CHECK(!sum.exists(), InvalidArgument, "schedule", text(here), " does not wait for ",
                   text(sum), "; put ",
                   sum.exists() ? to_string(StepAction{kind, at(sum).unit, Phase::wait}) : "",
                   " before it");
      }
    }
  }

  void check_end(int r, const std::vector<Unit>& units,
                 const std::vector<std::pair<Place, int>>& tape) const {
    WEFT_CHECK(tape.empty(), InvalidArgument, "schedule", text(tape.back().first),
               " has no backward; add B", at(tape.back().first).unit, " on rank ", r);
    const auto any = std::ranges::find_if(units, [](const Unit& u) { return u.reduced.exists(); });
    for (int u = 0; u < step_.units; ++u) {
      const Unit& unit = units[u];
      WEFT_CHECK(unit.forward.exists(), InvalidArgument, "schedule", "F", u, " is missing on rank ",
                 r, "; add it, or say ", u, " units if it is one too many");
      WEFT_CHECK(any == units.end() || unit.reduced.exists(), InvalidArgument, "schedule",
                 "the gradients of ", text(unit.backward), " are never summed, while there is ",
                 text(any->reduced), "; put >", to_string(at(any->reduced)).substr(1, 1),
                 at(unit.backward).unit, " behind it");
      for (const Place start : unit.under_way) {
        WEFT_CHECK(!start.exists(), InvalidArgument, "schedule", text(start),
                   " is never waited for; put <", to_string(at(start)).substr(1), " behind it");
      }
      WEFT_CHECK(!unit.freed.exists() || unit.parameters == Unit::Parameters::parts,
                 InvalidArgument, "schedule", "unit ", u, " is whole at the end", since(unit),
                 ", though ", text(unit.freed), " frees it in the step; put S", u,
                 " behind its last use");
    }
  }

  // Rank r must send the same messages as rank 0.
  void check_same_messages(int r) const {
    for (int group = 0; group < kMessageGroups; ++group) {
      if (started_[group].empty()) continue;
      const std::vector<Place>&first = started_[group][0], &own = started_[group][r];
      for (std::size_t i = 0; i < std::max(first.size(), own.size()); ++i) {
        WEFT_CHECK(i < own.size() && i < first.size(), InvalidArgument, "schedule", "rank ",
                   i < own.size() ? 0 : r, " has only ", i, ' ', kGroupNames[group],
                   ": the other side of ", text(i < own.size() ? own[i] : first[i]),
                   " is missing; all ranks send the same");
        WEFT_CHECK(at(own[i]) == at(first[i]), InvalidArgument, "schedule", "of the ",
                   kGroupNames[group], ", number ", i + 1, " is ", text(first[i]), " and ",
                   text(own[i]), "; give all ranks the same order, else they send each other's");
      }
    }
  }

  // Runs all lists as far as possible. A rank stops at a wait whose message another one has not
  // started.
  void run() {
    const auto ranks = static_cast<int>(turns_.size());
    std::array<int, kMessageGroups> offset{};  // the message's number among all
    for (int group = 0; group < kMessageGroups; ++group) {
      offset[group] = result_.messages;
      if (!started_[group].empty()) {
        result_.messages += static_cast<int>(started_[group][0].size());
      }
    }
    std::vector<int> missing(static_cast<std::size_t>(result_.messages), ranks);
    std::vector<std::vector<int>> waiting(missing.size());
    std::vector<int> next(static_cast<std::size_t>(ranks), 0), ready;
    for (int r = ranks - 1; r >= 0; --r) ready.push_back(r);
    std::size_t all = 0;
    for (const auto& turns : turns_) all += turns.size();
    while (!ready.empty()) {
      const int r = ready.back();
      ready.pop_back();
      for (; next[r] < std::ssize(turns_[r]); ++next[r]) {
        StepCheck::Turn turn = turns_[r][next[r]];
        if (turn.message >= 0) {
          turn.message += offset[group_of(turn.action.kind)];
          if (turn.action.phase == Phase::wait && missing[turn.message] > 0) {
            waiting[turn.message].push_back(r);
            break;
          }
          if (turn.action.phase == Phase::start && --missing[turn.message] == 0) {
            for (const int other : waiting[turn.message]) ready.push_back(other);
          }
        }
        result_.order.push_back(turn);
      }
    }
    if (result_.order.size() < all) throw_deadlock(next);
  }

  // Each rank that is not done waits for a message that another rank has not started, and that rank
  // waits, too. So following these waits leads into a cycle.
  [[noreturn]] void throw_deadlock(const std::vector<int>& next) const {
    // The start that rank r waits for, on a rank that has not come to it.
    const auto needed = [&](int r) {
      const StepCheck::Turn& turn = turns_[r][next[r]];
      for (const std::vector<Place>& own : started_[group_of(turn.action.kind)]) {
        if (own[turn.message].position >= next[own[turn.message].rank]) return own[turn.message];
      }
      return Place{};
    };
    int rank = 0;
    while (next[rank] == std::ssize(turns_[rank])) ++rank;
    std::vector<bool> seen(next.size());
    while (!seen[rank]) {
      seen[rank] = true;
      rank = needed(rank).rank;
    }
    constexpr int kMostNamed = 8;
    std::string circle;
    const int first = rank;
    int length = 0;
    do {
      const Place waits{rank, next[rank]}, need = needed(rank);
      if (length++ < kMostNamed) {
        circle += text(waits) + " waits for " + text(need) + "; before that ";
      }
      rank = need.rank;
    } while (rank != first);
    WEFT_THROW(InvalidArgument, "schedule", "deadlock: ", circle, "stands ",
               text(Place{first, next[first]}),
               "; on one of these ranks put what is waited for before what waits");
  }

  const StepSchedule& step_;
  const TextPlaces& texts_;
  std::vector<std::vector<StepCheck::Turn>> turns_;                      // by rank
  std::array<std::vector<std::vector<Place>>, kMessageGroups> started_;  // by rank
  Place optimizer_;                                                      // of the rank before
  StepCheck result_;
};

}  // namespace

StepCheck check(const StepSchedule& step, const TextPlaces& places) {
  return Checker(step, places).check();
}

StepCheck check(const StepSchedule& step) { return check(step, {}); }

}  // namespace weft::parallel
