// The schedules that weft knows by name.
#include <algorithm>
#include <cstdint>
#include <set>
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

Schedule sized(const char* name, int stages, int micro_batches, int devices) {
  WEFT_CHECK(1 <= stages && stages <= kMostStages, InvalidArgument, "schedule", name, ": got ",
             stages, " stages, expected 1 to ", kMostStages);
  WEFT_CHECK(1 <= micro_batches && micro_batches <= kMostMicroBatches, InvalidArgument, "schedule",
             name, ": got ", micro_batches, " micro-batches, expected 1 to ", kMostMicroBatches);
  // Four kinds of actions at most, before any communication.
  WEFT_CHECK(std::int64_t{4} * stages * micro_batches <= kMostActions, InvalidArgument, "schedule",
             name, ": ", stages, " stages and ", micro_batches,
             " micro-batches could need more than ", kMostActions,
             " actions; take fewer of one of them");
  return {.name = name,
          .stages = stages,
          .micro_batches = micro_batches,
          .devices = std::vector<std::vector<Action>>(devices)};
}

// B, or whatever `kind` says, behind R where that is asked for.
void add_backward(std::vector<Action>& list, Kind kind, int stage, int micro_batch,
                  int micro_batches, Recompute recompute) {
  const bool last = micro_batch + 1 == micro_batches;
  if (recompute == Recompute::always || (recompute == Recompute::except_last && !last)) {
    list.push_back({Kind::recompute, stage, micro_batch});
  }
  list.push_back({kind, stage, micro_batch});
}

// 1F1B's order of `total` forwards and backwards.
template <class Forward, class Backward>
void take_turns(int total, int warm_up, Forward forward, Backward backward) {
  warm_up = std::min(warm_up, total);
  for (int k = 0; k < total + warm_up; ++k) {
    if (k < total) forward(k);
    if (k >= warm_up) backward(k - warm_up);
  }
}

// In which order a device takes the forwards of its stages: rounds of at least as many
// micro-batches as there are devices, if there are so many, go through one stage after the other. A
// shorter last round would leave devices waiting, or all of them for each other.
struct Turn {
  int chunk;  // the device's so many-th stage
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
  // The forwards that come before the first one of the device's last stage.
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
  WEFT_THROW(InvalidArgument, "schedule", "got '", word,
             "' as what to recompute, expected never, except_last or always",
             did_you_mean(std::string(word), known));
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

const std::vector<std::string>& schedule_names() {
  static const auto& names = *new std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1"};
  return names;
}

Schedule make_schedule(const std::string& name, int stages, int micro_batches, Recompute recompute,
                       int devices) {
  if (name == "interleaved") {
    WEFT_CHECK(devices > 0 && stages % devices == 0, InvalidArgument, "schedule",
               "interleaved: got ", stages, " stages on ", devices,
               " devices, expected a number of devices that divides the stages");
    return interleaved_one_f_one_b(devices, stages / devices, micro_batches, recompute);
  }
  const auto one_per_device = [&](auto* generate) {
    WEFT_CHECK(devices == 0 || devices == stages, InvalidArgument, "schedule", name, ": got ",
               stages, " stages on ", devices,
               " devices, expected one stage per device; leave the number of devices out, or take "
               "interleaved");
    return generate(stages, micro_batches, recompute);
  };
  if (name == "gpipe") return one_per_device(gpipe);
  if (name == "1f1b") return one_per_device(one_f_one_b);
  if (name == "zb-h1") return one_per_device(zero_bubble_h1);
  WEFT_THROW(InvalidArgument, "schedule", "got '", name,
             "', expected gpipe, 1f1b, interleaved or zb-h1", did_you_mean(name, schedule_names()));
}

Schedule with_communication(const Schedule& schedule) {
  const std::vector<int> device_of_stage = check(schedule).device_of_stage;
  Schedule sending = schedule;
  for (std::vector<Action>& list : sending.devices) {
    std::vector<Action> out;
    std::set<std::pair<int, int>> received;  // gradients, before R
    const auto add_if_remote = [&](Action action) {
      const int other = counterpart(action).stage;
      if (other < 0 || other >= schedule.stages) return;
      if (device_of_stage[other] != device_of_stage[action.stage]) out.push_back(action);
    };
    for (const auto& [kind, stage, m] : list) {
      switch (kind) {
        case Kind::forward: add_if_remote({Kind::receive_activation, stage, m}); break;
        case Kind::recompute:
        case Kind::backward:
        case Kind::backward_input:
          if (received.emplace(stage, m).second) {
            add_if_remote({Kind::receive_gradient, stage, m});
          }
          break;
        case Kind::backward_weight: break;
        default:
          WEFT_THROW(InvalidArgument, "schedule", schedule.name,
                     " sends and receives already: ", to_string(Action{kind, stage, m}),
                     "; take it as it is");
      }
      out.push_back({kind, stage, m});
      if (kind == Kind::forward) add_if_remote({Kind::send_activation, stage, m});
      if (kind == Kind::backward || kind == Kind::backward_input) {
        add_if_remote({Kind::send_gradient, stage, m});
      }
    }
    list = std::move(out);
  }
  return sending;
}

}  // namespace weft::parallel
