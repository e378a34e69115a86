// The schedules that weft knows by name.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/base/nearest.h"
#include "weft/parallel/schedule.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

constexpr std::pair<Recompute, const char*> kRecompute[] = {
    {Recompute::never, "never"},
    {Recompute::except_last, "except_last"},
    {Recompute::always, "always"},
};

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? std::string() : "; did you mean " + near + "?";
}

// "never, except_last or always"
std::string one_of(const std::vector<std::string>& words) {
  std::string text = words[0];
  for (std::size_t i = 1; i < words.size(); ++i) {
    text += (i + 1 < words.size() ? ", " : " or ") + words[i];
  }
  return text;
}

Schedule sized(const char* name, int stages, int micro_batches, int devices) {
  WEFT_CHECK(1 <= stages && stages <= kMostStages, InvalidArgument, "schedule", name, ": got ",
             stages, " stages, expected 1 to ", kMostStages);
  WEFT_CHECK(1 <= micro_batches && micro_batches <= kMostMicroBatches, InvalidArgument, "schedule",
             name, ": got ", micro_batches, " micro-batches, expected 1 to ", kMostMicroBatches);
  // A schedule has at most four kinds of actions, before communication is added.
  WEFT_CHECK(std::int64_t{4} * stages * micro_batches <= kMostActions, InvalidArgument, "schedule",
             name, ": ", stages, " stages and ", micro_batches,
             " micro-batches could need more than ", kMostActions,
             " actions; take fewer of one of them");
  return {.name = name,
          .stages = stages,
          .micro_batches = micro_batches,
          .devices = std::vector<std::vector<Action>>(devices)};
}

// Adds B, or another `kind`, after an R if recomputation is wanted.
void add_backward(std::vector<Action>& list, Kind kind, int stage, int micro_batch,
                  int micro_batches, Recompute recompute) {
  const bool last = micro_batch + 1 == micro_batches;
  if (recompute == Recompute::always || (recompute == Recompute::except_last && !last)) {
    list.push_back({Kind::recompute, stage, micro_batch});
  }
  list.push_back({kind, stage, micro_batch});
}

// Emits `total` forwards and backwards in 1F1B's order.
template <class Forward, class Backward>
void take_turns(int total, int warm_up, Forward forward, Backward backward) {
  warm_up = std::min(warm_up, total);
  for (int k = 0; k < total + warm_up; ++k) {
    if (k < total) forward(k);
    if (k >= warm_up) backward(k - warm_up);
  }
}

// The order in which a device runs the forwards of its stages. Rounds of micro-batches go through
// one stage after the other; a round has at least as many micro-batches as there are devices, if
// there are so many. With a shorter last round, devices would wait, or even deadlock.
struct Turn {
  int chunk;  // index among the device's stages
  int micro_batch;
};
std::vector<Turn> in_rounds(int devices, int per_device, int micro_batches) {
  std::vector<Turn> order;
  int first = 0;
  for (int rounds = std::max(1, micro_batches / devices); rounds > 0; --rounds) {
    const int next = first + (micro_batches - first + rounds - 1) / rounds;
    for (int chunk = 0; chunk < per_device; ++chunk) {
      for (int m = first; m < next; ++m) order.push_back({chunk, m});
    }
    first = next;
  }
  return order;
}

Schedule interleaved(const char* name, int devices, int per_device, int micro_batches,
                     Recompute recompute) {
  Schedule schedule = sized(name, devices * per_device, micro_batches, devices);
  const std::vector<Turn> order = in_rounds(devices, per_device, micro_batches);
  const int last_chunk = per_device - 1;
  // The number of forwards before the first one of the device's last stage.
  const int fill =
      static_cast<int>(std::ranges::find(order, last_chunk, &Turn::chunk) - order.begin());
  for (int d = 0; d < devices; ++d) {
    std::vector<Action>& list = schedule.devices[d];
    const int behind = devices - d - 1;
    take_turns(
        static_cast<int>(order.size()), fill + (per_device == 1 ? behind : 2 * behind),
        [&](int k) {
          list.push_back({Kind::forward, d + order[k].chunk * devices, order[k].micro_batch});
        },
        [&](int k) {
          add_backward(list, Kind::backward, d + (last_chunk - order[k].chunk) * devices,
                       order[k].micro_batch, micro_batches, recompute);
        });
  }
  return schedule;
}

}  // namespace

const char* to_string(Recompute mode) { return kRecompute[static_cast<int>(mode)].second; }

Recompute parse_recompute(std::string_view word) {
  std::vector<std::string> known;
  for (const auto& [mode, name] : kRecompute) {
    if (word == name) return mode;
    known.push_back(name);
  }
  WEFT_THROW(InvalidArgument, "schedule", "got '", word, "' as what to recompute, expected ",
             one_of(known), did_you_mean(std::string(word), known));
}

Schedule gpipe(int stages, int micro_batches, Recompute recompute) {
  Schedule schedule = sized("gpipe", stages, micro_batches, stages);
  for (int s = 0; s < stages; ++s) {
    std::vector<Action>& list = schedule.devices[s];
    for (int m = 0; m < micro_batches; ++m) list.push_back({Kind::forward, s, m});
    for (int m = micro_batches - 1; m >= 0; --m) {
      add_backward(list, Kind::backward, s, m, micro_batches, recompute);
    }
  }
  return schedule;
}

Schedule one_f_one_b(int stages, int micro_batches, Recompute recompute) {
  return interleaved("1f1b", stages, 1, micro_batches, recompute);
}

Schedule interleaved_one_f_one_b(int devices, int stages_per_device, int micro_batches,
                                 Recompute recompute) {
  WEFT_CHECK(1 <= devices && devices <= kMostStages, InvalidArgument, "schedule",
             "interleaved: got ", devices, " devices, expected 1 to ", kMostStages);
  WEFT_CHECK(1 <= stages_per_device && stages_per_device <= kMostStages, InvalidArgument,
             "schedule", "interleaved: got ", stages_per_device,
             " stages per device, expected 1 to ", kMostStages);
  return interleaved("interleaved", devices, stages_per_device, micro_batches, recompute);
}

Schedule zero_bubble_h1(int stages, int micro_batches, Recompute recompute) {
  Schedule schedule = sized("zb-h1", stages, micro_batches, stages);
  for (int s = 0; s < stages; ++s) {
    std::vector<Action>& list = schedule.devices[s];
    take_turns(
        micro_batches, stages - s - 1, [&](int m) { list.push_back({Kind::forward, s, m}); },
        [&](int m) {
          add_backward(list, Kind::backward_input, s, m, micro_batches, recompute);
          if (m >= s) list.push_back({Kind::backward_weight, s, m - s});
        });
    for (int m = std::max(0, micro_batches - s); m < micro_batches; ++m) {
      list.push_back({Kind::backward_weight, s, m});
    }
  }
  return schedule;
}

// By name. Of those without a function, the number of devices is asked for, too.
constexpr std::pair<const char*, Schedule (*)(int, int, Recompute)> kSchedules[] = {
    {"gpipe", gpipe},
    {"1f1b", one_f_one_b},
    {"interleaved", nullptr},
    {"zb-h1", zero_bubble_h1},
};

const std::vector<std::string>& schedule_names() {
  static const auto& names = *[] {
    auto* list = new std::vector<std::string>;
    for (const auto& [name, generate] : kSchedules) list->push_back(name);
    return list;
  }();
  return names;
}

Schedule make_schedule(const std::string& name, int stages, int micro_batches, Recompute recompute,
                       int devices) {
  const auto* found = std::ranges::find(kSchedules, name, [](auto& s) { return s.first; });
  WEFT_CHECK(found != std::end(kSchedules), InvalidArgument, "schedule", "got '", name,
             "', expected ", one_of(schedule_names()), did_you_mean(name, schedule_names()));
  if (found->second == nullptr) {
    WEFT_CHECK(devices > 0 && stages % devices == 0, InvalidArgument, "schedule",
               "interleaved: got ", stages, " stages on ", devices,
               " devices, expected a number of devices that divides the stages");
    return interleaved_one_f_one_b(devices, stages / devices, micro_batches, recompute);
  }
  WEFT_CHECK(devices == 0 || devices == stages, InvalidArgument, "schedule", name, ": got ", stages,
             " stages on ", devices,
             " devices, expected one stage per device; leave the number of devices out, or take "
             "interleaved");
  return found->second(stages, micro_batches, recompute);
}

}  // namespace weft::parallel
