// The schedules whose stages go round the devices once or several times.
#include <algorithm>
#include <cstdint>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_parts.h"

namespace weft::parallel {

using Kind = Action::Kind;

void check_devices(const char* name, int devices) {
  WEFT_CHECK(1 <= devices && devices <= kMostStages, InvalidArgument, "schedule", name, ": got ",
             devices, " devices, expected 1 to ", kMostStages);
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

void add_backward(std::vector<Action>& list, Kind kind, int stage, int micro_batch,
                  int micro_batches, Recompute recompute) {
  const bool last = micro_batch + 1 == micro_batches;
  if (recompute == Recompute::always || (recompute == Recompute::except_last && !last)) {
    list.push_back({Kind::recompute, stage, micro_batch});
  }
  list.push_back({kind, stage, micro_batch});
}

namespace {

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
  check_devices("interleaved", devices);
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

}  // namespace weft::parallel
