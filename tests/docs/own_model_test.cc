// Checks that the program of docs/prove.md says what the page shows, but for digits of elements.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

TEST(ProvePage, TheProgramsVerdictsAreThoseOfThePage) {
  const testing::TempFolder folder;
  const std::string command = "tests/docs/own_model >" + folder.path("out");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string page = testing::read_file("docs/prove.md");
  std::istringstream lines(testing::read_file(folder.path("out")));
  int found = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("first: ")) line = line.substr(0, line.find(": about"));
    if (line.starts_with(' ')) continue;
    EXPECT_HAS(page, line);
    ++found;
  }
  EXPECT_EQ(found, 4);
}

}  // namespace
}  // namespace weft
