// Programs with several processes, launched like by a user, compared with programs of one process.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "weft/io/safetensors.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/examples/difference.h"
#include "weft/tests/io/files.h"

namespace weft::testing {

class LaunchedTest : public ::testing::Test {
 protected:
  /// `words`: the words before a program that start two ranks of it.
  explicit LaunchedTest(std::string words) : launcher(std::move(words)) {
    write_mnist(folder.path("data"), 40, 12);
  }

  /// Runs the program with 2 ranks, or as one process, with its output in folder `out`; returns the
  /// status.
  int run(const std::string& out, bool launched, const std::string& program,
          const std::string& options) const {
    const std::string command = command_of(out, launched, program, options);
    return status_of(command);
  }
  /// The same, where the status must be 0.
  void succeed(const std::string& out, bool launched, const std::string& program,
               const std::string& options) const {
    EXPECT_EQ(run(out, launched, program, options), 0) << log();
  }
  /// The same in the background; returns the process, so that signals can be sent to it.
  pid_t start(const std::string& out, bool launched, const std::string& program,
              const std::string& options) const {
    std::string shell = "sh", flag = "-c",
                command = "exec " + command_of(out, launched, program, options);
    char* argv[] = {shell.data(), flag.data(), command.data(), nullptr};
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, "/bin/sh", nullptr, nullptr, argv, environ), 0) << command;
    return child;
  }
  /// Waits until `reached` is true.
  template <class Condition>
  void await(const Condition& reached) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!reached()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << log();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  /// Waits until the process has ended; returns the status.
  static int finish(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }
  /// Sends SIGINT during the autoencoder's test, which begins with a picture: the program must end
  /// at once, without a result.
  void expect_test_ends_at_sigint(const std::string& program, const std::string& options) const {
    write_mnist(folder.path("data"), 40, 20000);
    const pid_t child = start("stopped", false, program, "--epochs 1 --batch-size 40 " + options);
    await([&] { return std::filesystem::exists(folder.path("stopped/compare.png")); });
    ASSERT_EQ(::kill(child, SIGINT), 0);
    EXPECT_EQ(finish(child), 130) << log();
    EXPECT_HAS(log(), program + ": interrupted in a test");
    EXPECT_FALSE(std::filesystem::exists(folder.path("stopped/model.safetensors")));
  }
  /// What the last run printed.
  std::string log() const { return read_file(folder.path(log_name)); }
  nlohmann::json metrics(const std::string& out) const {
    return nlohmann::json::parse(read_file(folder.path(out + "/metrics.json")));
  }
  /// The most bytes that a rank has held for a use.
  double memory(const std::string& out, int rank, const std::string& owner) const {
    return metrics(out)["memory"].at(static_cast<std::size_t>(rank)).at(owner).get<double>();
  }
  /// The largest difference between the final weights of two runs.
  double largest_difference(const std::string& a, const std::string& b) const {
    // Ranks that write parts write them in the order of names.
    const auto load = [&](const std::string& out) {
      auto tensors = io::load_safetensors(folder.path(out + "/model.safetensors")).tensors;
      std::ranges::sort(tensors, {}, &io::NamedTensors::value_type::first);
      return tensors;
    };
    const auto x = load(a), y = load(b);
    EXPECT_FALSE(x.empty());
    EXPECT_EQ(x.size(), y.size());
    double largest = 0;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      EXPECT_EQ(x[i].first, y[i].first);
      EXPECT_EQ(x[i].second.dtype(), y[i].second.dtype());
      largest = std::max(largest, testing::largest_difference(x[i].second, y[i].second));
    }
    return largest;
  }

  /// Checks that losses, of one name or several, agree to rounding in f64.
  void expect_same_losses(const std::string& a, const std::string& b) const {
    const auto x = metrics(a)["losses"].flatten(), y = metrics(b)["losses"].flatten();
    ASSERT_GT(x.size(), 1U);
    ASSERT_EQ(x.size(), y.size()) << b;
    for (const auto& [step, loss] : x.items())
      EXPECT_NEAR(loss.get<double>(), y.at(step).get<double>(), 1e-9) << b << step;
  }
  /// The same of losses and final weights.
  void expect_same_run(const std::string& a, const std::string& b) const {
    expect_same_losses(a, b);
    EXPECT_LT(largest_difference(a, b), 1e-9) << b;
  }
  /// Checks that losses and final weights are equal to the bit.
  void expect_same_bits(const std::string& a, const std::string& b) const {
    EXPECT_FALSE(metrics(a)["losses"].empty());
    EXPECT_EQ(metrics(a)["losses"], metrics(b)["losses"]);
    EXPECT_EQ(largest_difference(a, b), 0) << b;
  }
  /// Checks that a run that stops after `steps`, and is then resumed with `more` options, is the
  /// same as one that does not stop.
  void expect_resumes(bool launched, const std::string& program, const std::string& options,
                      int steps, const std::string& more = "") const {
    succeed("whole", launched, program, options);
    succeed("part", launched, program, options + " --limit-steps " + std::to_string(steps));
    succeed("part", launched, program, options + " --resume latest " + more);
    expect_same_bits("part", "whole");
  }
  static int status_of(const std::string& command) {
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }

  TempFolder folder;
  std::string launcher;
  std::string log_name = "log";  // of the next run, and of log()

 private:
  std::string command_of(const std::string& out, bool launched, const std::string& program,
                         const std::string& options) const {
    return (launched ? launcher + " " : "") + "examples/" + program +
           " --device cpu --deterministic --threads 1 --data " + folder.path("data") + " --out " +
           folder.path(out) + " " + options + " >" + folder.path(log_name) + " 2>&1";
  }
};

}  // namespace weft::testing
