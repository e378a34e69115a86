#include "weft/parallel/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

// In the order of the enum.
constexpr std::array<std::string_view, 9> kLetters = {"F",  "B",  "I",  "W", "R",
                                                      ">F", "<F", ">B", "<B"};
constexpr std::size_t kMostBytes = std::size_t{32} << 20;

// Where an action stands: its device, and how many are before it in that device's list.
struct Place {
  int device = 0;
  int position = 0;
};

// The same in a text; both from 1.
struct TextPlace {
  int line = 0;
  int column = 0;
};

// By device and position; empty for a schedule that was not read.
using TextPlaces = std::vector<std::vector<TextPlace>>;

// What `a` waits for, as far as the schedule has it; at most one of those is on another device, or
// the first one of those has waited for the others.
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

  // Of those that are in range no two have the same.
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

  // Of a send or receive: that there is a device to send to or to receive from.
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

  // What goes from stage s - 1 to s and back.
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

  // That it comes behind what it needs of its own device.
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

  // Runs all lists as far as they go, each device on until it waits for another.
  std::vector<ScheduleCheck::Step> run() const {
    const int devices = static_cast<int>(schedule_.devices.size());
    std::vector<ScheduleCheck::Step> order;
    std::unordered_map<std::uint32_t, int> number;   // of what has run, by key
    std::unordered_map<std::uint32_t, int> waiting;  // the device that waits for it, by key
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

  // Every device that is not done waits for one that is not: from one to the next there is a
  // circle.
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

bool is_name(std::string_view text) {
  constexpr std::string_view kMarks = "._-";
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [&](char c) {
    return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

// Digits alone, at most `most`.
std::optional<int> parse_number(std::string_view text, int most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value <= static_cast<unsigned>(most) ? std::optional(static_cast<int>(value))
                                              : std::nullopt;
}

// Of a file that may hold anything.
std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 24;
  std::string out(text.substr(0, kMost));
  std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + out + (text.size() > kMost ? "...'" : "'");
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Schedule parse() {
    WEFT_CHECK(rest_.size() <= kMostBytes, InvalidArgument, "schedule", "got ", rest_.size(),
               " bytes, at most ", kMostBytes, " are read; take fewer micro-batches");
    while (!words_.empty() || next_line()) {
      if (schedule_.stages == 0) {
        parse_first();
      } else {
        parse_device();
      }
      words_.clear();
    }
    if (schedule_.stages == 0) parse_first();
    return std::move(schedule_);
  }
  const TextPlaces& places() const { return places_; }

 private:
  struct Word {
    std::string_view text;
    int column;
  };

  // The words of the next line that has any, without its comment.
  bool next_line() {
    while (words_.empty() && !rest_.empty()) {
      ++line_;
      std::string_view line = rest_.substr(0, rest_.find('\n'));
      rest_.remove_prefix(std::min(rest_.size(), line.size() + 1));
      line = line.substr(0, line.find('#'));
      constexpr std::string_view kBlank = " \t\r";
      // Of a line of too many, one too many are kept, and refused later.
      for (std::size_t end = 0; words_.size() <= kMostActions + 1;) {
        const std::size_t begin = line.find_first_not_of(kBlank, end);
        if (begin == std::string_view::npos) break;
        end = std::min(line.size(), line.find_first_of(kBlank, begin));
        words_.push_back({line.substr(begin, end - begin), static_cast<int>(begin) + 1});
      }
    }
    return !words_.empty();
  }

  std::string got(const Word& word) const {
    return detail::concat("line ", line_, ", column ", word.column, ": got ", quoted(word.text));
  }

  void parse_first() {
    const auto word = [&](std::size_t i) {
      return i < words_.size() ? words_[i].text : std::string_view();
    };
    const auto stages = parse_number(word(4), kMostStages);
    const auto micro_batches = parse_number(word(6), kMostMicroBatches);
    WEFT_CHECK(words_.size() == 7 && word(0) == "weft" && word(1) == "schedule" &&
                   is_name(word(2)) && word(3) == "stages" && stages && *stages > 0 &&
                   word(5) == "micro-batches" && micro_batches && *micro_batches > 0,
               InvalidArgument, "schedule", "line ", std::max(line_, 1),
               ": expected 'weft schedule NAME stages P micro-batches M', the name of letters, "
               "digits and ._-, 1 to ",
               kMostStages, " stages, 1 to ", kMostMicroBatches, " micro-batches");
    schedule_ = {.name = std::string(word(2)), .stages = *stages, .micro_batches = *micro_batches};
  }

  void parse_device() {
    const std::size_t device = schedule_.devices.size();
    WEFT_CHECK(words_[0].text == detail::concat(device, ':'), InvalidArgument, "schedule",
               got(words_[0]), ", expected '", device, ":' and that device's actions, on one line");
    WEFT_CHECK(device < kMostStages, InvalidArgument, "schedule", got(words_[0]), ", at most ",
               kMostStages, " devices are read");
    std::vector<Action>& list = schedule_.devices.emplace_back();
    std::vector<TextPlace>& places = places_.emplace_back();
    for (std::size_t i = 1; i < words_.size(); ++i) {
      WEFT_CHECK(++actions_ <= kMostActions, InvalidArgument, "schedule", got(words_[i]),
                 ", at most ", kMostActions, " actions are read; take fewer micro-batches");
      list.push_back(parse_action(words_[i]));
      places.push_back({line_, words_[i].column});
    }
  }

  Action parse_action(const Word& word) const {
    // ">F" is found before "F" would be.
    std::string_view rest = word.text;
    const std::size_t letters = rest.starts_with('>') || rest.starts_with('<') ? 2 : 1;
    const auto kind = std::ranges::find(kLetters, rest.substr(0, letters));
    rest.remove_prefix(std::min(rest.size(), letters));
    const std::size_t dot = rest.find('.');
    // Larger ones are numbers too, and out of range.
    const auto number = [](std::string_view text) { return parse_number(text, 999'999'999); };
    const auto stage = number(rest.substr(0, dot));
    const auto micro_batch =
        dot == std::string_view::npos ? std::nullopt : number(rest.substr(dot + 1));
    WEFT_CHECK(kind != kLetters.end() && stage && micro_batch, InvalidArgument, "schedule",
               got(word),
               ", expected F, B, I, W, R, >F, <F, >B or <B with STAGE.MICRO-BATCH, as in F0.3");
    WEFT_CHECK(*stage < schedule_.stages && *micro_batch < schedule_.micro_batches, InvalidArgument,
               "schedule", got(word), ", expected stages 0 to ", schedule_.stages - 1,
               " and micro-batches 0 to ", schedule_.micro_batches - 1,
               "; correct it, or the numbers in the first line");
    return {static_cast<Kind>(kind - kLetters.begin()), *stage, *micro_batch};
  }

  std::string_view rest_;
  std::vector<Word> words_;
  int line_ = 0;
  int actions_ = 0;
  Schedule schedule_;
  TextPlaces places_;
};

}  // namespace

std::string to_string(const Action& action) {
  return detail::concat(kLetters[static_cast<std::size_t>(action.kind)], action.stage, '.',
                        action.micro_batch);
}

Action counterpart(const Action& action) {
  const auto [kind, s, m] = action;
  WEFT_CHECK(0 <= s && s < kMostStages, InvalidArgument, "schedule", to_string(action),
             ": the stages are 0 to ", kMostStages - 1);
  switch (kind) {
    case Kind::send_activation: return {Kind::receive_activation, s + 1, m};
    case Kind::receive_activation: return {Kind::send_activation, s - 1, m};
    case Kind::send_gradient: return {Kind::receive_gradient, s - 1, m};
    case Kind::receive_gradient: return {Kind::send_gradient, s + 1, m};
    default:
      WEFT_THROW(InvalidArgument, "schedule", to_string(action), " neither sends nor receives");
  }
}

std::string to_string(const Schedule& schedule) {
  WEFT_CHECK(is_name(schedule.name), InvalidArgument, "schedule", "got the name ",
             quoted(schedule.name), ", expected up to 64 letters, digits and ._-");
  std::string text = detail::concat("weft schedule ", schedule.name, " stages ", schedule.stages,
                                    " micro-batches ", schedule.micro_batches, '\n');
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    text += std::to_string(d) + ':';
    for (const Action& action : schedule.devices[d]) text += ' ' + to_string(action);
    text += '\n';
  }
  return text;
}

Schedule parse_schedule(std::string_view text) { return Parser(text).parse(); }

Schedule load_schedule(const std::string& path) {
  std::error_code error;
  std::ifstream file;
  // A pipe could block.
  if (std::filesystem::is_regular_file(path, error)) file.open(path, std::ios::binary);
  WEFT_CHECK(file.is_open(), Io, "schedule", "cannot read ", path,
             "; is it a file, and may you read it?");
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  WEFT_CHECK(!file.bad(), Io, "schedule", "cannot read ", path);
  return within(path, [&] {
    Parser parser(text);
    Schedule schedule = parser.parse();
    Checker(schedule, parser.places()).check();
    return schedule;
  });
}

ScheduleCheck check(const Schedule& schedule) { return Checker(schedule, {}).check(); }

}  // namespace weft::parallel
