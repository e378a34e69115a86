// `./weft bench ops` beside programs that answer like a PyTorch.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

using nlohmann::json;

class BenchOps : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(bench("--list"), 0) << log();
    std::istringstream lines(log());
    json names;
    for (std::string name; std::getline(lines, name);) names.push_back(name);
    ASSERT_GT(names.size(), 100U);
    names_ = names.dump();
  }
  /// Returns its exit status; its output is log().
  int bench(const std::string& arguments) {
    const std::string command = "benchmarks/ops --out " + folder_.path("ops.json") + " " +
                                arguments + " >" + folder_.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  json result() { return json::parse(testing::read_file(folder_.path("ops.json"))); }
  std::string log() { return testing::read_file(folder_.path("log")); }
  /// A program that takes 1 ms for each step, and whose results have this sum.
  std::string peer(const std::string& sum) {
    testing::write_file(folder_.path("peer.sh"), R"(
while read -r request; do
  case $request in
    *'"cmd":"prepare"'*) echo '{"numel": 4096, "sum": )" +
                                                     sum + R"(}' ;;
    *'"cmd":"run"'*) echo "{\"ms\": $(echo "$request" | tr -cd 0-9)}" ;;
    *'"cmd":"names"'*) echo '{"names": )" + names_ + R"(}' ;;
    *) echo '{"torch": "2.11"}' ;;
  esac
done
)");
    return "--pairs 3 --block-ms 1 --peer /bin/sh --peer-script " + folder_.path("peer.sh");
  }

  testing::TempFolder folder_;
  std::string names_;  // a list in JSON; what --list prints
};

TEST_F(BenchOps, BothSidesNeedTheSameRows) {
  names_ = "[\"mm_16\"]";
  EXPECT_EQ(bench("--only '^mm_16$' " + peer("0")), 1);
  EXPECT_NE(log().find("the sides differ in"), std::string::npos) << log();
}

TEST_F(BenchOps, ComparesTimesAndResults) {
  ASSERT_EQ(bench("--only '^(add_small_64|mm_16)$' " + peer("0")), 1) << log();
  EXPECT_NE(log().find("2 of the workloads gave different results"), std::string::npos) << log();
  const json rows = result().at("rows");
  ASSERT_EQ(rows.size(), 2U);
  for (const json& row : rows) {
    EXPECT_FALSE(row["agree"]);
    EXPECT_GT(row["weft_us"].get<double>(), 0);
    for (const json& at : {row, row["two_threads"]}) {
      EXPECT_DOUBLE_EQ(at["peer_us"], 1000);
      EXPECT_DOUBLE_EQ(at["ratio"].get<double>() * at["weft_us"].get<double>(), 1000);
      EXPECT_LE(at["median_ratio"], at["ratio"]);
    }
  }
  const std::string sum = std::to_string(rows[0]["sum"].get<double>());
  EXPECT_EQ(bench("--only '^" + rows[0]["name"].get<std::string>() + "$' " + peer(sum)), 0);
}

TEST_F(BenchOps, NeedsAPeerAndARow) {
  EXPECT_EQ(bench("--only add_small"), 1);
  EXPECT_NE(log().find("needs --peer PYTHON"), std::string::npos) << log();
  EXPECT_EQ(bench("--only nothing " + peer("0")), 1);
}

}  // namespace
}  // namespace weft::bench
