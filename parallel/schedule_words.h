// Reading schedules as text. Private to parallel/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::parallel {

/// Up to 64 letters, digits and ._-
bool is_name(std::string_view text);

/// Only digits, and a value of at most `most`.
std::optional<int> parse_number(std::string_view text, int most);

/// Quotes a part of the file, which may contain any bytes.
std::string quoted(std::string_view text);

/// Reads a file. Throws Io.
std::string read_schedule_text(const std::string& path);

/// The words of a text, line by line; # begins a comment. Throws InvalidArgument for a text that is
/// too long.
class ScheduleLines {
 public:
  struct Word {
    std::string_view text;
    int column;  ///< counts from 1, as line()
  };
  explicit ScheduleLines(std::string_view text);

  /// Goes on to the next line that has words; false: there is none.
  bool next();
  int line() const { return line_; }
  const std::vector<Word>& words() const { return words_; }
  /// The i-th word, or nothing.
  std::string_view word(std::size_t i) const;
  /// "line 2, column 4: got 'F0'"
  std::string got(const Word& word) const;

 private:
  std::string_view rest_;
  std::vector<Word> words_;
  int line_ = 0;
};

}  // namespace weft::parallel
