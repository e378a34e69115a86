// mlp_ddp on two ranks: its results must not depend on how they are started.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/tests/io/files.h"

namespace weft::testing {

class TwoRanksTrain : public ::testing::Test {
 protected:
  TwoRanksTrain() { write_mnist(folder.path("data"), 40, 12); }

  /// The command line of the program, with its output in folder `out`.
  std::string program(const std::string& out) const {
    return "examples/mlp_ddp --device cpu --deterministic --threads 1 --batch-size 4 --epochs 2 "
           "--lr 0.1 --seed 7 --data " +
           folder.path("data") + " --out " + folder.path(out);
  }
  /// Runs a line of sh; returns its status.
  int run(const std::string& line) const {
    const int status = std::system(("{ " + line + "\n} >" + folder.path("log") + " 2>&1").c_str());
    EXPECT_TRUE(WIFEXITED(status)) << line;
    return WEXITSTATUS(status);
  }
  /// What the last line printed.
  std::string log() const { return read_file(folder.path("log")); }

  nlohmann::json metrics(const std::string& out) const {
    return nlohmann::json::parse(read_file(folder.path(out + "/metrics.json")), nullptr, false);
  }
  std::string weights(const std::string& out) const {
    return read_file(folder.path(out + "/model.safetensors"));
  }
  /// Trains with two ranks that weftrun starts on this host, in folder `out`.
  void train_by_weftrun(const std::string& out) const {
    ASSERT_EQ(run("launch/weftrun --nproc-per-node 2 " + program(out)), 0) << log();
    ASSERT_EQ(metrics(out)["losses"].size(), 10U);
  }
  void expect_same(const std::string& out, const std::string& other) const {
    const auto got = metrics(out), expected = metrics(other);
    EXPECT_EQ(got["world_size"], 2);
    EXPECT_EQ(got["losses"], expected["losses"]);
    EXPECT_EQ(got["test"], expected["test"]);
    EXPECT_FALSE(weights(out).empty());
    EXPECT_TRUE(weights(out) == weights(other)) << "the weights differ";
  }

  TempFolder folder;
};

}  // namespace weft::testing
