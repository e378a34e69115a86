// The schedules whose devices have two stages each, in a V: one stage after the other down the
// devices and up again. So the last device has two neighbouring stages, and the first device the
// first and the last stage.
#include <algorithm>
#include <initializer_list>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_parts.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

enum class Leg { down, up, either };

// An action of the device's stage on that leg, for the stage's next micro-batch.
struct Turn {
  Kind kind;
  Leg leg;
};
constexpr Turn kF0{Kind::forward, Leg::down}, kF1{Kind::forward, Leg::up};
constexpr Turn kB0{Kind::backward, Leg::down}, kB1{Kind::backward, Leg::up};
constexpr Turn kI0{Kind::backward_input, Leg::down}, kI1{Kind::backward_input, Leg::up};
constexpr Turn kW0{Kind::backward_weight, Leg::down}, kW1{Kind::backward_weight, Leg::up};
constexpr Turn kW{Kind::backward_weight, Leg::either};  // that of the earliest I

Schedule in_a_v(const char* name, int devices, int micro_batches) {
  check_devices(name, devices);
  return sized(name, 2 * devices, micro_batches, devices);
}

// Fills the list of one device.
class Filler {
 public:
  Filler(Schedule& schedule, int device, Recompute recompute)
      : schedule_(schedule), device_(device), recompute_(recompute) {}

  // Adds these actions, all together `times` times. Those of micro-batches past the last one are
  // left out.
  void repeat(int times, std::initializer_list<Turn> turns) {
    for (; times > 0; --times) {
      for (const Turn& turn : turns) add(turn);
    }
  }

 private:
  void add(const Turn& turn) {
    const auto [kind, leg] = turn;
    std::vector<Action>& list = schedule_.devices[device_];
    const int stage = leg == Leg::up ? schedule_.stages - 1 - device_ : device_;
    if (kind == Kind::backward_weight) {
      const auto first = std::ranges::find_if(
          waiting_, [&](const Action& a) { return leg == Leg::either || a.stage == stage; });
      if (first == waiting_.end()) return;
      list.push_back(*first);
      waiting_.erase(first);
      return;
    }
    const bool forward = kind == Kind::forward;
    const int m = (forward ? forwards_ : backwards_)[leg == Leg::up]++;
    if (m >= schedule_.micro_batches) return;
    if (forward) {
      list.push_back({kind, stage, m});
    } else {
      add_backward(list, kind, stage, m, schedule_.micro_batches, recompute_);
    }
    if (kind == Kind::backward_input) waiting_.push_back({Kind::backward_weight, stage, m});
  }

  Schedule& schedule_;
  const int device_;
  const Recompute recompute_;
  int forwards_[2] = {}, backwards_[2] = {};  // how many there are, by leg
  std::vector<Action> waiting_;               // the W of each I that has none yet
};

}  // namespace

Schedule zero_bubble_v(int devices, int micro_batches, Recompute recompute) {
  Schedule schedule = in_a_v("zb-v", devices, micro_batches);
  // As many micro-batches as are needed to fill the devices.
  const int filling = std::max(micro_batches, 2 * devices - 1);
  for (int d = 0; d < devices; ++d) {
    const int rest = devices - d;  // the devices from this one on
    Filler list(schedule, d, recompute);
    list.repeat(2 * rest - 1, {kF0});
    list.repeat(d, {kF1, kF0});
    list.repeat(rest, {kF1, kI1, kW1});
    list.repeat(filling - devices, {kF0, kI0, kW0, kF1, kI1, kW1});
    list.repeat(d, {kI0, kI1});
    list.repeat(rest, {kI0, kW0});
    list.repeat(d, {kW1});
    list.repeat(d, {kW0});
  }
  return schedule;
}

Schedule dual_pipe_v(int devices, int micro_batches, Recompute recompute) {
  Schedule schedule = in_a_v("dualpipev", devices, micro_batches);
  WEFT_CHECK(micro_batches >= schedule.stages, InvalidArgument, "schedule", "dualpipev: got ",
             micro_batches, " micro-batches on ", devices, " devices, expected at least ",
             schedule.stages, ", two for each device; zb-v takes fewer");
  for (int d = 0; d < devices; ++d) {
    const int behind = devices - d - 1;  // the devices after this one
    Filler list(schedule, d, recompute);
    list.repeat(2 * behind, {kF0});
    list.repeat(d + 1, {kF0, kF1});
    list.repeat(behind, {kI1, kW, kF1});
    list.repeat(micro_batches - devices - behind, {kF0, kB1, kF1, kB0});
    list.repeat(behind, {kB1, kF1, kB0});
    // 2 (d + 1) backwards, the second half of which put off their W.
    list.repeat((d + 1) / 2, {kB1, kB0});
    list.repeat((d + 1) % 2, {kB1, kI0});
    list.repeat((d + 1) / 2, {kI1, kI0});
    list.repeat(behind, {kW, kI0});
    list.repeat(d + 1, {kW});
  }
  return schedule;
}

}  // namespace weft::parallel
