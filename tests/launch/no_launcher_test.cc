// Ranks without a launcher, so the store is in rank 0 and nobody sees how a process ends. One of
// them fails while they connect: the others must end with errors that name it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <sstream>
#include <string>
#include <tuple>

#include "weft/comm/store/socket.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/launch/training.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

class NoLauncher : public testing::TwoRanksTrain {
 protected:
  /// Runs mlp_ddp on `ranks` ranks, which have all ended when it returns. `variables`: NAME=value,
  /// for all of them.
  void train(int ranks, const std::string& options, const std::string& variables = "") const {
    const int port = comm::port_of(comm::listen_on("127.0.0.1", 0));
    // A rank has 5 s after the fault, but on a loaded machine 30 s from its start; then it is
    // killed. A rank that waits for the group's timeout needs 120 s, so the two cannot be confused.
    const std::string rank = "RANK=$rank LOCAL_RANK=$rank timeout -s KILL 30 " + program("out") +
                             " " + options + "; echo $? >" + folder.path("status.$rank");
    ASSERT_EQ(run("export WEFT_TEST_RUN=" + mark_ + " WORLD_SIZE=" + std::to_string(ranks) +
                  " LOCAL_WORLD_SIZE=" + std::to_string(ranks) +
                  " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) + " " + variables +
                  "\nfor rank in $(seq 0 " + std::to_string(ranks - 1) + "); do\n(" + rank + ") >" +
                  folder.path("log.$rank") + " 2>&1 &\ndone\nwait"),
              0)
        << log();
  }
  void TearDown() override {
    EXPECT_TRUE(testing::becomes_true([&] {
      return testing::processes_with("WEFT_TEST_RUN=" + mark_).empty();
    })) << "processes are left";
  }

  /// As in a shell: 128 + the signal if a signal ended it.
  int status(int rank) const {
    const std::string text = testing::read_file(folder.path("status." + std::to_string(rank)));
    return text.empty() ? -1 : std::stoi(text);
  }
  std::string log(int rank) const {
    return testing::read_file(folder.path("log." + std::to_string(rank)));
  }
  /// The line in which it reports why it ends. A rank that has lost the store blames the store, and
  /// not the rank about which it asked.
  std::string error(int rank) const {
    std::istringstream lines(log(rank));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("mlp_ddp: error: ")) continue;
      if (line.find("the store") == std::string::npos) return line;
      return std::regex_replace(line, std::regex("meeting rank [0-9]+, "), "");
    }
    return "";
  }
  using TwoRanksTrain::log;

 private:
  const std::string mark_ = "no_launcher_" + std::to_string(::getpid());
};

TEST_F(NoLauncher, ThreeRanksTrain) {
  train(3, "--limit-steps 3");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(status(rank), 0) << log(rank);
  EXPECT_EQ(metrics("out")["world_size"], 3);
  EXPECT_EQ(metrics("out")["losses"].size(), 3U);
}

/// The kind of fault, the backend, the failing rank, the number of ranks.
using Cell = std::tuple<std::string, std::string, int, int>;

class FaultInConnect : public NoLauncher, public ::testing::WithParamInterface<Cell> {};

TEST_P(FaultInConnect, TheOthersNameTheRank) {
  const auto& [kind, backend, failing, ranks] = GetParam();
  const std::string missing = comm::testing::missing_backend(backend);
  if (!missing.empty()) GTEST_SKIP() << missing;
  const std::string name = "rank " + std::to_string(failing);
  train(ranks, "--backend " + backend,
        "WEFT_FAULT=" + kind + ":rank=" + std::to_string(failing) + ":phase=connect");
  EXPECT_EQ(status(failing), kind == "kill" ? 137 : 1) << log(failing);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == failing) continue;
    // 137 would mean that it had to be killed.
    EXPECT_EQ(status(rank), 1) << name << " failed, rank " << rank << " says:\n" << log(rank);
    // It may also name others, which lost this one and ended a moment before.
    for (const std::string& text : {name + "\\b", std::string("(in|,) connect\\b")}) {
      EXPECT_TRUE(std::regex_search(error(rank), std::regex(text)))
          << "no '" << text << "' in what rank " << rank << " says:\n"
          << log(rank);
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [kind, backend, failing, ranks] = info.param;
  return kind + "_" + backend + "_rank_" + std::to_string(failing) + "_of_" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(All, FaultInConnect,
                         ::testing::Combine(::testing::Values("kill", "raise"),
                                            ::testing::Values("shm", "gloo", "ring", "auto"),
                                            ::testing::Values(0, 1),  // 0 has the store
                                            ::testing::Values(3)),
                         name_of);
// With ranks above and below it, which also wait for each other.
INSTANTIATE_TEST_SUITE_P(Four, FaultInConnect, ::testing::Values(Cell{"kill", "ring", 1, 4}),
                         name_of);

}  // namespace
}  // namespace weft::launch
