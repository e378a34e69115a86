// Judges exercise 9, and has typical wrong solutions of it.
#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/learn/09_schedules/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/parallel/simulate.h"

namespace weft::learn {
namespace {

using parallel::Action;
using parallel::Schedule;
using Kind = Action::Kind;
using MakeSchedule = Schedule (*)(int stages, int micro_batches);

struct Three {
  MakeSchedule gpipe, one_f_one_b, zero_bubble_h1;
};

Schedule weft_s_gpipe(int p, int m) { return parallel::gpipe(p, m); }
Schedule weft_s_1f1b(int p, int m) { return parallel::one_f_one_b(p, m); }
Schedule weft_s_zb_h1(int p, int m) { return parallel::zero_bubble_h1(p, m); }

std::string percent(double share) { return detail::concat(std::lround(share * 1000) / 10.0, " %"); }

// Shows the learner's schedule beside the sentence.
[[noreturn]] void wrong_with_picture(const parallel::Timeline& timeline, const std::string& text) {
  std::cout
      << "A row is a device, two characters are a second: F0 is the forward of micro-batch 0, "
         "B0-- a backward of 2 s, and a point is idle.\n"
      << draw(timeline);
  throw Wrong(text);
}

constexpr std::string_view kZbH1 = "ZB-H1";

// The schedule is one, it runs, it wastes no more time than weft's, and keeps no more activations.
void judge_one(std::string_view name, MakeSchedule f, MakeSchedule weft_s, int p, int m) {
  begin_case(detail::concat(name, ", ", p, p == 1 ? " stage" : " stages", " and ", m,
                            m == 1 ? " micro-batch" : " micro-batches"));
  Schedule schedule;
  within_patience("is there a loop that does not end?", [&] { schedule = f(p, m); });
  require(schedule.stages == p && schedule.micro_batches == m &&
              schedule.devices.size() == static_cast<std::size_t>(p),
          "the schedule is for ", schedule.stages, " stages, ", schedule.micro_batches,
          " micro-batches and ", schedule.devices.size(),
          " devices: return empty_schedule(name, "
          "stages, micro_batches) with its lists filled");
  for (int s = 0; s < p; ++s) {
    for (const Action& action : schedule.devices[s]) {
      require(action.stage == s, "device ", s, " has ", to_string(action),
              ": each stage is on the device of its number, and an action is {kind, stage, "
              "micro-batch}");
      require(name == kZbH1 || action.kind == Kind::forward || action.kind == Kind::backward,
              "device ", s, " has ", to_string(action), ", and ", name, " has only F and B: ",
              action.kind == Kind::backward_input || action.kind == Kind::backward_weight
                  ? "I and W in place of B make another schedule of it"
                  : "nothing is recomputed or sent here");
    }
  }
  parallel::ScheduleCheck checked;
  try {
    checked = check(schedule);
  } catch (const Error& error) {
    throw Wrong(detail::concat("weft's validator refuses it: ", text_of(error)));
  }
  // An F, an I and a W of 1 s each; B is 2 s.
  const parallel::StageCosts costs = parallel::equal_costs(p, 1, 1, 1);
  const parallel::Timeline timeline = simulate(schedule, costs);
  const Schedule right = weft_s(p, m);
  const parallel::Timeline best = simulate(right, costs);
  const std::vector<int> peaks = check(right).peak_activations;
  for (int s = 0; s < p; ++s) {
    if (checked.peak_activations[s] <= peaks[s]) continue;
    wrong_with_picture(
        timeline,
        detail::concat("stage ", s, " keeps the activations of ", checked.peak_activations[s],
                       " micro-batches at once, ", name, " of ", peaks[s],
                       ": a backward that could run comes after too many forwards, "
                       "or a W too late"));
  }
  if (timeline.end > best.end) {
    wrong_with_picture(
        timeline,
        detail::concat("it takes ", timeline.end, " s, and ", name, " ", best.end,
                       " s (F, I and W 1 s each): the devices idle ", percent(timeline.bubble()),
                       " of the time in place of ", percent(best.bubble()),
                       ". Look for the device that has nothing to do, and for what it "
                       "waits"));
  }
}

void all_forwards_first(const Schedule& schedule) {
  for (const std::vector<Action>& list : schedule.devices) {
    const auto first = std::ranges::find_if(
        list, [](const Action& action) { return action.kind != Kind::forward; });
    for (auto later = first; later != list.end(); ++later) {
      require(later->kind != Kind::forward, "stage ", later->stage, " runs ", to_string(*later),
              " after ", to_string(*first),
              ": GPipe runs all forwards of a stage before its first backward");
    }
  }
}

std::string judge(Three three) {
  constexpr std::array<std::pair<int, int>, 9> kSizes{
      {{2, 3}, {4, 8}, {1, 1}, {1, 4}, {2, 2}, {3, 5}, {4, 4}, {4, 2}, {5, 16}}};
  for (const auto& [p, m] : kSizes) {
    judge_one("GPipe", three.gpipe, weft_s_gpipe, p, m);
    all_forwards_first(three.gpipe(p, m));
  }
  for (const auto& [p, m] : kSizes) judge_one("1F1B", three.one_f_one_b, weft_s_1f1b, p, m);
  for (const auto& [p, m] : kSizes) judge_one(kZbH1, three.zero_bubble_h1, weft_s_zb_h1, p, m);
  const auto idle = [](MakeSchedule f) {
    return percent(simulate(f(4, 8), parallel::equal_costs(4, 1, 1, 1)).bubble());
  };
  const auto peak = [](MakeSchedule f) {
    return std::ranges::max(check(f(4, 8)).peak_activations);
  };
  return detail::concat("all three. With 4 stages and 8 micro-batches the devices idle ",
                        idle(three.gpipe), ", ", idle(three.one_f_one_b), " and ",
                        idle(three.zero_bubble_h1), " of the time, and a stage keeps the ",
                        "activations of up to ", peak(three.gpipe), ", ", peak(three.one_f_one_b),
                        " and ", peak(three.zero_bubble_h1), " micro-batches at once");
}

// --- Wrong ones ----------------------------------------------------------------------------------

Schedule sized(const char* name, int p, int m) {
  return {name, p, m, std::vector<std::vector<Action>>(p)};
}

// The last micro-batch never goes back.
Schedule one_short(int p, int m) {
  Schedule schedule = weft_s_gpipe(p, m);
  for (std::vector<Action>& list : schedule.devices) list.pop_back();
  return schedule;
}

// The stages are counted from the wrong end.
Schedule wrong_stage(int p, int m) {
  Schedule schedule = weft_s_gpipe(p, m);
  std::ranges::reverse(schedule.devices);
  return schedule;
}

// One micro-batch after the other.
Schedule one_by_one(int p, int m) {
  Schedule schedule = sized("gpipe", p, m);
  for (int s = 0; s < p; ++s) {
    for (int i = 0; i < m; ++i) {
      schedule.devices[s].push_back({Kind::forward, s, i});
      schedule.devices[s].push_back({Kind::backward, s, i});
    }
  }
  return schedule;
}

Schedule turns(int p, int m, int more, bool limited) {
  Schedule schedule = sized("1f1b", p, m);
  for (int s = 0; s < p; ++s) {
    std::vector<Action>& list = schedule.devices[s];
    const int warm_up = limited ? std::min(p - s - 1 + more, m) : p - s - 1 + more;
    int forward = 0;
    while (forward < warm_up) list.push_back({Kind::forward, s, forward++});
    for (int i = 0; i < m; ++i) {
      if (forward < m) list.push_back({Kind::forward, s, forward++});
      list.push_back({Kind::backward, s, i});
    }
  }
  return schedule;
}
// A forward too many to warm up.
Schedule warm_by_one_more(int p, int m) { return turns(p, m, 1, true); }
// Forgets that there may be fewer micro-batches than stages.
Schedule warm_beyond(int p, int m) { return turns(p, m, 0, false); }

// The backward of a micro-batch before its forward.
Schedule backward_first(int p, int m) {
  Schedule schedule = weft_s_1f1b(p, m);
  for (std::vector<Action>& list : schedule.devices) {
    const auto back = std::ranges::find(list, Kind::backward, &Action::kind);
    std::rotate(list.begin(), back, back + 1);
  }
  return schedule;
}

// The stages wait for each other: the first for a backward that needs the last one's second
// forward.
Schedule deadlocks(int p, int m) {
  Schedule schedule = weft_s_1f1b(p, m);
  if (p > 1 && m > 1) {
    std::vector<Action>& list = schedule.devices[0];
    const auto back = std::ranges::find(list, Kind::backward, &Action::kind);
    std::rotate(list.begin() + 1, back, back + 1);
    std::vector<Action>& last = schedule.devices[p - 1];
    const auto second = std::ranges::find(last, Action{Kind::forward, p - 1, 1});
    std::rotate(last.begin(), second, second + 1);
  }
  return schedule;
}

Schedule w_at(int p, int m, int (*delay)(int stage, int micro_batches)) {
  Schedule schedule = sized("zb-h1", p, m);
  for (int s = 0; s < p; ++s) {
    std::vector<Action>& list = schedule.devices[s];
    const int warm_up = std::min(p - s - 1, m), late = delay(s, m);
    int forward = 0;
    while (forward < warm_up) list.push_back({Kind::forward, s, forward++});
    for (int i = 0; i < m; ++i) {
      if (forward < m) list.push_back({Kind::forward, s, forward++});
      list.push_back({Kind::backward_input, s, i});
      if (i >= late) list.push_back({Kind::backward_weight, s, i - late});
    }
    for (int i = std::max(0, m - late); i < m; ++i) {
      list.push_back({Kind::backward_weight, s, i});
    }
  }
  return schedule;
}
// W at once after I: a backward in two pieces.
Schedule w_at_once(int p, int m) {
  return w_at(p, m, [](int, int) { return 0; });
}
// All W at the end.
Schedule w_at_the_end(int p, int m) {
  return w_at(p, m, [](int, int micro_batches) { return micro_batches; });
}
// I, and never W.
Schedule no_w(int p, int m) {
  Schedule schedule = weft_s_zb_h1(p, m);
  for (std::vector<Action>& list : schedule.devices) {
    std::erase_if(list, [](const Action& action) { return action.kind == Kind::backward_weight; });
  }
  return schedule;
}

// A backward in two pieces is another schedule.
Schedule in_pieces(int p, int m) {
  const Schedule whole = weft_s_1f1b(p, m);
  Schedule schedule = sized("1f1b", p, m);
  for (int s = 0; s < p; ++s) {
    for (const Action& action : whole.devices[s]) {
      const bool back = action.kind == Kind::backward;
      const Kind kind = back ? Kind::backward_input : action.kind;
      schedule.devices[s].push_back({kind, s, action.micro_batch});
      if (back) schedule.devices[s].push_back({Kind::backward_weight, s, action.micro_batch});
    }
  }
  return schedule;
}
// Keeps inputs alone.
Schedule recomputes(int p, int m) { return parallel::gpipe(p, m, parallel::Recompute::always); }

const std::vector<WrongOne<Three>> kWrong = {
    {"one_short", {one_short, weft_s_1f1b, weft_s_zb_h1}, "weft's validator refuses it: "},
    {"wrong_stage", {wrong_stage, weft_s_1f1b, weft_s_zb_h1}, "device 0 has F1.0"},
    {"one_by_one",
     {one_by_one, weft_s_1f1b, weft_s_zb_h1},
     "it takes 18 s, and GPipe 12 s (F, I and W 1 s each)"},
    {"1f1b_as_gpipe",
     {weft_s_1f1b, weft_s_1f1b, weft_s_zb_h1},
     "GPipe runs all forwards of a stage before its first backward"},
    {"gpipe_as_1f1b",
     {weft_s_gpipe, weft_s_gpipe, weft_s_zb_h1},
     "stage 0 keeps the activations of 3 micro-batches at once, 1F1B of 2"},
    {"warm_by_one_more",
     {weft_s_gpipe, warm_by_one_more, weft_s_zb_h1},
     "keeps the activations of 3 micro-batches at once, 1F1B of 2"},
    {"warm_beyond", {weft_s_gpipe, warm_beyond, weft_s_zb_h1}, "weft's validator refuses it: "},
    {"backward_first",
     {weft_s_gpipe, backward_first, weft_s_zb_h1},
     "weft's validator refuses it: "},
    {"deadlocks", {weft_s_gpipe, deadlocks, weft_s_zb_h1}, "weft's validator refuses it: "},
    {"w_at_once", {weft_s_gpipe, weft_s_1f1b, w_at_once}, "s, and ZB-H1 "},
    {"w_at_the_end", {weft_s_gpipe, weft_s_1f1b, w_at_the_end}, "or a W too late"},
    {"no_w", {weft_s_gpipe, weft_s_1f1b, no_w}, "weft's validator refuses it: "},
    {"in_pieces",
     {weft_s_gpipe, in_pieces, weft_s_zb_h1},
     "device 0 has I0.0, and 1F1B has only F and B: I and W in place of B"},
    {"recomputes",
     {recomputes, weft_s_1f1b, weft_s_zb_h1},
     "device 0 has R0.2, and GPipe has only F and B: nothing is recomputed"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "09_schedules", judge, Three{gpipe, one_f_one_b, zero_bubble_h1},
                 Three{weft_s_gpipe, weft_s_1f1b, weft_s_zb_h1}, kWrong);
}
