// The programs of models in two parts, beside the ones on a single device.
#include <string>

#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

class ModelParallelRun : public testing::LaunchedTest {
 protected:
  ModelParallelRun() : LaunchedTest("") {}

  int run_alone(const std::string& out, const std::string& program,
                const std::string& options) const {
    return run(out, false, program, options);
  }
  void expect_same_run(const std::string& parts, const std::string& one) const {
    const auto x = metrics(parts), y = metrics(one);
    ASSERT_GT(x["losses"].size(), 1U);
    EXPECT_EQ(x["losses"], y["losses"]);
    EXPECT_EQ(x["test"], y["test"]);
    EXPECT_EQ(largest_difference(parts, one), 0);
  }
  void expect_memory_of_both(const std::string& out) const {
    EXPECT_NE(log().find("peak memory, MiB"), std::string::npos) << log();
    for (const char* figure : {"peak_bytes_cpu:0", "peak_bytes_cpu:1"}) {
      EXPECT_GT(metrics(out).at(figure), 0) << figure;
    }
  }
};

TEST_F(ModelParallelRun, TheAutoencoderOnTwoDevicesIsTheOneOnASingleDevice) {
  const std::string options = "--dtype f64 --no-shuffle --batch-size 8 --epochs 1 --seed 7 ";
  ASSERT_EQ(run_alone("one", "autoencoder", options), 0) << log();
  const std::string parts = options + "--host-devices 2 ";
  ASSERT_EQ(run_alone("two", "autoencoder_mp", parts), 0) << log();
  expect_same_run("two", "one");
  expect_memory_of_both("two");
  EXPECT_NE(log().find("MiB more than cpu:"), std::string::npos) << log();
  EXPECT_NE(log().find("; the parts of the model differ.\n"), std::string::npos) << log();
  EXPECT_EQ(testing::read_file(folder.path("two/compare.png")),
            testing::read_file(folder.path("one/compare.png")));

  ASSERT_EQ(run_alone("part", "autoencoder_mp", parts + "--limit-steps 2"), 0) << log();
  ASSERT_EQ(run_alone("part", "autoencoder_mp", parts + "--resume latest --devices 1,0"), 0)
      << log();
  expect_same_run("part", "one");
}

TEST_F(ModelParallelRun, SigintEndsATest) {
  expect_test_ends_at_sigint("autoencoder_mp", "--host-devices 2");
}

TEST_F(ModelParallelRun, TheResNetInTwoPartsIsTheOneOnASingleDevice) {
  const std::string options =
      "--dtype f64 --no-shuffle --image-size 8 --limit-steps 3 --batch-size 8 --data fake --lr 0.1 "
      "--depth 18 ";
  ASSERT_EQ(run_alone("one", "resnet", options), 0) << log();
  ASSERT_EQ(run_alone("two", "resnet_mp", options + "--host-devices 2"), 0) << log();
  expect_same_run("two", "one");
  expect_memory_of_both("two");
}

TEST_F(ModelParallelRun, OneDeviceIsTooFew) {
  for (const std::string program : {"autoencoder_mp", "resnet_mp"}) {
    EXPECT_EQ(run_alone("out", program, "--data fake"), 1);
    EXPECT_NE(log().find("need two devices, got cpu:0 alone; --host-devices 2 splits the CPU"),
              std::string::npos)
        << log();
    EXPECT_EQ(run_alone("out", program, "--data fake --host-devices 2 --devices 1,1"), 1);
    EXPECT_NE(log().find("need two devices, got cpu:1 twice"), std::string::npos) << log();
    EXPECT_EQ(run_alone("out", program, "--data fake --host-devices 2 --devices 0,2"), 1);
    EXPECT_NE(log().find("[cpu:2]"), std::string::npos) << log();
  }
}

}  // namespace
}  // namespace weft
