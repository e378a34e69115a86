// Runs `./weft bench ddp` with tiny nets: the rows must exist; and checks the messages of --check.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

using nlohmann::json;

class BenchDdp : public ::testing::Test {
 protected:
  /// Returns its exit status; its output is log().
  int bench(const std::string& arguments) {
    const std::string command = "benchmarks/ddp --out " + folder_.path("ddp.json") + " " +
                                arguments + " >" + folder_.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  json result() { return json::parse(testing::read_file(folder_.path("ddp.json"))); }
  std::string log() { return testing::read_file(folder_.path("log")); }
  /// A program that replies like a PyTorch rank that takes `ms` for every request.
  std::string peer(const std::string& ms) {
    testing::write_file(folder_.path("peer.sh"), R"(
while read -r request; do
  case $request in
    *'"cmd":"prepare"'*) echo '{"config": "fused", "tried": {"fused": 1.0}, "torch": "2.11"}' ;;
    *) echo '{"ms": )" + ms + R"(}' ;;
  esac
done
)");
    return " --peer /bin/sh --peer-script " + folder_.path("peer.sh");
  }

  testing::TempFolder folder_;
};

void expect_interval(const json& interval) {
  EXPECT_GT(interval.at("low").get<double>(), 0);
  EXPECT_LE(interval["low"].get<double>(), interval.at("median").get<double>());
  EXPECT_LE(interval["median"].get<double>(), interval.at("high").get<double>());
}

TEST_F(BenchDdp, ComparesTwoRanksWithOneProcessAndWithThePeer) {
  ASSERT_EQ(bench("--tiny --part throughput --batch-size 1 2 --pairs 3" + peer("1e9")), 0) << log();
  const json rows = result().at("throughput");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_FALSE(result().contains("overlap"));
  for (const json& row : rows) {
    for (const char* name : {"weft_ms", "single_ms", "peer_ms", "single_ratio", "peer_ratio"}) {
      expect_interval(row.at(name));
    }
    EXPECT_EQ(row["peer_ms"]["median"], 1e9);  // there a block is one step
    EXPECT_EQ(row.at("steps"), 3);
    EXPECT_EQ(row.at("peer_config"), "fused");
    EXPECT_EQ(row.at("backend"), "shm");
  }
  EXPECT_EQ(rows[1].at("local_batch"), 2);
}

TEST_F(BenchDdp, ShowsWhatOverlapHides) {
  ASSERT_EQ(bench("--tiny --part overlap --backend ring --pairs 2"), 0) << log();
  const json rows = result().at("overlap");
  ASSERT_EQ(rows.size(), 4U);
  std::vector<std::size_t> buckets;
  for (const json& row : rows) {
    for (const char* name :
         {"overlap_ms", "after_ms", "after_ratio", "overlap_exposed_ms", "after_exposed_ms"}) {
      expect_interval(row.at(name));
    }
    EXPECT_EQ(row.at("backend"), "ring");
    buckets.push_back(row.at("bucket_bytes").size());
  }
  EXPECT_EQ(rows[0].at("bucket_cap_mb"), 25);
  EXPECT_EQ(buckets[0], 1U);  // 9.6 MB together
  EXPECT_GT(buckets[1], 1U);
  EXPECT_GE(buckets[2], buckets[1]);
  EXPECT_TRUE(rows[3].at("bucket_cap_mb").is_null());
  EXPECT_EQ(rows[3].at("work"), "resnet50");
}

TEST_F(BenchDdp, ComparesStrategies) {
  ASSERT_EQ(bench("--tiny --part sharding --pairs 2"), 0) << log();
  const json rows = result().at("sharding");
  ASSERT_EQ(rows.size(), 3U);
  for (const json& row : rows) {
    for (const char* name : {"ddp_ms", "zero2_ms", "zero2_ratio", "fsdp_ms", "fsdp_ratio"}) {
      expect_interval(row.at(name));
    }
    EXPECT_EQ(row.at("backend"), "shm");
  }
  EXPECT_EQ(rows[2].at("work"), "transformer");
}

TEST_F(BenchDdp, CheckFailsWhereAFigureIsMissed) {
  EXPECT_EQ(bench("--check --tiny --part throughput --batch-size 32 --pairs 1" + peer("1e-9")), 1);
  EXPECT_NE(log().find("check: throughput beside one process "), std::string::npos) << log();
  EXPECT_NE(log().find("beside PyTorch 0.000 [from 0.000], to reach 1.80 [from 0.00]: missed\n"),
            std::string::npos)
      << log();
}

TEST_F(BenchDdp, ChecksNothingThatItWouldNotMeasure) {
  EXPECT_EQ(bench("--check --batch-size 16 64 --peer python3"), 1);
  EXPECT_NE(log().find("--check needs --part throughput at --batch-size 32"), std::string::npos);
  EXPECT_EQ(bench("--check --part overlap --peer python3"), 1);
  EXPECT_NE(log().find("--check needs --part throughput at --batch-size 32"), std::string::npos);
  EXPECT_EQ(bench("--check"), 1);
  EXPECT_NE(log().find("name a Python that has it by --peer"), std::string::npos) << log();
}

TEST_F(BenchDdp, APeerThatCannotIsTheWholeRunsError) {
  testing::write_file(folder_.path("peer.sh"), R"(read -r request; echo '{"error": "no torch"}')");
  EXPECT_EQ(
      bench("--tiny --part throughput --batch-size 1 --pairs 1 --peer /bin/sh --peer-script " +
            folder_.path("peer.sh")),
      1);
  EXPECT_NE(log().find("rank 0: no torch"), std::string::npos) << log();
}

TEST_F(BenchDdp, WrongFlagsGetOneLine) {
  for (const char* flags : {"--part all", "--batch-size 0", "--backend nccl", "--pairs 0", "mlp"}) {
    EXPECT_EQ(bench(flags), 2) << flags;
    const std::string text = log();
    EXPECT_TRUE(text.starts_with("bench: ")) << text;
    EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  }
}

}  // namespace
}  // namespace weft::bench
