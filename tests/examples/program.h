// Runs an example of one process like a user, with its output in a temporary folder.
#pragma once

#include <map>
#include <string>

#include "weft/tests/examples/launched.h"

namespace weft::testing {

class ProgramTest : public LaunchedTest {
 protected:
  /// `arguments` go to every run.
  ProgramTest(std::string example, std::string arguments)
      : LaunchedTest(""), example_(std::move(example)), arguments_(std::move(arguments) + " ") {}

  /// Runs the program with its output in folder `out`; returns its status.
  int run(const std::string& out, const std::string& arguments) const {
    return LaunchedTest::run(out, false, example_, arguments_ + arguments);
  }
  /// The same, where the status must be 0.
  void succeed(const std::string& out, const std::string& arguments) const {
    LaunchedTest::succeed(out, false, example_, arguments_ + arguments);
  }

  /// The bytes of each tensor of a safetensors file.
  std::map<std::string, std::string> bytes_of(const std::string& file) const {
    std::map<std::string, std::string> result;
    for (const auto& [name, tensor] : io::load_safetensors(folder.path(file)).tensors)
      result[name] = std::string(static_cast<const char*>(tensor.raw_data()),
                                 tensor.numel() * size_of(tensor.dtype()));
    return result;
  }

 private:
  const std::string example_, arguments_;
};

}  // namespace weft::testing
