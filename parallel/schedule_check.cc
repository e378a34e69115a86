#include "weft/parallel/schedule_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

// The place of an action: its device and its position in that device's list.
struct Place {
  int device = 0;
  int position = 0;
};

// The actions that `a` needs, as far as the schedule has them. At most one of them is on another
// device; or if there are more, the first of these has itself waited for the others.
std::vector<Action> needs(const Action& a) {
  const auto [kind, s, m] = a;
  switch (kind) {
    case Kind::forward:
      return {{Kind::receive_activation, s, m},
              {Kind::send_activation, s - 1, m},
              {Kind::forward, s - 1, m}};
    case Kind::backward:
    case Kind::backward_input:
      return {{Kind::forward, s, m},          {Kind::recompute, s, m},
              {Kind::receive_gradient, s, m}, {Kind::send_gradient, s + 1, m},
              {Kind::backward, s + 1, m},     {Kind::backward_input, s + 1, m}};
    case Kind::backward_weight: return {{Kind::backward_input, s, m}};
    case Kind::recompute:
    case Kind::send_activation: return {{Kind::forward, s, m}};
    case Kind::send_gradient: return {{Kind::backward, s, m}, {Kind::backward_input, s, m}};
    default: return {};
  }
}

class Checker {
 public:
  Checker(const Schedule& schedule, const TextPlaces& texts) : schedule_(schedule), texts_(texts) {}

  ScheduleCheck check() {
    check_sizes();
    place_actions();
    for (int s = 0; s < schedule_.stages; ++s) {
      for (int m = 0; m < schedule_.micro_batches; ++m) {
        check_complete(s, m);
        if (communication_ && s > 0) check_communication(s, m);
      }
    }
    check_each_action();
    ScheduleCheck result{.order = run(), .device_of_stage = device_of_stage_};
    count_kept(result);
    return result;
  }

 private:
  const Action& at(Place p) const { return schedule_.devices[p.device][p.position]; }

  const Place* find(const Action& a) const {
    const auto found = places_.find(key(a));
    return found == places_.end() || at(found->second) != a ? nullptr : &found->second;
  }

  // Different for any two actions that are in range.
  static std::uint32_t key(const Action& a) {
    return (static_cast<std::uint32_t>(a.kind) * kMostStages +
            static_cast<std::uint32_t>(a.stage)) *
               kMostMicroBatches +
           static_cast<std::uint32_t>(a.micro_batch);
  }

  std::string text(Place p) const {
    std::string text =
        detail::concat(to_string(at(p)), " (device ", p.device, ", action ", p.position + 1);
    if (!texts_.empty()) {
      const auto [line, column] = texts_[p.device][p.position];
      text += detail::concat("; line ", line, ", column ", column);
    }
    return text + ")";
  }
  std::string text(const Action& a) const { return text(*find(a)); }

  void check_sizes() const {
    const int devices = static_cast<int>(schedule_.devices.size());
    WEFT_CHECK(1 <= schedule_.stages && schedule_.stages <= kMostStages, InvalidArgument,
               "schedule", "got ", schedule_.stages, " stages, expected 1 to ", kMostStages);
    WEFT_CHECK(1 <= schedule_.micro_batches && schedule_.micro_batches <= kMostMicroBatches,
               InvalidArgument, "schedule", "got ", schedule_.micro_batches,
               " micro-batches, expected 1 to ", kMostMicroBatches);
    std::size_t actions = 0;
    for (int d = 0; d < devices; ++d) {
      actions += schedule_.devices[d].size();
      WEFT_CHECK(!schedule_.devices[d].empty(), InvalidArgument, "schedule", "device ", d,
                 " has nothing to do; leave it out");
    }
    WEFT_CHECK(actions <= std::size_t{kMostActions}, InvalidArgument, "schedule", "got ", actions,
               " actions, at most ", kMostActions, " are read or run; take fewer micro-batches");
  }

  void place_actions() {
    device_of_stage_.assign(schedule_.stages, -1);
    for (int d = 0; d < static_cast<int>(schedule_.devices.size()); ++d) {
      for (int i = 0; i < static_cast<int>(schedule_.devices[d].size()); ++i) {
        const Action& a = schedule_.devices[d][i];
        WEFT_CHECK(0 <= a.stage && a.stage < schedule_.stages && 0 <= a.micro_batch &&
                       a.micro_batch < schedule_.micro_batches,
                   InvalidArgument, "schedule", text(Place{d, i}), ": the stages are 0 to ",
                   schedule_.stages - 1, ", the micro-batches 0 to ", schedule_.micro_batches - 1);
        const auto [first, is_new] = places_.emplace(key(a), Place{d, i});
        WEFT_CHECK(is_new, InvalidArgument, "schedule", text(Place{d, i}), " stands twice, first ",
                   text(first->second), "; leave one out");
        int& device = device_of_stage_[a.stage];
        WEFT_CHECK(device == -1 || device == d, InvalidArgument, "schedule", text(Place{d, i}),
                   ": stage ", a.stage, " is on device ", device,
                   " already; put all its actions on one device");
        device = d;
        communication_ |= is_communication(a.kind);
      }
    }
    for (int s = 0; s < schedule_.stages; ++s) {
      WEFT_CHECK(device_of_stage_[s] != -1, InvalidArgument, "schedule", "stage ", s, " of ",
                 schedule_.stages, " is on no device; give one its actions, or say ", s,
                 " stages if it is one too many");
    }
  }

  void check_each_action() const {
    for (int d = 0; d < static_cast<int>(schedule_.devices.size()); ++d) {
      for (int i = 0; i < static_cast<int>(schedule_.devices[d].size()); ++i) {
        if (is_communication(schedule_.devices[d][i].kind)) check_neighbour({d, i});
        check_order({d, i});
      }
    }
  }

  // Checks that a send or receive has a device to send to or to receive from.
  void check_neighbour(Place place) const {
    const Action& a = at(place);
    const int other = counterpart(a).stage;
    WEFT_CHECK(0 <= other && other < schedule_.stages, InvalidArgument, "schedule", text(place),
               " has no stage on its other side; leave it out");
    WEFT_CHECK(device_of_stage_[a.stage] != device_of_stage_[other], InvalidArgument, "schedule",
               text(place), ": stages ", a.stage, " and ", other, " are both on device ",
               device_of_stage_[a.stage], "; leave it out");
  }

  [[noreturn]] void throw_missing(const Action& a, const std::string& why) const {
    const int device = device_of_stage_[a.stage];
    std::string where = detail::concat("device ", device);
    if (!texts_.empty()) where += detail::concat(", in line ", texts_[device][0].line);
    WEFT_THROW(InvalidArgument, "schedule", to_string(a), " is missing", why, "; add it on ",
               where);
  }

  void check_complete(int s, int m) const {
    const Action forward{Kind::forward, s, m}, backward{Kind::backward, s, m},
        input{Kind::backward_input, s, m}, weight{Kind::backward_weight, s, m};
    if (!find(forward)) throw_missing(forward, "");
    if (find(backward)) {
      for (const Action& part : {input, weight}) {
        WEFT_CHECK(!find(part), InvalidArgument, "schedule", text(backward), " and ", text(part),
                   " exclude each other: B is both I and W; leave out the one or the other");
      }
      return;
    }
    if (!find(input) && !find(weight)) throw_missing(backward, ", or I and W in its place");
    if (!find(input)) throw_missing(input, ", without which there is no " + text(weight));
    if (!find(weight)) throw_missing(weight, ", which completes " + text(input));
  }

  // Checks what goes from stage s - 1 to s and back.
  void check_communication(int s, int m) const {
    if (device_of_stage_[s] == device_of_stage_[s - 1]) return;
    for (const Action& send :
         {Action{Kind::send_activation, s - 1, m}, Action{Kind::send_gradient, s, m}}) {
      const Action receive = counterpart(send);
      if (find(send) && find(receive)) continue;
      if (find(send)) throw_missing(receive, ", the receive of " + text(send));
      if (find(receive)) throw_missing(send, ", the send of " + text(receive));
      throw_missing(send, " and so is " + to_string(receive) + ", in a schedule that sends");
    }
  }

  // Checks that the action comes after all that it needs from its own device.
  void check_order(Place place) const {
    for (const Action& need : needs(at(place))) {
      const Place* other = find(need);
      WEFT_CHECK(!other || other->device != place.device || other->position < place.position,
                 InvalidArgument, "schedule", text(place), " comes before ", text(*other),
                 ", which it needs; put it behind");
    }
  }

  std::optional<Place> need_of_another_device(Place place) const {
    for (const Action& need : needs(at(place))) {
      const Place* other = find(need);
      if (other && other->device != place.device) return *other;
    }
    return std::nullopt;
  }

  // Runs all lists as far as possible; each device continues until it must wait for another.
  std::vector<ScheduleCheck::Step> run() const {
    const int devices = static_cast<int>(schedule_.devices.size());
    std::vector<ScheduleCheck::Step> order;
    std::unordered_map<std::uint32_t, int> number;   // of the actions that have run, by key
    std::unordered_map<std::uint32_t, int> waiting;  // the device that waits for the action, by key
    std::vector<int> next(devices, 0), ready(devices);
    for (int d = 0; d < devices; ++d) ready[d] = devices - 1 - d;
    while (!ready.empty()) {
      const int d = ready.back();
      ready.pop_back();
      for (; next[d] < static_cast<int>(schedule_.devices[d].size()); ++next[d]) {
        const Action& a = schedule_.devices[d][next[d]];
        int after = -1;
        if (const auto need = need_of_another_device({d, next[d]})) {
          const auto found = number.find(key(at(*need)));
          if (found == number.end()) {
            waiting.emplace(key(at(*need)), d);
            break;
          }
          after = found->second;
        }
        number.emplace(key(a), static_cast<int>(order.size()));
        order.push_back({a, d, after});
        if (const auto found = waiting.find(key(a)); found != waiting.end()) {
          ready.push_back(found->second);
        }
      }
    }
    if (order.size() < places_.size()) throw_deadlock(next);
    return order;
  }

  // Every device that is not done waits for another one that is not done, so following these waits
  // leads into a cycle.
  [[noreturn]] void throw_deadlock(const std::vector<int>& next) const {
    constexpr std::size_t kMostNamed = 8;
    const auto done = [&](int d) {
      return next[d] == static_cast<int>(schedule_.devices[d].size());
    };
    int device = 0;
    while (done(device)) ++device;
    std::vector<bool> seen(next.size());
    while (!seen[device]) {
      seen[device] = true;
      device = need_of_another_device({device, next[device]})->device;
    }
    std::string circle;
    std::size_t length = 0;
    const Place first{device, next[device]};
    do {
      const Place waits{device, next[device]};
      const Place need = *need_of_another_device(waits);
      if (length++ < kMostNamed) {
        circle += text(waits) + " waits for " + text(need) + "; before that ";
      }
      device = need.device;
    } while (device != first.device);
    if (length > kMostNamed) {
      circle += detail::concat(length - kMostNamed, " more devices wait; before that ");
    }
    WEFT_THROW(InvalidArgument, "schedule", "deadlock: ", circle, "stands ", text(first),
               "; on one of these devices put what is waited for before what waits");
  }

  void count_kept(ScheduleCheck& result) const {
    result.peak_activations.assign(schedule_.stages, 0);
    result.peak_inputs.assign(schedule_.stages, 0);
    std::vector<int> activations(schedule_.stages), inputs(schedule_.stages);
    for (const std::vector<Action>& list : schedule_.devices) {
      int on_device = 0, peak = 0;
      for (const auto& [kind, s, m] : list) {
        const auto keep = [&](int change) {
          activations[s] += change;
          on_device += change;
          result.peak_activations[s] = std::max(result.peak_activations[s], activations[s]);
          peak = std::max(peak, on_device);
        };
        if (kind == Kind::forward && find({Kind::recompute, s, m})) {
          result.peak_inputs[s] = std::max(result.peak_inputs[s], ++inputs[s]);
        } else if (kind == Kind::forward) {
          keep(1);
        } else if (kind == Kind::recompute) {
          --inputs[s];
          keep(1);
        } else if (kind == Kind::backward || kind == Kind::backward_weight) {
          keep(-1);
        }
      }
      result.peak_device_activations.push_back(peak);
    }
  }

  const Schedule& schedule_;
  const TextPlaces& texts_;
  std::unordered_map<std::uint32_t, Place> places_;
  std::vector<int> device_of_stage_;
  bool communication_ = false;
};

}  // namespace

ScheduleCheck check(const Schedule& schedule, const TextPlaces& places) {
  return Checker(schedule, places).check();
}

ScheduleCheck check(const Schedule& schedule) { return check(schedule, {}); }

}  // namespace weft::parallel
