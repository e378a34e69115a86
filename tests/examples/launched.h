// Programs of several processes, launched as a user would, beside the ones of a single process.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
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
    const std::string command = command_of(out, launched, program, options);
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  /// The same in the background: the process, to which signals can be sent.
  pid_t start(const std::string& out, bool launched, const std::string& program,
              const std::string& options) const {
    std::string shell = "sh", flag = "-c",
                command = "exec " + command_of(out, launched, program, options);
    char* argv[] = {shell.data(), flag.data(), command.data(), nullptr};
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, "/bin/sh", nullptr, nullptr, argv, environ), 0) << command;
    return child;
  }
  /// Waits until it has come so far.
  template <class Condition>
  void await(const Condition& reached) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!reached()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << log();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  /// Waits until it has ended; the status.
  static int finish(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }
  /// SIGINT while the autoencoder's test runs, which begins with a picture: the program ends at
  /// once, without a result.
  void expect_test_ends_at_sigint(const std::string& program, const std::string& options) const {
    write_mnist(folder.path("data"), 40, 20000);
    const pid_t child = start("stopped", false, program, "--epochs 1 --batch-size 40 " + options);
    await([&] { return std::filesystem::exists(folder.path("stopped/compare.png")); });
    ASSERT_EQ(::kill(child, SIGINT), 0);
    EXPECT_EQ(finish(child), 130) << log();
    EXPECT_NE(log().find(program + ": interrupted in a test"), std::string::npos) << log();
    EXPECT_FALSE(std::filesystem::exists(folder.path("stopped/model.safetensors")));
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
  std::string command_of(const std::string& out, bool launched, const std::string& program,
                         const std::string& options) const {
    return (launched ? launcher_ + " " : "") + "examples/" + program +
           " --device cpu --deterministic --threads 1 --data " + folder.path("data") + " --out " +
           folder.path(out) + " " + options + " >" + folder.path("log") + " 2>&1";
  }

  const std::string launcher_;
};

}  // namespace weft::testing
