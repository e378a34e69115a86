// Runs `./weft bench comm` for a few seconds: each row must exist, with consistent columns.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "weft/benchmarks/own_gloo.h"
#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

using nlohmann::json;

/// Returns its exit status; its output is in folder/log.
int bench(const testing::TempFolder& folder, const std::string& arguments) {
  const std::string command = "benchmarks/comm " + arguments + " >" + folder.path("log") + " 2>&1";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void expect_columns(const json& row, int ranks) {
  const double bytes = row.at("bytes"), us = row.at("us").at("median");
  const bool divided = row.at("count").get<double>() * 4 * ranks == bytes;
  EXPECT_TRUE(divided || row.at("count").get<double>() * 4 == bytes) << row;
  EXPECT_LE(row["us"]["low"].get<double>(), us);
  EXPECT_GE(row["us"]["high"].get<double>(), us);
  EXPECT_DOUBLE_EQ(row.at("algbw").get<double>(), bytes / us / 1000);
  const double others = static_cast<double>(ranks - 1) / ranks;
  const double factor = row.at("collective") == "all_reduce" ? 2 * others : divided ? others : 1;
  EXPECT_DOUBLE_EQ(row.at("busbw").get<double>(), row["algbw"].get<double>() * factor) << row;
}

TEST(BenchComm, HasARowForEachCollectiveSizeAndSide) {
  testing::TempFolder folder;
  const std::string out = folder.path("comm.json");
  ASSERT_EQ(bench(folder, "--pairs 3 --sizes 64 4002 --out " + out), 0)
      << testing::read_file(folder.path("log"));
  const json result = json::parse(testing::read_file(out));
  const bool gloo = !own_gloo_algorithms().empty();
  EXPECT_EQ(result.at("ranks"), 2);
  EXPECT_EQ(result.contains("missing"), !gloo);

  std::map<std::string, std::map<std::string, int>> rows;  // collective, side
  for (const json& row : result.at("rows")) {
    expect_columns(row, 2);
    ++rows[row.at("collective")][row.at("side")];
  }
  EXPECT_EQ(rows.size(), 8U);
  for (const auto& [collective, sides] : rows) {
    std::set<std::string> expected = {"shm", "ring", "threads"};
    if (gloo) expected.insert("gloo");
    if (collective == "all_reduce") {
      expected.insert("shm in place");
      for (const char* name : {"direct", "ring", "tree", "doubling"}) {
        expected.insert(std::string("algorithm ") + name);
      }
      for (const std::string& name : own_gloo_algorithms()) expected.insert("Gloo " + name);
    }
    std::set<std::string> measured;
    for (const auto& [side, count] : sides) {
      measured.insert(side);
      EXPECT_EQ(count, 2) << collective << ", " << side;
    }
    EXPECT_EQ(measured, expected) << collective;
  }
  EXPECT_EQ(result.at("fits").size() * 2, result["rows"].size());
  if (gloo) {
    ASSERT_EQ(result.at("against_gloo").size(), 2U);
    EXPECT_EQ(result["against_gloo"][1].at("bytes"), 4000);
    EXPECT_GT(result["against_gloo"][1].at("ratio").at("median").get<double>(), 0);
  }
  const std::string log = testing::read_file(folder.path("log"));
  EXPECT_NE(log.find("all_reduce, shm in place\n"), std::string::npos) << log;
  EXPECT_NE(log.find("        4000         1000    float    sum "), std::string::npos) << log;
  EXPECT_NE(log.find("\nalpha "), std::string::npos) << log;
}

TEST(BenchComm, OfThreeRanksAndOneBackend) {
  testing::TempFolder folder;
  const std::string out = folder.path("comm.json");
  ASSERT_EQ(bench(folder,
                  "--ranks 3 --backend ring --algorithm tree doubling "
                  "--collective all_gather all_reduce --pairs 1 --sizes 4000 --out " +
                      out),
            0)
      << testing::read_file(folder.path("log"));
  const json rows = json::parse(testing::read_file(out)).at("rows");
  ASSERT_EQ(rows.size(), 4U);
  for (const json& row : rows) expect_columns(row, 3);
  EXPECT_EQ(rows[0].at("bytes"), 3996);  // the largest size that three ranks can divide
  EXPECT_EQ(rows[1].at("count"), 1000);
  EXPECT_EQ(rows[3].at("side"), "algorithm doubling");
  const std::string log = testing::read_file(folder.path("log"));
  EXPECT_NE(log.find("all_reduce by algorithm, time (us)\n"
                     "        size       tree   doubling    fastest\n"
                     "        4000 "),
            log.npos)
      << log;
}

TEST(BenchComm, WrongFlagsGetOneLine) {
  testing::TempFolder folder;
  for (const char* flags : {"--ranks 1", "--backend nccl", "--collective sum", "--sizes 1",
                            "--pairs 0", "--algorithm gloo", "all_reduce"}) {
    EXPECT_EQ(bench(folder, flags), 2) << flags;
    const std::string log = testing::read_file(folder.path("log"));
    EXPECT_TRUE(log.starts_with("bench: ")) << log;
    EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  }
}

TEST(BenchComm, ChecksNothingThatItWouldNotMeasure) {
  testing::TempFolder folder;
  for (const char* flags : {"--backend shm ring", "--collective broadcast", "--sizes 64"}) {
    EXPECT_EQ(bench(folder, std::string("--check ") + flags), 1);
    const std::string log = testing::read_file(folder.path("log"));
    EXPECT_NE(log.find("--check needs all_reduce of 9622532 bytes"), std::string::npos) << log;
  }
}

TEST(BenchComm, ChecksTheSizeOfTheAutoencodersGradients) {
  if (own_gloo_algorithms().empty()) GTEST_SKIP() << "this build has no Gloo";
  testing::TempFolder folder;
  const int status = bench(folder,
                           "--check --backend shm gloo --collective all_reduce --pairs 1 "
                           "--sizes 9622532 --out " +
                               folder.path("comm.json"));
  const std::string log = testing::read_file(folder.path("log"));
  const bool reached = log.find("times as fast as Gloo, to reach 2.5: reached\n") != log.npos;
  const bool missed = log.find("times as fast as Gloo, to reach 2.5: missed\n") != log.npos;
  EXPECT_TRUE(status == 0 ? reached : missed) << status << log;
}

}  // namespace
}  // namespace weft::bench
