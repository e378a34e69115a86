// tools/simulate as a user sees it: output, files and exit status. No test depends on times.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "weft/tests/tools/command.h"

namespace weft {
namespace {

using nlohmann::json;

class SimulateCommand : public testing::CommandTest {
 protected:
  SimulateCommand() : CommandTest("simulate") {}
};

TEST_F(SimulateCommand, PredictsAndChecks) {
  const std::string file = folder.path("F.json");
  ASSERT_EQ(
      run("--predict " + file +
          " --program mlp --seconds 0 --sizes 4,2,4 --batch 8,3 --chunks 2,4 --host-device-memory "
          "2MiB"),
      0)
      << log();
  EXPECT_HAS(log(), "fits in 2 MiB: ");
  EXPECT_HAS(log(), "mlp, batch 8 on 2 devices");
  EXPECT_HAS(log(), "one_device: stay on one device");
  const json written = json::parse(testing::read_file(file));
  EXPECT_EQ(written["costs"]["program"], "mlp");
  EXPECT_EQ(written["costs"]["layers"].size(), 4U);
  EXPECT_EQ(written["costs"]["layers"][1]["forward"]["points"].size(), 2U);
  EXPECT_TRUE(written.contains("machine") && written.contains("date") && written["dtype"] == "f32");
  // DualPipeV needs four micro-batches or more: so a batch of 8 in 4 chunks.
  EXPECT_EQ(written["predictions"].size(), 2U * (8 + 2 * 4 * 3) + 3);

  // Micro-batches with fewer rows than the smallest usual number for timing.
  const std::string few = folder.path("few.json");
  ASSERT_EQ(run("--predict " + few + " --program mlp --seconds 0 --batch 8,6 --chunks 2,4"), 0)
      << log();
  const json points =
      json::parse(testing::read_file(few))["costs"]["layers"][1]["forward"]["points"];
  EXPECT_EQ(points.size(), 6U);
  EXPECT_EQ(points[0][0], 2);

  // A run that took exactly the predicted time, and one that took twice as long.
  double ms = 0;
  for (const json& row : written["predictions"]) {
    if (row["engine"] == "data_parallel" && row["batch"] == 8) ms = row["step_ms"];
  }
  const auto took = [&](double median) {
    return write("run.json", json{{"devices", 2},
                                  {"data_parallel",
                                   {{{"work", "mlp"},
                                     {"batch", 8},
                                     {"one_ms", {{"median", 1e9}}},
                                     {"data_parallel_ms", {{"median", median}}}}}}}
                                 .dump());
  };
  EXPECT_EQ(run("--check " + file + " " + took(ms)), 1) << "one device is far off";
  json good = json::parse(testing::read_file(folder.path("run.json")));
  for (const json& row : written["predictions"]) {
    if (row["engine"] == "one_device" && row["batch"] == 8) {
      good["data_parallel"][0]["one_ms"]["median"] = row["step_ms"];
    }
  }
  EXPECT_EQ(run("--check " + file + " " + write("run.json", good.dump())), 0) << log();
  EXPECT_HAS(log(), "2 of 2 rows have a prediction; 2 of these lie within 15 %");
}

TEST_F(SimulateCommand, OneDeviceIsRankedAlone) {
  ASSERT_EQ(run("--predict " + folder.path("F.json") +
                " --program mlp --seconds 0 --sizes 2 --devices 1"),
            0)
      << log();
  const json written = json::parse(testing::read_file(folder.path("F.json")));
  EXPECT_EQ(written["predictions"].size(), 1U);
}

TEST_F(SimulateCommand, ScalesAsAModel) {
  const std::string picture = folder.path("out.svg"), table = folder.path("table.json");
  ASSERT_EQ(run("--scaling --program mlp -o " + picture + " --json " + table), 0) << log();
  EXPECT_EQ(log().find("MODEL, nothing measured: mlp on h100"), 0U) << log();
  EXPECT_HAS(log(), "model     4096");
  EXPECT_HAS(log(), "assumed, not published");
  EXPECT_HAS(testing::read_file(picture), ">MODEL, not measured: mlp, weak scaling</text>");
  EXPECT_EQ(json::parse(testing::read_file(table))["kind"], "model, nothing measured");
}

TEST_F(SimulateCommand, DividesATransformerAsAModel) {
  const std::string picture = folder.path("out.svg"), table = folder.path("table.json");
  ASSERT_EQ(
      run("--sharding --preset h100-node --layers 2 --width 64 -o " + picture + " --json " + table),
      0)
      << log();
  EXPECT_HAS(log(), "2 blocks of width 64, on h100-node, weak scaling, 4 rows of 1024 tokens");
  EXPECT_HAS(log(), "model        8 TP + FSDP");
  EXPECT_HAS(testing::read_file(picture), ">MODEL, not measured: memory</text>");
  EXPECT_EQ(json::parse(testing::read_file(table))["steps"].size(), 6U * 4);
}

TEST_F(SimulateCommand, WrongUsageIsTwoAndSaysWhatIsRight) {
  refuses("", "expected --predict FILE, --check FILE RUN, --replay TRACE, --scaling or --sharding");
  refuses("--predict", "--predict");
  refuses("--check F.json", "--check FILE needs a RUN");
  refuses("F.json", "unexpected argument 'F.json'; a RUN goes with --check");
  refuses("--predict F.json --seconds nan", "--seconds: 'nan' is no number from 0 to 3600\n");
  refuses("--check F.json a b", "compares with one RUN");
  refuses("--predict F --check F", "--check");
  refuses("--replay F --check F", "--check");
  refuses("--replay F --scaling", "--scaling");
  refuses("--replay nothing.json", "nothing.json cannot be read");
  refuses("--predict F --scaling", "--scaling");
  refuses("--check nothing.json nothing", "nothing.json cannot be read");
  refuses("--check " + write("F.json", "{}") + " nothing", "is nothing that --predict wrote");
  refuses("--predict F --program mpl", "mpl");
  refuses("--predict F --batch 0", "--batch");
  refuses("--predict F --batch many", "--batch");
  refuses("--predict F --chunks -1", "--chunks");
  refuses("--predict F --devices 0", "--devices");
  refuses("--predict F --host-device-memory 3parsecs", "--host-device-memory");
  refuses("--scaling --host-device-memory 1MiB", "--host-device-memory");
  refuses("--predict F --device 2", "unknown option --device; did you mean --devices?");
  refuses("--predict F more", "unexpected argument 'more'");
  refuses("--predict F --devices 64 --chunks 65536", "has at most 1000000 actions");
  // A V has two stages on each device.
  refuses("--predict F --devices 8 --chunks 20000 --batch 20000", "has at most 1000000 actions");
  refuses("--replay F --program mlp", "--program does not go with --replay");
  refuses("--check F RUN --program mlp", "--program does not go with --check");
  refuses("--predict /proc/no/F.json", "/proc/no");
  refuses("--predict " + folder.path(""), "simulate: error");
  refuses("--scaling --batch 3", "--batch");
  refuses("--scaling --preset h10", "h10");
  refuses("--scaling -o out.jpg", "ends in .svg");
  refuses("--scaling --program mlp -o /proc/no/out.svg", "/proc/no");
  refuses("--local-batch 3", "--local-batch");
  refuses("--sharding --scaling", "--sharding");
  refuses("--sharding --layers 0", "--layers");
  refuses("--layers 3", "--sharding");
  refuses("--preset h100", "--preset goes with --scaling or --sharding");
  refuses("--predict F -o out.svg", "--out goes with --replay, --scaling or --sharding");
  EXPECT_EQ(run("--help"), 0);
  EXPECT_HAS(log(), "--predict");
}

TEST_F(SimulateCommand, OutputThatIsLostIsTwo) {
  expect_loss_is_told({"--scaling --program mlp", "--sharding", "--help"});
}

}  // namespace
}  // namespace weft
