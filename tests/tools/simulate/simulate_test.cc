// tools/simulate as its user meets it: output, files and exit status. No time is tested.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/tests/io/files.h"

namespace weft {
namespace {

using nlohmann::json;

class SimulateCommand : public ::testing::Test {
 protected:
  int run(const std::string& arguments, const std::string& out = "&2") const {
    const std::string command =
        "tools/simulate/simulate " + arguments + " 2>" + folder.path("log") + " >" + out;
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  std::string write(const std::string& name, const std::string& text) const {
    testing::write_file(folder.path(name), text);
    return folder.path(name);
  }

  testing::TempFolder folder;
};

TEST_F(SimulateCommand, PredictsAndChecks) {
  const std::string file = folder.path("F.json");
  ASSERT_EQ(run("--predict " + file +
                " --program mlp --seconds 0 --sizes 4,2,4 --batch 8,3 --chunks 2,4"),
            0)
      << log();
  EXPECT_NE(log().find("mlp, batch 8 on 2 devices"), std::string::npos) << log();
  EXPECT_NE(log().find("one_device: stay on one device"), std::string::npos) << log();
  const json written = json::parse(testing::read_file(file));
  EXPECT_EQ(written["costs"]["program"], "mlp");
  EXPECT_EQ(written["costs"]["layers"].size(), 4U);
  EXPECT_EQ(written["costs"]["layers"][1]["forward"]["points"].size(), 2U);
  EXPECT_TRUE(written.contains("machine") && written.contains("date") && written["dtype"] == "f32");
  EXPECT_EQ(written["predictions"].size(), 2U * (5 + 2 * 3 * 3));

  // Micro-batches of fewer rows than layers are usually timed with.
  const std::string few = folder.path("few.json");
  ASSERT_EQ(run("--predict " + few + " --program mlp --seconds 0 --batch 8,6 --chunks 2,4"), 0)
      << log();
  const json points =
      json::parse(testing::read_file(few))["costs"]["layers"][1]["forward"]["points"];
  EXPECT_EQ(points.size(), 6U);
  EXPECT_EQ(points[0][0], 2);

  // A run that took just what was predicted, and one that took twice that.
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
  EXPECT_NE(log().find("2 of 2 rows have a prediction; 2 of these lie within 15 %"),
            std::string::npos)
      << log();
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
  const std::string picture = folder.path("out.png"), table = folder.path("table.json");
  ASSERT_EQ(run("--scaling --program mlp -o " + picture + " --json " + table), 0) << log();
  EXPECT_EQ(log().find("MODEL, nothing measured: mlp on h100"), 0U) << log();
  EXPECT_NE(log().find("model     4096"), std::string::npos) << log();
  EXPECT_NE(log().find("assumed, not published"), std::string::npos) << log();
  EXPECT_EQ(testing::read_file(picture).substr(1, 3), "PNG");
  EXPECT_EQ(json::parse(testing::read_file(table))["kind"], "model, nothing measured");
}

TEST_F(SimulateCommand, WrongUsageIsTwoAndSaysWhatIsRight) {
  const auto says = [&](const std::string& arguments, const std::string& text) {
    EXPECT_EQ(run(arguments), 2) << arguments;
    EXPECT_NE(log().find(text), std::string::npos) << arguments << '\n' << log();
  };
  says("", "expected --predict FILE, --check FILE RUN, or --scaling");
  says("--predict", "--predict");
  says("--check F.json", "--check FILE needs a RUN");
  says("F.json", "unexpected argument 'F.json'; a RUN goes with --check");
  says("--predict F --check F", "--check");
  says("--predict F --scaling", "--scaling");
  says("--check nothing.json nothing", "nothing.json cannot be read");
  says("--check " + write("F.json", "{}") + " nothing", "is nothing that --predict wrote");
  says("--predict F --program mpl", "mpl");
  says("--predict F --batch 0", "--batch");
  says("--predict F --batch many", "--batch");
  says("--predict F --chunks -1", "--chunks");
  says("--predict F --devices 0", "--devices");
  says("--predict F --device 2", "unknown option --device; did you mean --devices?");
  says("--predict F more", "unexpected argument 'more'");
  says("--predict F --devices 64 --chunks 65536", "has at most 1000000 actions");
  says("--predict /proc/no/F.json", "/proc/no");
  says("--predict " + folder.path(""), "simulate: error");
  says("--scaling --batch 3", "--batch");
  says("--scaling --preset h10", "h10");
  says("--scaling -o out.jpg", "ends in .png");
  says("--scaling --program mlp -o /proc/no/out.png", "/proc/no");
  says("--local-batch 3", "--local-batch");
  EXPECT_EQ(run("--help"), 0);
  EXPECT_NE(log().find("--predict"), std::string::npos) << log();
}

TEST_F(SimulateCommand, OutputThatIsLostIsTwo) {
  for (const std::string arguments : {"--scaling --program mlp", "--help"}) {
    EXPECT_EQ(run(arguments, "/dev/full"), 2) << arguments;
    EXPECT_NE(log().find("simulate: error: [stdout] some of the output is lost: No space left"),
              std::string::npos)
        << log();
  }
}

}  // namespace
}  // namespace weft
