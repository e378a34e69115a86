// Schedules as text.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_check.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

// In the order of the enum.
constexpr std::array<std::string_view, 9> kLetters = {"F",  "B",  "I",  "W", "R",
                                                      ">F", "<F", ">B", "<B"};
constexpr std::size_t kMostBytes = std::size_t{32} << 20;

bool is_name(std::string_view text) {
  constexpr std::string_view kMarks = "._-";
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [&](char c) {
    return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

// Only digits, and a value of at most `most`.
std::optional<int> parse_number(std::string_view text, int most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value <= static_cast<unsigned>(most) ? std::optional(static_cast<int>(value))
                                              : std::nullopt;
}

// Quotes a part of the file, which may contain any bytes.
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

  // Reads the words of the next line that has any, without its comment.
  bool next_line() {
    while (words_.empty() && !rest_.empty()) {
      ++line_;
      std::string_view line = rest_.substr(0, rest_.find('\n'));
      rest_.remove_prefix(std::min(rest_.size(), line.size() + 1));
      line = line.substr(0, line.find('#'));
      constexpr std::string_view kBlank = " \t\r";
      // Of a line that is too long, only one word too many is kept: enough to refuse it later.
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
  // Refuses pipes, for example, which could block.
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
    check(schedule, parser.places());
    return schedule;
  });
}

}  // namespace weft::parallel
