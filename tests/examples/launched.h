// Programs of several processes, launched as a user would, beside the ones of a single process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "weft/io/safetensors.h"
#include "weft/tests/io/files.h"

namespace weft::testing {

class LaunchedTest : public ::testing::Test {
 protected:
  /// `launcher`: what stands before a program to have two of it.
  explicit LaunchedTest(std::string launcher) : launcher_(std::move(launcher)) {
    write_mnist(folder.path("data"), 40, 12);
  }

  /// With 2 ranks, or alone, its output in folder `out`; the status.
  int run(const std::string& out, bool launched, const std::string& program,
          const std::string& options) const {
    const std::string command = (launched ? launcher_ + " " : "") + "examples/" + program +
                                " --device cpu --deterministic --threads 1 --data " +
                                folder.path("data") + " --out " + folder.path(out) + " " + options +
                                " >" + folder.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  /// What the last run printed.
  std::string log() const { return read_file(folder.path("log")); }
  nlohmann::json metrics(const std::string& out) const {
    return nlohmann::json::parse(read_file(folder.path(out + "/metrics.json")));
  }
  /// Of the weights that two runs end with.
  double largest_difference(const std::string& a, const std::string& b) const {
    const auto x = io::load_safetensors(folder.path(a + "/model.safetensors")).tensors;
    const auto y = io::load_safetensors(folder.path(b + "/model.safetensors")).tensors;
    EXPECT_EQ(x.size(), y.size());
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].first, y[i].first);
      const auto p = x[i].second.to_vector<double>(), q = y[i].second.to_vector<double>();
      for (std::size_t k = 0; k < p.size(); ++k) {
        largest = std::max(largest, std::abs(p[k] - q[k]));
      }
    }
    return largest;
  }

  TempFolder folder;

 private:
  const std::string launcher_;
};

}  // namespace weft::testing
