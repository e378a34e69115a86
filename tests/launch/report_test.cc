// The rank that failed first, the box, the JSON file, and the files that programs leave.
#include "weft/launch/report.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::launch {
namespace {

RankResult rank(int number, int wait_status, const std::string& code = {}) {
  RankResult result{.rank = number, .local_rank = number, .pid = 100 + number};
  result.wait_status = wait_status;
  if (!code.empty()) result.error = ProgramError{.code = code, .message = "[ring] lost"};
  return result;
}

TEST(ErrorFile, TellsWhatItHolds) {
  const testing::TempFolder folder;
  const std::string path = folder.path("error.json");
  EXPECT_FALSE(read_error_file(path));
  testing::write_file(path, R"({"code": "Shape", "message": "[conv2d] got 3"})");
  auto error = read_error_file(path);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "Shape");
  EXPECT_EQ(error->message, "[conv2d] got 3");
  EXPECT_EQ(error->phase, "");
  EXPECT_EQ(error->step, -1);
  testing::write_file(path, R"({"code": "Io", "message": "m", "phase": "save", "step": 41})");
  error = read_error_file(path);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->phase, "save");
  EXPECT_EQ(error->step, 41);
  testing::write_file(path, R"({"code": "Io", "message": "m", "phase": 3, "step": "x"})");
  error = read_error_file(path);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->phase, "");
  EXPECT_EQ(error->step, -1);
}

TEST(ErrorFile, AnythingElseIsNone) {
  const testing::TempFolder folder;
  const std::string path = folder.path("error.json");
  for (const char* text : {"", "{", "[]", "3", R"({"code": "Io"})", R"({"code": 3, "message": ""})",
                           R"({"code": "Io", "message": "half)"}) {
    testing::write_file(path, text);
    EXPECT_FALSE(read_error_file(path)) << text;
  }
}

TEST(FirstFailure, IsTheEarliestThatFollowsNoOther) {
  AttemptResult result;
  EXPECT_EQ(result.first_failure(), nullptr);
  EXPECT_EQ(result.status(), 0);
  result.ranks = {rank(0, W_EXITCODE(1, 0), "PeerFailed"), rank(1, W_EXITCODE(3, 0), "Shape"),
                  rank(2, SIGKILL), rank(3, 0)};
  result.failures = {0, 2, 1};
  EXPECT_EQ(result.first_failure(), &result.ranks[2]);
  EXPECT_EQ(result.status(), 128 + SIGKILL);
  result.failures = {1, 0, 2};
  EXPECT_EQ(result.first_failure(), &result.ranks[1]);
  EXPECT_EQ(result.status(), 3);
  result.failures = {0};
  EXPECT_EQ(result.first_failure(), &result.ranks[0]);
  EXPECT_EQ(result.status(), 1);
  // The failure that caused this one is on another node.
  result.other_status = 9;
  EXPECT_EQ(result.status(), 9);
  result.failures = {1};
  EXPECT_EQ(result.status(), 3);
  result.signal = SIGINT;
  EXPECT_EQ(result.status(), 130);
}

// Ranks 0 and 2 waited until they gave up, which ended rank 3.
AttemptResult timeouts(const std::string& seen_by_0, const std::string& seen_by_2) {
  AttemptResult result;
  result.ranks = {rank(0, W_EXITCODE(1, 0), "Timeout"), rank(1, SIGTERM),
                  rank(2, W_EXITCODE(1, 0), "Timeout"), rank(3, W_EXITCODE(1, 0), "PeerFailed"),
                  rank(11, SIGTERM)};
  result.ranks[0].error->message = seen_by_0;
  result.ranks[2].error->message = seen_by_2;
  for (const int told : {1, 4}) result.ranks[told].told_to_end = true;
  result.failures = {3, 2, 0};
  return result;
}

TEST(Unresponsive, IsWhomAllTimeoutsName) {
  const std::string one = "[shm] rank 1 has not come", both = "ranks 1, 11 have not come",
                    other = "[ring] rank 11 has sent 0 bytes";
  const AttemptResult result = timeouts(one, both);
  EXPECT_EQ(result.unresponsive(), &result.ranks[1]);
  EXPECT_EQ(result.first_failure(), &result.ranks[2]);
  EXPECT_EQ(result.status(), 1);  // the status of the rank that reported it
  const AttemptResult eleven = timeouts(other, both);
  EXPECT_EQ(eleven.unresponsive(), &eleven.ranks[4]);
  EXPECT_EQ(timeouts(one, other).unresponsive(), nullptr);
  EXPECT_EQ(timeouts(both, both).unresponsive(), nullptr);
  std::string many = "[shm] ranks 0";
  for (int i = 1; i < 100'000; ++i) many += ", " + std::to_string(i);
  const AttemptResult all = timeouts(many, one);
  EXPECT_EQ(all.unresponsive(), &all.ranks[1]);
  AttemptResult ended = timeouts(one, one);
  ended.ranks[1].told_to_end = false;
  EXPECT_EQ(ended.unresponsive(), nullptr);
}

TEST(Unresponsive, IsWhoWasStoppedWhenOthersTimedOut) {
  AttemptResult result = timeouts("not done in time", "not done in time");
  EXPECT_EQ(result.unresponsive(), nullptr);
  result.ranks[4].stopped = true;
  EXPECT_EQ(result.unresponsive(), &result.ranks[4]);
  result.ranks[2].error->code = "Shape";
  EXPECT_EQ(result.unresponsive(), nullptr);
}

TEST(Unresponsive, IsInBoxAndReport) {
  AttemptResult result = timeouts("rank 1", "[shm] rank 1 has not come");
  result.ranks[1].stopped = true;
  result.ranks[1].seconds = 20;
  result.ranks[1].phase = "backward during all_reduce 3";
  result.ranks[1].step = 5;
  result.ranks[1].last_lines = {"one"};
  EXPECT_EQ(failure_box(result),
            "+-- rank 1 did not respond ---------------------------------------------------\n"
            "| local rank 1 on " +
                host_name() +
                ", pid 101, after 20.0 s\n"
                "| rank 1 did not respond (stopped) in backward during all_reduce 3 at step 5\n"
                "| as rank 2 saw it: exit status 1, Timeout: [shm] rank 1 has not come\n"
                "| its last lines on stderr:\n"
                "|   one\n"
                "+-----------------------------------------------------------------------------");
  result.ranks[1].stopped = false;
  EXPECT_HAS(failure_box(result), "\n| rank 1 did not respond (hung) in backward");
  const testing::TempFolder folder;
  write_report(folder.path("r.json"), result, {"./p"}, 5, 0);
  const auto json = nlohmann::json::parse(testing::read_file(folder.path("r.json")));
  EXPECT_EQ(json["first_failure"], 1);
  EXPECT_EQ(json["status"], 1);
  EXPECT_EQ(json["ranks"][1]["stopped"], false);
}

TEST(FailureBox, SaysWhoWhereAndWhy) {
  EXPECT_EQ(failure_box({}), "");
  AttemptResult result;
  result.ranks = {rank(0, 0), rank(2, W_EXITCODE(3, 0), "Comm")};
  result.failures = {1};
  RankResult& failed = result.ranks[1];
  failed.local_rank = 1;
  failed.seconds = 12.34;
  failed.phase = "all_reduce";
  failed.step = 41;
  failed.last_lines = {"one", "two"};
  EXPECT_EQ(failure_box(result),
            "+-- rank 2 failed first ------------------------------------------------------\n"
            "| local rank 1 on " +
                host_name() +
                ", pid 102, after 12.3 s\n"
                "| exit status 3, Comm in all_reduce at step 41: [ring] lost\n"
                "| its last lines on stderr:\n"
                "|   one\n"
                "|   two\n"
                "+-----------------------------------------------------------------------------");
}

TEST(Describe, SaysWhoElseMayHaveKilled) {
  EXPECT_EQ(describe(rank(0, SIGKILL)),
            "killed by signal 9 (SIGKILL); if nobody sent it, the machine ran out of memory "
            "(see dmesg)");
  RankResult failed = rank(0, SIGSEGV);
  EXPECT_EQ(describe(failed), "killed by signal 11 (SIGSEGV)");
  failed.phase = "backward during all_reduce 3";
  failed.step = 5;
  EXPECT_EQ(describe(failed),
            "killed by signal 11 (SIGSEGV) in backward during all_reduce 3 at step 5");
}

TEST(Report, HoldsEveryRank) {
  const testing::TempFolder folder;
  AttemptResult result;
  result.ranks = {rank(0, W_EXITCODE(1, 0), "PeerFailed"), rank(1, SIGKILL), rank(2, SIGTERM)};
  result.ranks[0].seconds = 2.5;
  result.ranks[0].seconds_after_failure = 0.5;
  result.ranks[0].error->message = "not UTF-8: \xff";
  result.ranks[0].step = 7;
  result.ranks[2].told_to_end = true;
  result.failures = {1, 0};
  write_report(folder.path("r.json"), result, {"./p", "--x"}, 6, 2);
  EXPECT_EQ(folder.files(), 1);
  const auto json = nlohmann::json::parse(testing::read_file(folder.path("r.json")));
  EXPECT_EQ(json["command"], (std::vector<std::string>{"./p", "--x"}));
  EXPECT_EQ(json["host"], host_name());
  EXPECT_EQ(json["world_size"], 6);
  EXPECT_EQ(json["status"], 137);
  EXPECT_EQ(json["signal"], 0);
  EXPECT_EQ(json["restarts"], 2);
  EXPECT_EQ(json["first_failure"], 1);
  EXPECT_TRUE(json["other_failure"].is_null());
  ASSERT_EQ(json["ranks"].size(), 3u);
  const auto& follower = json["ranks"][0];
  EXPECT_EQ(follower["pid"], 100);
  EXPECT_EQ(follower["status"], 1);
  EXPECT_EQ(follower["code"], "PeerFailed");
  EXPECT_EQ(follower["step"], 7);
  EXPECT_TRUE(follower["phase"].is_null());
  EXPECT_EQ(follower["seconds"], 2.5);
  EXPECT_EQ(follower["seconds_after_failure"], 0.5);
  EXPECT_EQ(json["ranks"][1]["status"], 137);
  EXPECT_EQ(json["ranks"][1]["signal"], 9);
  EXPECT_TRUE(json["ranks"][1]["code"].is_null());
  EXPECT_TRUE(json["ranks"][1]["seconds_after_failure"].is_null());
  EXPECT_EQ(json["ranks"][2]["told_to_end"], true);
  EXPECT_WEFT_ERROR(write_report(folder.path("no/r.json"), result, {}, 1, 0), Io, "no/r.json");
}

}  // namespace
}  // namespace weft::launch
