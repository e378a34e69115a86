// An example run as a user would: its own process, its output in a scratch folder.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <map>
#include <string>

#include "weft/io/safetensors.h"
#include "weft/tests/io/files.h"

namespace weft::testing {

class ProgramTest : public ::testing::Test {
 protected:
  /// `arguments` go to every run.
  ProgramTest(std::string example, std::string arguments)
      : command_("examples/" + std::move(example) + " --device cpu --deterministic --threads 1 " +
                 std::move(arguments)) {}

  /// Runs the program with its output in folder `out`; its status.
  int run(const std::string& out, const std::string& arguments) const {
    const std::string command = command_ + " --data " + folder.path("data") + " --out " +
                                folder.path(out) + " " + arguments + " >" + folder.path("log") +
                                " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  /// What the last run printed.
  std::string log() const { return read_file(folder.path("log")); }

  /// The bytes of each tensor of a safetensors file.
  std::map<std::string, std::string> bytes_of(const std::string& file) const {
    std::map<std::string, std::string> result;
    for (const auto& [name, tensor] : io::load_safetensors(folder.path(file)).tensors)
      result[name] = std::string(static_cast<const char*>(tensor.raw_data()),
                                 tensor.numel() * size_of(tensor.dtype()));
    return result;
  }

  TempFolder folder;

 private:
  const std::string command_;
};

}  // namespace weft::testing
