// For which ranks a slow operation waits.
#include "weft/comm/group/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <vector>

#include "weft/comm/store/member.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::comm {
namespace {

Members members_of(int size) {
  Members members{.rank = 0, .ranks = std::vector<int>(static_cast<std::size_t>(size))};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  return members;
}

TEST(ProgressTest, CallsAreNamedWithTagStepAndModule) {
  const PathScope layer("layer3");
  const PathScope conv("conv1");
  const Call call{
      .name = "all_reduce", .number = 17, .tag = "bucket 2", .step = 41, .path = interned_path()};
  EXPECT_EQ(to_string(call), "all_reduce 17 (bucket 2)");
  EXPECT_EQ(place_of(call), " at step 41 in layer3.conv1");
  EXPECT_EQ(to_string(Call{"barrier", 1}) + place_of({"barrier", 1}), "barrier 1");
}

TEST(ProgressTest, NamesTheRanksThatHaveNotBegun) {
  MemoryStore store;
  const Members members = members_of(4);
  publish_progress(store, 1, {.name = "all_reduce", .number = 17, .tag = "bucket 2", .step = 41});
  publish_progress(store, 2, {.name = "all_reduce", .number = 16, .tag = "bucket 1", .step = 40});
  EXPECT_EQ(absent_ranks(store, members, 17),
            "rank 2, last seen in all_reduce 16 (bucket 1) at step 40, and rank 3, not seen yet");
  EXPECT_EQ(absent_ranks(store, members, 16), "rank 3, not seen yet");
  publish_progress(store, 3, {"broadcast", 18});
  publish_progress(store, 2, {.name = "all_reduce", .number = 17, .tag = "bucket 2", .step = 41});
  EXPECT_EQ(absent_ranks(store, members, 17), "");
}

TEST(ProgressTest, SaysWhatARankHasBeenBusyWith) {
  MemoryStore store;
  publish_progress(store, 1, {.name = "all_reduce", .number = 16, .step = 40}, "save");
  publish_progress(store, 2, {}, "evaluation");
  EXPECT_EQ(absent_ranks(store, members_of(3), 17),
            "rank 1, last seen in save after all_reduce 16 at step 40, and rank 2, last seen in "
            "evaluation");
  EXPECT_EQ(absent_ranks(store, members_of(2), 16), "");
}

TEST(ProgressTest, NamesARankThatLeft) {
  MemoryStore store;
  const Members members{.rank = 0, .ranks = {3, 5, 6}};
  publish_progress(store, 1, {"all_reduce", 16});
  EXPECT_EQ(rank_that_left(store, members, 17), "");
  publish_leave(store, 2, {.name = "all_reduce", .number = 16, .tag = "bucket 1", .step = 40});
  EXPECT_EQ(rank_that_left(store, members, 17),
            "rank 6 left the group after all_reduce 16 (bucket 1) at step 40; all ranks must make "
            "the same calls");
  EXPECT_EQ(rank_that_left(store, members, 16), "") << "it has taken part";
  EXPECT_EQ(absent_ranks(store, members, 17),
            "rank 5, last seen in all_reduce 16, and rank 6, which left the group after all_reduce "
            "16 (bucket 1) at step 40");
  publish_leave(store, 1, {});
  EXPECT_EQ(rank_that_left(store, members, 17),
            "rank 5 left the group; all ranks must make the same calls");
}

TEST(ProgressTest, CallsRanksByTheirNumbersInTheRun) {
  MemoryStore store;
  EXPECT_EQ(absent_ranks(store, {.rank = 0, .ranks = {3, 5}}, 1), "rank 5, not seen yet");
}

TEST(ProgressTest, OfManyRanksNamesTheFirst) {
  MemoryStore store;
  EXPECT_EQ(absent_ranks(store, members_of(3), 1),
            "rank 1, not seen yet, and rank 2, not seen yet");
  EXPECT_EQ(
      absent_ranks(store, members_of(8), 1),
      "rank 1, not seen yet, rank 2, not seen yet, rank 3, not seen yet, rank 4, not seen yet "
      "and 3 more");
}

TEST(ProgressTest, TimesAreShort) {
  using std::chrono::milliseconds;
  EXPECT_EQ(to_text(milliseconds(10'000)), "10 s");
  EXPECT_EQ(to_text(milliseconds(250)), "250 ms");
  EXPECT_EQ(to_text(milliseconds(1500)), "1500 ms");
}

TEST(ProgressTest, ListsOfRanksAreShort) {
  EXPECT_EQ(list_of({2}), "rank 2");
  EXPECT_EQ(list_of({1, 3}), "ranks 1, 3");
  const std::string many = list_of(members_of(20).ranks);
  EXPECT_TRUE(many.ends_with("14, 15 ... (20)")) << many;
}

}  // namespace
}  // namespace weft::comm
