// The scaling benchmark's report about memory, and its command line.
#include "weft/benchmarks/scaling.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

// Uses the kernels that a fixed rule chooses, since the sum by hand is for their layouts. Timing,
// above all in slow checked builds, may choose others, which copy or need scratch memory.
double peak(std::int64_t batch) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  return static_cast<double>(autoencoder_cost(batch, 0).peak_bytes);
}

TEST(Scaling, TheAutoencodersPeakIsTheSumByHand) {
  for (const std::int64_t batch : {1, 32, 96}) {
    const auto by_hand = static_cast<double>(autoencoder_memory(batch).total());
    EXPECT_NEAR(peak(batch) / by_hand, 1, 0.1) << "batch " << batch;
  }
}

TEST(Scaling, MemoryIsLinearInTheBatch) {
  // From 65 images on the peak is at the same moment of the step, and each image adds the same
  // memory.
  const double small = peak(72), middle = peak(96), large = peak(144);
  EXPECT_NEAR((large - middle) / (middle - small), 2, 0.02);
  // Below, the peak is at another moment; parameters and their moments are most of it.
  EXPECT_NEAR((peak(9) - peak(3)) / (peak(3) - peak(1)), 3, 0.1);
  EXPECT_LT(peak(2) - peak(1), 0.02 * peak(1));
}

TEST(Scaling, SumByHand) {
  const MemorySum sum = autoencoder_memory(32);
  EXPECT_EQ(sum.parameters, 4 * 2'405'633);
  EXPECT_EQ(sum.moments, 2 * sum.parameters);
  EXPECT_LT(sum.gradients, sum.parameters);
  EXPECT_EQ(sum.batch, 32 * 784 * 4);
  EXPECT_LT(autoencoder_memory(512).gradients, sum.gradients);  // the peak is at another moment
}

TEST(Scaling, RefusesWhatThereIsNot) {
  EXPECT_WEFT_ERROR(autoencoder_cost(0, 0), InvalidArgument, "batch: got 0");
  EXPECT_WEFT_ERROR(resnet_cost(20, 0), InvalidArgument, "depth: got 20");
}

TEST(Bench, WorksWithoutAListOfKernelsAreMeasured) {
  testing::TempFolder folder;
  const std::string log = folder.path("log"), out = folder.path("out.json");
  const std::string command =
      "WEFT_CACHE=off benchmarks/bench --tiny --pairs 2 --floor --work transformer "
      "transformer-infer --out " +
      out + " >" + log + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << testing::read_file(log);
  const auto result = nlohmann::json::parse(testing::read_file(out));
  ASSERT_EQ(result["rows"].size(), 2U);
  for (const auto& row : result["rows"]) {
    EXPECT_GT(row["weft_ms"]["median"], 0) << row;
    EXPECT_GT(row["weft_first_ms"], row["weft_choosing_ms"]) << row;
    EXPECT_FALSE(row.contains("floor")) << row;
  }
  EXPECT_GT(result["rows"][0]["weft_choosing_ms"], 0);
  // Without a tape nothing is kept for backward, and there are no moments.
  EXPECT_LT(2 * result["rows"][1]["weft_peak_bytes"].get<double>(),
            result["rows"][0]["weft_peak_bytes"].get<double>());
}

TEST(Bench, WrongFlagsGetOneLine) {
  testing::TempFolder folder;
  const std::string log = folder.path("log");
  for (const char* flags :
       {"--scalin", "--scaling --floor", "--scaling --pairs 3", "--threads 0",
        "--scaling --work mlp", "--pairs", "--loader --scaling", "--loader --work mlp",
        "--loader --compile", "--loader --ieee", "--loader --threads 2", "--loader --device cpu"}) {
    const std::string command = std::string("benchmarks/bench ") + flags + " >" + log + " 2>&1";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << command;
    EXPECT_EQ(WEXITSTATUS(status), 2) << command;
    const std::string text = testing::read_file(log);
    EXPECT_TRUE(text.starts_with("bench: ")) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

}  // namespace
}  // namespace weft::bench
