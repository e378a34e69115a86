// `./weft bench ops` with PyTorch: the same rows, and the same results.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

using nlohmann::json;

TEST(BenchOpsPeer, TwoRowsAgree) {
  const char* python = std::getenv("WEFT_PEER");
  if (python == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch";
  const testing::TempFolder folder;
  const std::string command = std::string("benchmarks/ops --pairs 1 --block-ms 1 --only ") +
                              "'^(flip_1024|linear_b8_256_fb)$' --peer " + python + " --out " +
                              folder.path("ops.json");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const json rows = json::parse(testing::read_file(folder.path("ops.json"))).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  for (const json& row : rows) {
    EXPECT_TRUE(row["agree"]) << row;
    EXPECT_GT(row["ratio"].get<double>(), 0) << row;
  }
}

}  // namespace
}  // namespace weft::bench
