// A program of tools/ as a user sees it: output and exit status.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <initializer_list>
#include <string>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::testing {

class CommandTest : public ::testing::Test {
 protected:
  explicit CommandTest(const std::string& name)
      : name_(name), command_("tools/" + name + "/" + name + " ") {}

  /// Runs it and returns its status; what it writes to both streams is in log().
  int run(const std::string& arguments, const std::string& out = "&2") const {
    const std::string command = command_ + arguments + " 2>" + folder.path("log") + " >" + out;
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string log() const { return read_file(folder.path("log")); }
  void refuses(const std::string& arguments, const std::string& text) const {
    EXPECT_EQ(run(arguments), 2) << arguments;
    EXPECT_HAS(log(), text) << arguments;
  }
  void expect_loss_is_told(std::initializer_list<std::string> runs) const {
    for (const std::string& arguments : runs) {
      EXPECT_EQ(run(arguments, "/dev/full"), 2) << arguments;
      EXPECT_HAS(log(), name_ + ": error: [stdout] some of the output is lost: No space left");
    }
  }
  /// Returns the path.
  std::string write(const std::string& name, const std::string& text) const {
    write_file(folder.path(name), text);
    return folder.path(name);
  }

  TempFolder folder;

 private:
  const std::string name_, command_;
};

}  // namespace weft::testing
