// The programs that pages of exercises print run the learner's part: of a skeleton they say that it
// is to be written, and with a right solution they do what the page says.
#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <string>
#include <vector>

#include "weft/parallel/schedule.h"

namespace weft {
namespace {

std::string output_of(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return "cannot run " + command;
  std::string text;
  std::array<char, 4096> bytes{};
  while (const std::size_t n = std::fread(bytes.data(), 1, bytes.size(), pipe)) {
    text.append(bytes.data(), n);
  }
  ::pclose(pipe);
  return text;
}

// The skeleton has gone.
bool is_solved(const std::string& exercise) {
  return output_of("learn/" + exercise + "/lab --judge yours").find("solved: ") !=
         std::string::npos;
}

TEST(Programs, DistributedDataParallelGoesRoundTheLearnersRing) {
  if (is_solved("02_ring_allreduce")) GTEST_SKIP() << "solution.cc is solved here";
  const std::string text = output_of("launch/weftrun --nproc-per-node 2 tests/learn/own_ring");
  EXPECT_NE(text.find("in n - 1 steps, send a part to the next rank"), text.npos) << text;
}

TEST(Programs, TheLoaderAsksTheLearnersSampler) {
  if (is_solved("04_distributed_sampler")) GTEST_SKIP() << "solution.cc is solved here";
  const std::string text = output_of("tests/learn/own_sampler");
  EXPECT_NE(text.find("another permutation in each epoch"), text.npos) << text;
}

TEST(Programs, ARightAlgorithmGivesAllRanksTheMean) {
  for (const char* program : {"right_direct", "right_ring", "right_tree", "right_doubling"}) {
    SCOPED_TRACE(program);
    const std::string text =
        output_of(std::string("launch/weftrun --nproc-per-node 3 tests/learn/") + program);
    std::vector<std::string> means;
    for (int rank = 0; rank < 3; ++rank) {
      const std::string begin = "rank " + std::to_string(rank) + ": ";
      const std::size_t at = text.find(begin);
      ASSERT_NE(at, text.npos) << text;
      const std::size_t from = at + begin.size();
      means.push_back(text.substr(from, text.find('\n', from) - from));
    }
    EXPECT_EQ(means[0].find("nan"), means[0].npos) << text;
    EXPECT_EQ(means[0], means[1]) << text;
    EXPECT_EQ(means[0], means[2]) << text;
  }
}

TEST(Programs, ARightSamplerVisitsItsSamples) {
  const std::string text = output_of("tests/learn/right_sampler");
  // randperm(10) of seed 0 is 4 1 7 5 3 9 0 8 6 2: those of rank 1 of 4.
  EXPECT_NE(text.find("[1 9 2]"), text.npos) << text;
}

TEST(Programs, TheScheduleIsTheLearners) {
  if (is_solved("09_schedules")) GTEST_SKIP() << "solution.cc is solved here";
  const std::string text = output_of("tests/learn/own_schedule");
  EXPECT_NE(text.find("one_f_one_b: the warm-up, the turns, and the rest"), text.npos) << text;
}

// (p - 1) / (m + p - 1) of GPipe and 1F1B is 3 / 11.
TEST(Programs, RightSchedulesAreScoredByBubbleAndPeak) {
  const std::string text = output_of("learn/09_schedules/lab --judge right");
  EXPECT_NE(text.find("idle 27.3 %, 27.3 % and 11.1 % of the time, and a stage keeps the "
                      "activations of up to 8, 4 and 4 micro-batches at once"),
            text.npos)
      << text;
}

TEST(Programs, ARightScheduleIsRead) {
  const parallel::Schedule schedule =
      parallel::parse_schedule(output_of("tests/learn/right_schedule"));
  EXPECT_EQ(schedule, parallel::one_f_one_b(2, 4));
  const std::string text = output_of(
      "file=$(mktemp) && tests/learn/right_schedule >$file && tools/schedule/schedule --check "
      "$file; rm -f $file");
  EXPECT_NE(text.find("micro-batches kept at once, by stage: 2 1"), text.npos) << text;
}

}  // namespace
}  // namespace weft
