// The programs for models in two parts, compared with those for a single device.
#include <sched.h>

#include <string>

#include "weft/tests/examples/launched.h"

namespace weft {
namespace {

class ModelParallelRun : public testing::LaunchedTest {
 protected:
  ModelParallelRun() : LaunchedTest("") {}

  void expect_same_run(const std::string& parts, const std::string& one) const {
    const auto x = metrics(parts), y = metrics(one);
    ASSERT_GT(x["losses"].size(), 1U);
    EXPECT_EQ(x["losses"], y["losses"]);
    EXPECT_EQ(x["test"], y["test"]);
    EXPECT_EQ(largest_difference(parts, one), 0);
  }
  void expect_memory_of_both(const std::string& out) const {
    EXPECT_HAS(log(), "at its peak");
    for (const char* figure : {"peak_bytes_cpu:0", "peak_bytes_cpu:1"}) {
      EXPECT_GT(metrics(out).at(figure), 0) << figure;
    }
  }
};

TEST_F(ModelParallelRun, TheAutoencoderOnTwoDevicesIsTheOneOnASingleDevice) {
  const std::string options = "--dtype f64 --no-shuffle --batch-size 8 --epochs 1 --seed 7 ";
  succeed("one", false, "autoencoder", options);
  const std::string parts = options + "--host-devices 2 ";
  succeed("two", false, "autoencoder_mp", parts);
  expect_same_run("two", "one");
  expect_memory_of_both("two");
  EXPECT_HAS(log(), " above that of cpu:");
  EXPECT_HAS(log(), "; the parts of the model differ.\n");
  EXPECT_EQ(testing::read_file(folder.path("two/compare.png")),
            testing::read_file(folder.path("one/compare.png")));

  succeed("part", false, "autoencoder_mp", parts + "--limit-steps 2");
  succeed("part", false, "autoencoder_mp", parts + "--resume latest --devices 1,0");
  expect_same_run("part", "one");
}

TEST_F(ModelParallelRun, SigintEndsATest) {
  expect_test_ends_at_sigint("autoencoder_mp", "--host-devices 2");
}

TEST_F(ModelParallelRun, TheResNetInTwoPartsIsTheOneOnASingleDevice) {
  const std::string options =
      "--dtype f64 --no-shuffle --image-size 8 --limit-steps 3 --batch-size 8 --data fake --lr 0.1 "
      "--depth 18 ";
  succeed("one", false, "resnet", options);
  succeed("two", false, "resnet_mp", options + "--host-devices 2");
  expect_same_run("two", "one");
  expect_memory_of_both("two");
}

// With fewer cores a gap says nothing about model parallelism.
TEST_F(ModelParallelRun, MoreDevicesThanCoresAreSaid) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // the programs inherit it
  const std::string options = "--host-devices 2 --limit-steps 1 --batch-size 2 ";
  succeed("autoencoder", false, "autoencoder_mp", options);
  EXPECT_HAS(log(), "2 devices share 1 core: they wait for a core");
  succeed("resnet", false, "resnet_mp", options + "--data fake --image-size 8 --depth 18");
  EXPECT_HAS(log(), "2 devices share 1 core: they wait for a core");
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST_F(ModelParallelRun, OneDeviceIsTooFew) {
  for (const std::string program : {"autoencoder_mp", "resnet_mp"}) {
    EXPECT_EQ(run("out", false, program, "--data fake"), 1);
    EXPECT_HAS(log(), "need two devices, got cpu:0 alone; --host-devices 2 splits the CPU");
    EXPECT_EQ(run("out", false, program, "--data fake --host-devices 2 --devices 1,1"), 1);
    EXPECT_HAS(log(), "need two devices, got cpu:1 twice");
    EXPECT_EQ(run("out", false, program, "--data fake --host-devices 2 --devices 0,2"), 1);
    EXPECT_HAS(log(), "[cpu:2]");
  }
}

}  // namespace
}  // namespace weft
