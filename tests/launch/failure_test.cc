// What is said of the ranks' last operations, and the JSON file about them.
#include "weft/launch/failure.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::launch {
namespace {

constexpr std::int64_t kMs = 1'000'000, kFailedAt = 1'000 * kMs;

enum class State { ended, failed, running };

/// A collective that has begun `number` ms after time 0.
LastOperation operation(int rank, std::int64_t number, State state = State::ended,
                        const std::string& group = "ranks 0-1") {
  LastOperation made;
  made.name = "all_reduce";
  made.group = group;
  made.tag = "bucket " + std::to_string(number % 2);
  made.dtype = "f32";
  made.rank = rank;
  made.number = number;
  made.count = 10;
  made.bytes = 40;
  made.step = 5;
  made.begin_ns = number * kMs;
  made.end_ns = state == State::running ? -1 : made.begin_ns + kMs / 2;
  made.failed = state == State::failed;
  return made;
}

/// Ranks 0, 1 ... with these operations; the last rank was killed.
AttemptResult result_of(const std::vector<std::vector<LastOperation>>& operations) {
  AttemptResult result;
  result.failed_at_ns = kFailedAt;
  for (const auto& of_rank : operations) {
    const int rank = static_cast<int>(result.ranks.size());
    result.ranks.push_back({.rank = rank, .local_rank = rank, .pid = 100 + rank});
    result.ranks.back().operations = of_rank;
  }
  result.ranks.back().wait_status = SIGKILL;
  result.failures = {static_cast<int>(result.ranks.size()) - 1};
  return result;
}

std::string difference_of(const std::vector<std::vector<LastOperation>>& operations) {
  const auto first = first_difference(result_of(operations));
  return first ? first->group + ", " + first->call + ": " + first->why : "";
}

TEST(FirstDifference, IsNoneWhereAllHaveEndedTheSame) {
  EXPECT_EQ(difference_of({{}, {}}), "");
  EXPECT_EQ(difference_of({{operation(0, 1)}, {operation(1, 1)}}), "");
}

TEST(FirstDifference, IsWhatARankHasNotBegunOrNotEnded) {
  const auto at = [](int rank, State state) {
    return std::vector{operation(rank, 1), operation(rank, 2, state)};
  };
  EXPECT_EQ(difference_of({at(0, State::failed), {operation(1, 1)}}),
            "ranks 0-1, all_reduce 2 (bucket 0): rank 1 has not begun it");
  EXPECT_EQ(difference_of({at(0, State::failed), {}}),
            "ranks 0-1, all_reduce 1 (bucket 1): rank 1 has not begun it");
  EXPECT_EQ(difference_of({at(0, State::failed), at(1, State::running)}),
            "ranks 0-1, all_reduce 2 (bucket 0): rank 1 has not ended it");
  EXPECT_EQ(difference_of({at(0, State::running), at(1, State::running)}),
            "ranks 0-1, all_reduce 2 (bucket 0): ranks 0, 1 have not ended it");
  EXPECT_EQ(difference_of({at(0, State::failed), at(1, State::ended)}),
            "ranks 0-1, all_reduce 2 (bucket 0): it failed on rank 0");
}

TEST(FirstDifference, IsWhereCallsDiffer) {
  LastOperation other = operation(1, 2, State::failed);
  other.count = 11;
  EXPECT_EQ(
      difference_of({{operation(0, 1), operation(0, 2, State::failed)}, {operation(1, 1), other}}),
      "ranks 0-1, all_reduce 2 (bucket 0): rank 0 calls all_reduce 2 (bucket 0) of 10 f32, "
      "rank 1 calls all_reduce 2 (bucket 0) of 11 f32");
}

TEST(FirstDifference, TakesWhatWasOverwrittenAsEnded) {
  std::vector<LastOperation> many;
  for (int i = 45; i <= 300; ++i) many.push_back(operation(1, i));
  std::vector<LastOperation> all;
  for (int i = 1; i <= 300; ++i) all.push_back(operation(0, i));
  EXPECT_EQ(difference_of({all, many}), "");
  all.push_back(operation(0, 301, State::running));
  EXPECT_EQ(difference_of({all, many}),
            "ranks 0-1, all_reduce 301 (bucket 1): rank 1 has not begun it");
  // A full box in which the group no longer is says nothing about it.
  for (LastOperation& it : many) it.group = "ranks 1-2";
  EXPECT_EQ(difference_of({{operation(0, 1)}, many}), "");
}

TEST(FirstDifference, IsOfTheGroupThatDiffersFirst) {
  const std::string both = "ranks 0-1 #2";
  EXPECT_EQ(difference_of({{operation(0, 1, State::running), operation(0, 7, State::running, both)},
                           {operation(1, 7, State::running, both)}}),
            "ranks 0-1, all_reduce 1 (bucket 1): rank 1 has not begun it");
  EXPECT_EQ(difference_of({{operation(0, 9, State::running), operation(0, 7, State::running, both)},
                           {operation(1, 7, State::running, both)}}),
            "ranks 0-1 #2, all_reduce 7 (bucket 1): ranks 0, 1 have not ended it");
}

// Rank 1 has failed in the first one, and has come back.
TEST(FirstDifference, IsOfTheLastGeneration) {
  const std::string without = "generation 1: ranks 0, 2", again = "generation 12: ranks 0-2";
  const std::vector<LastOperation> first = {operation(0, 1, State::failed),
                                            operation(0, 1, State::ended, without)},
                                   third = {operation(2, 1, State::failed),
                                            operation(2, 1, State::failed, without)};
  EXPECT_EQ(difference_of({first, {}, third}),
            "generation 1: ranks 0, 2, all_reduce 1 (bucket 1): it failed on rank 2");
  const auto and_again = [&](std::vector<LastOperation> before, int rank) {
    before.push_back(operation(rank, 1, State::running, again));
    return before;
  };
  EXPECT_EQ(difference_of({and_again(first, 0), and_again({}, 1), third}),
            "generation 12: ranks 0-2, all_reduce 1 (bucket 1): rank 2 has not begun it");
}

TEST(FirstDifference, LeavesOutRanksOfOtherGroupsAndNodes) {
  // Rank 1 is not in the group, rank 5 not on this node.
  EXPECT_EQ(difference_of({{operation(0, 1, State::ended, "ranks 0, 2, 5")},
                           {},
                           {operation(2, 1, State::ended, "ranks 0, 2, 5")}}),
            "");
  EXPECT_EQ(difference_of({{operation(0, 1, State::ended, "ranks 0, 2-5")}, {}, {}}),
            "ranks 0, 2-5, all_reduce 1 (bucket 1): rank 2 has not begun it");
  LastOperation send = operation(0, 1, State::running);
  send.peer = 1;
  EXPECT_EQ(difference_of({{send}, {}}), "");
}

TEST(LastOperations, AreThoseAroundTheDifference) {
  LastOperation layer = operation(0, 4, State::failed);
  layer.module = "layer1.0";
  layer.end_ns = layer.begin_ns + 12 * kMs + kMs / 10;
  const AttemptResult result =
      result_of({{operation(0, 1), operation(0, 2), operation(0, 3), layer},
                 {operation(1, 2), operation(1, 3), operation(1, 4, State::running)}});
  EXPECT_EQ(last_operations(result),
            "| ranks 0-1 differ first at all_reduce 4 (bucket 0): rank 1 has not ended it\n"
            "|   rank 0: all_reduce 3 (bucket 1) of 10 f32 at step 5: took 0.5 ms\n"
            "|   rank 0: all_reduce 4 (bucket 0) of 10 f32 at step 5 in layer1.0: failed after "
            "12.1 ms\n"
            "|   rank 1: all_reduce 3 (bucket 1) of 10 f32 at step 5: took 0.5 ms\n"
            "|   rank 1: all_reduce 4 (bucket 0) of 10 f32 at step 5: since 996.0 ms\n");
  EXPECT_HAS(failure_box(result, last_operations(result)), "since 996.0 ms\n+---");
}

TEST(LastOperations, SayWhoHasNotBegunAndWhatElseARankDoes) {
  LastOperation send = operation(1, 9, State::running, "ranks 1, 3");
  send.name = "send";
  send.peer = 3;
  send.tag = "";
  send.begin_ns = kFailedAt - 3200 * kMs;
  const AttemptResult result =
      result_of({{operation(0, 1), operation(0, 2, State::running)}, {operation(1, 1), send}});
  EXPECT_EQ(last_operations(result),
            "| ranks 0-1 differ first at all_reduce 2 (bucket 0): rank 1 has not begun it\n"
            "|   rank 0: all_reduce 1 (bucket 1) of 10 f32 at step 5: took 0.5 ms\n"
            "|   rank 0: all_reduce 2 (bucket 0) of 10 f32 at step 5: since 998.0 ms\n"
            "|   rank 1: has not begun all_reduce 2 (bucket 0)\n"
            "|   rank 1: all_reduce 1 (bucket 1) of 10 f32 at step 5: took 0.5 ms\n"
            "|   rank 1: send with rank 3 9 of 10 f32 at step 5: since 3.2 s, of ranks 1, 3\n");
}

TEST(LastOperations, WithoutADifferenceAreTheLast) {
  EXPECT_EQ(last_operations(result_of({{}, {}})), "");
  EXPECT_EQ(last_operations(result_of(
                {{operation(0, 1), operation(0, 2)}, {operation(1, 1), operation(1, 2)}})),
            "| their last operations between ranks:\n"
            "|   rank 0: all_reduce 2 (bucket 0) of 10 f32 at step 5: took 0.5 ms\n"
            "|   rank 1: all_reduce 2 (bucket 0) of 10 f32 at step 5: took 0.5 ms\n");
}

TEST(LastOperations, OfManyRanksAreThoseOfTheMostBackward) {
  std::vector<std::vector<LastOperation>> operations;
  for (int rank = 0; rank < 20; ++rank) {
    operations.push_back({operation(rank, 1, State::failed, "ranks 0-19")});
  }
  operations[17] = {};
  operations[19] = {operation(19, 1, State::running, "ranks 0-19")};
  const std::string text = last_operations(result_of(operations));
  EXPECT_HAS(text, "rank 17 has not begun it\n");
  EXPECT_HAS(text, "|   rank 17: has not begun all_reduce 1 (bucket 1)\n");
  EXPECT_HAS(text, "|   rank 19: all_reduce 1");
  EXPECT_HAS(text, "|   rank 5: all_reduce 1");
  EXPECT_LACKS(text, "|   rank 6:");
  EXPECT_TRUE(text.ends_with("|   and of 12 more\n")) << text;
}

TEST(Failure, HoldsEveryRank) {
  const testing::TempFolder folder;
  AttemptResult result = result_of({{operation(0, 1), operation(0, 2, State::failed)},
                                    {operation(1, 1), operation(1, 2, State::running)}});
  result.ranks[1].phase = "backward during all_reduce 2 (bucket 0)";
  result.ranks[1].step = 5;
  DeviceMemory memory{.device = Device("cpu:1"), .limit = 4096};
  memory.in_use[static_cast<std::size_t>(MemoryOwner::parameters)] = 1024;
  result.ranks[1].memory = {memory};
  result.ranks[0].operations[1].tag = "not UTF-8: \xff";
  write_failure(folder.path("f.json"), result, {"./p", "--x"}, 6);
  EXPECT_EQ(folder.files(), 1);
  const auto json = nlohmann::json::parse(testing::read_file(folder.path("f.json")));
  EXPECT_EQ(json["command"], (std::vector<std::string>{"./p", "--x"}));
  EXPECT_EQ(json["world_size"], 6);
  EXPECT_EQ(json["status"], 137);
  EXPECT_EQ(json["first_failure"], 1);
  EXPECT_EQ(json["first_difference"]["number"], 2);
  EXPECT_EQ(json["first_difference"]["group"], "ranks 0-1");
  const auto& dead = json["ranks"][1];
  EXPECT_EQ(dead["phase"], "backward during all_reduce 2 (bucket 0)");
  EXPECT_EQ(dead["step"], 5);
  EXPECT_EQ(dead["memory"][0]["device"], "cpu:1");
  EXPECT_EQ(dead["memory"][0]["limit"], 4096);
  EXPECT_EQ(dead["memory"][0]["in_use"], (nlohmann::json{{"parameters", 1024}}));
  ASSERT_EQ(dead["operations"].size(), 2u);
  const auto& running = dead["operations"][1];
  EXPECT_EQ(running["name"], "all_reduce");
  EXPECT_EQ(running["number"], 2);
  EXPECT_EQ(running["state"], "running");
  EXPECT_TRUE(running["peer"].is_null());
  EXPECT_TRUE(running["end"].is_null());
  EXPECT_NEAR(running["begin"].get<double>(), -0.998, 1e-12);  // a rounding of seconds
  EXPECT_NEAR(dead["operations"][0]["end"].get<double>(), -0.9985, 1e-12);
  EXPECT_EQ(dead["operations"][0]["state"], "ended");
  EXPECT_EQ(json["ranks"][0]["operations"][1]["state"], "failed");
  EXPECT_TRUE(json["ranks"][0]["step"].is_null());
  EXPECT_WEFT_ERROR(write_failure(folder.path("no/f.json"), result, {}, 1), Io, "no/f.json");
}

TEST(ReadBlackBox, TakesWhatIsThere) {
  const auto memory = std::make_unique<BlackBox>();
  BlackBox& box = *memory;
  RankResult rank;
  read_black_box(box, rank);
  EXPECT_TRUE(rank.operations.empty());
  EXPECT_TRUE(rank.memory.empty());
  box.set_phase(box.id_of("backward"));
  const auto handle = box.begin({.number = 3,
                                 .count = 10,
                                 .name = box.id_of("all_gather"),
                                 .group = box.id_of("ranks 0-1"),
                                 .tag = box.id_of("unit"),
                                 .module = box.id_of("layer"),
                                 .dtype = static_cast<std::int32_t>(DType::bf16)});
  box.end(handle, true);
  box.begin({.number = 4, .dtype = 99});
  box.memory(Device("cuda:63")).in_use[1] = 5;
  read_black_box(box, rank);
  box.memory(Device("cuda:63")).in_use[1] = 7;  // what was there first stays
  read_black_box(box, rank);
  ASSERT_EQ(rank.operations.size(), 2u);
  EXPECT_EQ(rank.operations[0].name, "all_gather");
  EXPECT_EQ(rank.operations[0].group, "ranks 0-1");
  EXPECT_EQ(rank.operations[0].tag, "unit");
  EXPECT_EQ(rank.operations[0].module, "layer");
  EXPECT_EQ(rank.operations[0].phase, "backward");
  EXPECT_EQ(rank.operations[0].dtype, "bf16");
  EXPECT_TRUE(rank.operations[0].failed);
  EXPECT_EQ(rank.operations[1].dtype, "");
  EXPECT_FALSE(rank.operations[1].ended());
  ASSERT_EQ(rank.memory.size(), 1u);
  EXPECT_EQ(rank.memory[0].device, Device("cuda:63"));
  EXPECT_EQ(rank.memory[0].in_use[1], 5);
}

}  // namespace
}  // namespace weft::launch
