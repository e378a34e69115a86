// Steps of ranks as text.
#include <algorithm>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_words.h"
#include "weft/parallel/step_check.h"

namespace weft::parallel {
namespace {

using Kind = StepAction::Kind;
using Phase = StepAction::Phase;

constexpr std::string_view kLetters = "FBOSUGA";  // in the order of Kind

class Parser {
 public:
  explicit Parser(std::string_view text) : lines_(text) {}

  StepSchedule parse() {
    lines_.next();
    parse_first();
    while (lines_.next()) parse_rank();
    return std::move(step_);
  }
  const TextPlaces& places() const { return places_; }

 private:
  using Word = ScheduleLines::Word;

  void parse_first() {
    const auto word = [&](std::size_t i) { return lines_.word(i); };
    const auto units = parse_number(word(4), kMostStages);
    WEFT_CHECK(lines_.words().size() == 5 && word(0) == "weft" && word(1) == "step" &&
                   is_name(word(2)) && word(3) == "units" && units && *units > 0,
               InvalidArgument, "schedule", "line ", std::max(lines_.line(), 1),
               ": expected 'weft step NAME units K', the name of letters, digits and ._-, 1 to ",
               kMostStages, " units");
    step_ = {.name = std::string(word(2)), .units = *units};
  }

  void parse_rank() {
    const std::size_t rank = step_.ranks.size();
    const std::vector<Word>& words = lines_.words();
    WEFT_CHECK(words[0].text == detail::concat(rank, ':'), InvalidArgument, "schedule",
               lines_.got(words[0]), ", expected '", rank,
               ":' and that rank's actions, on one line");
    WEFT_CHECK(rank < kMostStages, InvalidArgument, "schedule", lines_.got(words[0]), ", at most ",
               kMostStages, " ranks are read");
    std::vector<StepAction>& list = step_.ranks.emplace_back();
    std::vector<TextPlace>& places = places_.emplace_back();
    for (std::size_t i = 1; i < words.size(); ++i) {
      WEFT_CHECK(++actions_ <= kMostActions, InvalidArgument, "schedule", lines_.got(words[i]),
                 ", at most ", kMostActions, " actions are read; take fewer units");
      list.push_back(parse_action(words[i]));
      places.push_back({lines_.line(), words[i].column});
    }
  }

  StepAction parse_action(const Word& word) const {
    std::string_view rest = word.text;
    StepAction action;
    if (rest.starts_with('>') || rest.starts_with('<')) {
      action.phase = rest[0] == '>' ? Phase::start : Phase::wait;
      rest.remove_prefix(1);
    }
    const std::size_t letter = rest.empty() ? kLetters.npos : kLetters.find(rest[0]);
    if (letter != kLetters.npos) action.kind = static_cast<Kind>(letter);
    if (!rest.empty()) rest.remove_prefix(1);
    const bool optimizer = action.kind == Kind::optimizer;
    const auto unit = optimizer && rest.empty() ? 0 : parse_number(rest, 999'999'999);
    WEFT_CHECK(
        letter != kLetters.npos && unit && (!optimizer || rest.empty()) && is_possible(action),
        InvalidArgument, "schedule", lines_.got(word),
        ", expected O, or a unit's number behind F, B or S, or behind U, G, A, F or B with > "
        "or < before it, as in >U3");
    WEFT_CHECK(*unit < step_.units, InvalidArgument, "schedule", lines_.got(word),
               ", expected units 0 to ", step_.units - 1,
               "; correct it, or the number in the first line");
    action.unit = *unit;
    return action;
  }

  ScheduleLines lines_;
  int actions_ = 0;
  StepSchedule step_;
  TextPlaces places_;
};

}  // namespace

std::string to_string(const StepAction& action) {
  static constexpr const char* kPhases[] = {"", ">", "<"};
  std::string text = detail::concat(kPhases[static_cast<std::size_t>(action.phase)],
                                    kLetters[static_cast<std::size_t>(action.kind)]);
  return action.kind == Kind::optimizer ? text : text + std::to_string(action.unit);
}

std::string to_string(const StepSchedule& step) {
  WEFT_CHECK(is_name(step.name), InvalidArgument, "schedule", "got the name ", quoted(step.name),
             ", expected up to 64 letters, digits and ._-");
  std::string text = detail::concat("weft step ", step.name, " units ", step.units, '\n');
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    text += std::to_string(r) + ':';
    for (const StepAction& action : step.ranks[r]) text += ' ' + to_string(action);
    text += '\n';
  }
  return text;
}

StepSchedule parse_step(std::string_view text) { return Parser(text).parse(); }

std::variant<Schedule, StepSchedule> load_any_schedule(const std::string& path) {
  const std::string text = read_schedule_text(path);
  return within(path, [&]() -> std::variant<Schedule, StepSchedule> {
    ScheduleLines lines(text);
    if (!lines.next() || lines.word(1) != "step") return load_schedule_text(text);
    Parser parser(text);
    StepSchedule step = parser.parse();
    check(step, parser.places());
    return step;
  });
}

}  // namespace weft::parallel
