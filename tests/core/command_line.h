// Command lines for parse_options() of a room, and what it wrote.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace weft::testing {

/// The words between blanks.
inline std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

template <class Options>
struct Parsed {
  std::optional<int> status;
  Options options;
  std::string out, err;
};

/// What parse_options(), with `more` behind the options, makes of a program's name and arguments.
template <class Options, class... More>
Parsed<Options> parse(const char* program, const std::vector<std::string>& arguments,
                      const Options& options, const More&... more) {
  std::vector<const char*> argv = {program};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  Parsed<Options> parsed{.options = options};
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  parsed.status =
      parse_options(static_cast<int>(argv.size()), argv.data(), parsed.options, more...);
  parsed.out = ::testing::internal::GetCapturedStdout();
  parsed.err = ::testing::internal::GetCapturedStderr();
  return parsed;
}

}  // namespace weft::testing
