// Runs benchmarks/sharding.py with a tiny transformer, and has benchmarks/report.py make the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

using nlohmann::json;

class BenchSharding : public ::testing::Test {
 protected:
  /// Its status is 0; its output is log().
  void succeed(const std::string& command) const {
    EXPECT_EQ(std::system((command + " >" + path("log") + " 2>&1").c_str()), 0) << log();
  }
  std::string log() const { return testing::read_file(path("log")); }
  std::string path(const std::string& name) const { return folder_.path(name); }

 private:
  testing::TempFolder folder_;
};

TEST_F(BenchSharding, MeasuresEachWayAndPrintsTheTable) {
  std::string text;
  for (int i = 0; text.size() < 2000; ++i) text += "abc defgh " + std::to_string(i * i);
  testing::write_file(path("text.txt"), text);
  succeed("python3 benchmarks/sharding.py --tiny --programs . --data " + path("text.txt") +
          " --out " + path("sharding.json"));
  const json result = json::parse(testing::read_file(path("sharding.json")));
  EXPECT_EQ(result.at("steps"), (json{3, 8}));
  std::map<std::string, json> ways;
  for (const json& way : result.at("ways")) ways[way.at("way").get<std::string>()] = way;
  ASSERT_EQ(ways.size(), 9U);
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    const bool one = name == "one process";
    EXPECT_EQ(way.at("command").get<std::string>().find(
                  one || name == "DataParallel" ? "./weft run char_" : "./weft launch --nproc"),
              0U);
    ASSERT_EQ(way.at("memory").size(), one ? 1U : 2U);
    for (const json& memory : way["memory"]) {
      EXPECT_GT(memory.at("parameters").get<double>(), 0);
      EXPECT_GE(memory.at("peak").get<double>(), memory["parameters"].get<double>());
    }
    EXPECT_EQ(way.contains("bytes_sent_in_a_step"), !one && name != "DataParallel");
  }
  // Sent: 2 (n-1)/n P, and FSDP's blocks are gathered twice.
  const auto sent = [&](const char* way) {
    return ways.at(way).at("bytes_sent_in_a_step").get<double>();
  };
  EXPECT_GT(sent("DDP"), 0);
  EXPECT_NEAR(sent("ZeRO-2"), sent("DDP"), 0.05 * sent("DDP"));
  EXPECT_GT(sent("FSDP"), 1.2 * sent("ZeRO-2"));
  const auto moments = [&](const char* way) {
    return ways.at(way)["memory"][0].at("optimizer").get<double>();
  };
  // Half of them, but each tensor takes a multiple of 512 bytes, and here most are smaller.
  EXPECT_GE(moments("FSDP"), moments("DDP") / 2);
  EXPECT_LT(moments("FSDP"), 0.75 * moments("DDP"));

  succeed(
      "python3 -c \"import sys; sys.path.insert(0, 'benchmarks'); import report; "
      "print(report.sharding(report.load('" +
      path("sharding.json") + "')), end='')\"");
  const std::string table = log();
  // A line about the machine, the head, and a row for each way and for DataParallel's other device.
  EXPECT_EQ(std::ranges::count(table, '\n'), 2 + 2 + 10 + 1);
  EXPECT_HAS(table, "| DataParallel, its first device | ");
  EXPECT_HAS(table, "| its next one | ");
  EXPECT_HAS(table, "| pipeline, `1f1b`, recomputed | ");
}

}  // namespace
}  // namespace weft::bench
