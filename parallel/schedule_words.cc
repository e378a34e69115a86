#include "weft/parallel/schedule_words.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule.h"

namespace weft::parallel {
namespace {

constexpr std::size_t kMostBytes = std::size_t{32} << 20;

}  // namespace

bool is_name(std::string_view text) {
  constexpr std::string_view kMarks = "._-";
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [&](char c) {
    return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

std::optional<int> parse_number(std::string_view text, int most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value <= static_cast<unsigned>(most) ? std::optional(static_cast<int>(value))
                                              : std::nullopt;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 24;
  std::string out(text.substr(0, kMost));
  std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + out + (text.size() > kMost ? "...'" : "'");
}

std::string read_schedule_text(const std::string& path) {
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
  return text;
}

ScheduleLines::ScheduleLines(std::string_view text) : rest_(text) {
  WEFT_CHECK(text.size() <= kMostBytes, InvalidArgument, "schedule", "got ", text.size(),
             " bytes, at most ", kMostBytes, " are read; take fewer micro-batches");
}

bool ScheduleLines::next() {
  words_.clear();
  while (words_.empty() && !rest_.empty()) {
    ++line_;
    std::string_view line = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(rest_.size(), line.size() + 1));
    line = line.substr(0, line.find('#'));
    constexpr std::string_view kBlank = " \t\r";
    // If a line is too long, only one word too many is kept: enough to refuse it later.
    for (std::size_t end = 0; words_.size() <= kMostActions + 1;) {
      const std::size_t begin = line.find_first_not_of(kBlank, end);
      if (begin == std::string_view::npos) break;
      end = std::min(line.size(), line.find_first_of(kBlank, begin));
      words_.push_back({line.substr(begin, end - begin), static_cast<int>(begin) + 1});
    }
  }
  return !words_.empty();
}

std::string_view ScheduleLines::word(std::size_t i) const {
  return i < words_.size() ? words_[i].text : std::string_view();
}

std::string ScheduleLines::got(const Word& word) const {
  return detail::concat("line ", line_, ", column ", word.column, ": got ", quoted(word.text));
}

}  // namespace weft::parallel
