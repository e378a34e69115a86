// Schedules as text.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_check.h"
#include "weft/parallel/schedule_words.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

// In the order of the enum.
constexpr std::array<std::string_view, 9> kLetters = {"F",  "B",  "I",  "W", "R",
                                                      ">F", "<F", ">B", "<B"};

class Parser {
 public:
  explicit Parser(std::string_view text) : lines_(text) {}

  Schedule parse() {
    while (lines_.next()) {
      if (schedule_.stages == 0) {
        parse_first();
      } else {
        parse_device();
      }
    }
    if (schedule_.stages == 0) parse_first();
    return std::move(schedule_);
  }
  const TextPlaces& places() const { return places_; }

 private:
  using Word = ScheduleLines::Word;

  void parse_first() {
    const auto word = [&](std::size_t i) { return lines_.word(i); };
    const auto stages = parse_number(word(4), kMostStages);
    const auto micro_batches = parse_number(word(6), kMostMicroBatches);
    WEFT_CHECK(lines_.words().size() == 7 && word(0) == "weft" && word(1) == "schedule" &&
                   is_name(word(2)) && word(3) == "stages" && stages && *stages > 0 &&
                   word(5) == "micro-batches" && micro_batches && *micro_batches > 0,
               InvalidArgument, "schedule", "line ", std::max(lines_.line(), 1),
               ": expected 'weft schedule NAME stages P micro-batches M', the name of letters, "
               "digits and ._-, 1 to ",
               kMostStages, " stages, 1 to ", kMostMicroBatches, " micro-batches");
    schedule_ = {.name = std::string(word(2)), .stages = *stages, .micro_batches = *micro_batches};
  }

  void parse_device() {
    const std::size_t device = schedule_.devices.size();
    const std::vector<Word>& words = lines_.words();
    WEFT_CHECK(words[0].text == detail::concat(device, ':'), InvalidArgument, "schedule",
               lines_.got(words[0]), ", expected '", device,
               ":' and that device's actions, on one line");
    WEFT_CHECK(device < kMostStages, InvalidArgument, "schedule", lines_.got(words[0]),
               ", at most ", kMostStages, " devices are read");
    std::vector<Action>& list = schedule_.devices.emplace_back();
    std::vector<TextPlace>& places = places_.emplace_back();
    for (std::size_t i = 1; i < words.size(); ++i) {
      WEFT_CHECK(++actions_ <= kMostActions, InvalidArgument, "schedule", lines_.got(words[i]),
                 ", at most ", kMostActions, " actions are read; take fewer micro-batches");
      list.push_back(parse_action(words[i]));
      places.push_back({lines_.line(), words[i].column});
    }
  }

  Action parse_action(const Word& word) const {
    // Two characters for ">F", so that it is not read as "F".
    std::string_view rest = word.text;
    const std::size_t letters = rest.starts_with('>') || rest.starts_with('<') ? 2 : 1;
    const auto kind = std::ranges::find(kLetters, rest.substr(0, letters));
    rest.remove_prefix(std::min(rest.size(), letters));
    const std::size_t dot = rest.find('.');
    // Larger numbers are accepted here and refused later as out of range.
    const auto number = [](std::string_view text) { return parse_number(text, 999'999'999); };
    const auto stage = number(rest.substr(0, dot));
    const auto micro_batch =
        dot == std::string_view::npos ? std::nullopt : number(rest.substr(dot + 1));
    WEFT_CHECK(kind != kLetters.end() && stage && micro_batch, InvalidArgument, "schedule",
               lines_.got(word),
               ", expected F, B, I, W, R, >F, <F, >B or <B with STAGE.MICRO-BATCH, as in F0.3");
    WEFT_CHECK(*stage < schedule_.stages && *micro_batch < schedule_.micro_batches, InvalidArgument,
               "schedule", lines_.got(word), ", expected stages 0 to ", schedule_.stages - 1,
               " and micro-batches 0 to ", schedule_.micro_batches - 1,
               "; correct it, or the numbers in the first line");
    return {static_cast<Kind>(kind - kLetters.begin()), *stage, *micro_batch};
  }

  ScheduleLines lines_;
  int actions_ = 0;
  Schedule schedule_;
  TextPlaces places_;
};

}  // namespace

std::string to_string(const Action& action) {
  return detail::concat(kLetters[static_cast<std::size_t>(action.kind)], action.stage, '.',
                        action.micro_batch);
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

Schedule load_schedule_text(std::string_view text) {
  Parser parser(text);
  Schedule schedule = parser.parse();
  check(schedule, parser.places());
  return schedule;
}

Schedule load_schedule(const std::string& path) {
  const std::string text = read_schedule_text(path);
  return within(path, [&] { return load_schedule_text(text); });
}

}  // namespace weft::parallel
