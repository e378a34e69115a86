// Steps of DDP found in traces made by hand.
#include "weft/tools/picture/bucket_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::picture {
namespace {

using nlohmann::json;

// The spans of one rank in one step; times in milliseconds.
class Spans {
 public:
  Spans(json& events, int rank, int step, double begin)
      : events_(events), rank_(rank), step_(step), begin_(begin) {}

  void add(const char* category, const char* name, double from, double to, json args = {}) {
    args["step"] = step_;
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", rank_},
                       {"tid", 0},
                       {"ts", (begin_ + from) * 1000},
                       {"dur", (to - from) * 1000},
                       {"args", args}});
  }
  void add_bucket(int bucket, int bytes, double sent, double from, double to) {
    add("ddp", "send bucket", sent, sent + 0.5, {{"bucket", bucket}, {"bytes", bytes}});
    const std::string module = "encoder.bucket " + std::to_string(bucket);
    add("comm", "all_reduce", from, to, {{"module", module}, {"bytes", bytes}});
  }
  void add_step(double length) {
    add("forward", "Linear", 1, 5);
    add("forward", "Sequential", 0, 10);
    add("backward", "linear", 10, 20);
    add_bucket(0, 100, 20, 21, 25);
    add("backward", "linear", 20, 28);
    add_bucket(1, 200, 28, 29, 37);
    add("ddp", "wait for buckets", 30, 38);
    add("phase", "backward", 10, 40);
    add("comm", "all_gather_object", 40, 41);
    add("optim", "step", 41, length);
  }

 private:
  json& events_;
  const int rank_, step_;
  const double begin_;
};

class BucketTimeline : public ::testing::Test {
 protected:
  std::string file() const {
    const std::string path = folder.path("trace.json");
    testing::write_file(path, json{{"traceEvents", events}}.dump());
    return path;
  }
  void add_steps(const std::vector<double>& lengths) {
    for (int rank = 0; rank < 2; ++rank) {
      double begin = 1000;
      for (std::size_t step = 0; step < lengths.size(); ++step) {
        // Rank 1 is a little later.
        Spans(events, rank, static_cast<int>(step), begin + 2 * rank).add_step(lengths[step]);
        begin += lengths[step];
      }
    }
  }
  testing::TempFolder folder;
  json events = json::array();
};

TEST_F(BucketTimeline, TimesCountFromTheFirstRanksForward) {
  add_steps({50});
  const StepTimes times = read_step(file());
  EXPECT_EQ(times.step, 0);
  ASSERT_EQ(times.ranks.size(), 2U);
  EXPECT_NEAR(times.end(), 52, 1e-9);
  for (const int r : {0, 1}) {
    const RankTimes& rank = times.ranks[static_cast<std::size_t>(r)];
    const double late = 2 * r;
    EXPECT_NEAR(rank.forward.begin, late, 1e-9);
    EXPECT_NEAR(rank.forward.end, late + 10, 1e-9) << "the outermost";
    EXPECT_NEAR(rank.backward.end, late + 40, 1e-9);
    EXPECT_EQ(rank.rules.size(), 2U);
    EXPECT_NEAR(rank.waiting.begin, late + 30, 1e-9);
    EXPECT_NEAR(rank.optimizer.begin, late + 41, 1e-9);
    ASSERT_EQ(rank.buckets.size(), 2U);
    EXPECT_EQ(rank.buckets[1].bytes, 200);
    EXPECT_NEAR(rank.buckets[1].sent, late + 28, 1e-9);
    EXPECT_NEAR(rank.buckets[1].reduction.begin, late + 29, 1e-9);
    EXPECT_NEAR(rank.buckets[1].reduction.end, late + 37, 1e-9);
  }
}

TEST_F(BucketTimeline, TheStepIsThatOfMedianLengthOrTheOneAskedFor) {
  add_steps({90, 51, 70, 52, 60});
  EXPECT_EQ(read_step(file()).step, 4);
  EXPECT_EQ(read_step(file(), 3).step, 3);
}

TEST_F(BucketTimeline, StepsWithOtherBucketsOrWithoutARankAreLeftOut) {
  for (int rank = 0; rank < 2; ++rank) {
    Spans first(events, rank, 0, 0);  // one bucket for all, as in the first backward
    first.add("forward", "Sequential", 0, 10);
    first.add_bucket(0, 300, 28, 29, 37);
    first.add("phase", "backward", 10, 40);
    first.add("optim", "step", 41, 60);
    Spans(events, rank, 1, 100).add_step(50);
    if (rank == 1) Spans(events, rank, 2, 200).add_step(55);
  }
  EXPECT_EQ(read_step(file()).step, 1);
  EXPECT_EQ(read_step(file(), 0).ranks[0].buckets.size(), 1U);
  EXPECT_WEFT_ERROR(read_step(file(), 2), InvalidArgument, "has no whole step 2 of");
}

TEST_F(BucketTimeline, WhatIsNoTraceIsAnError) {
  EXPECT_WEFT_ERROR(read_step(folder.path("nowhere")), Io, "nowhere cannot be read");
  testing::write_file(folder.path("text"), "{]");
  EXPECT_WEFT_ERROR(read_step(folder.path("text")), Io,
                    "text is no trace that --trace wrote: no JSON at byte 2");
  EXPECT_WEFT_ERROR(read_step(file()), InvalidArgument, "has no whole step of");
}

// In words of weft's and with the file's name, whatever is missing or of another type.
TEST_F(BucketTimeline, ABrokenTraceIsSaidToBe) {
  const std::string broken = folder.path("trace.json") + " is no trace that --trace wrote: ";
  const auto refuses = [&](const std::string& why) {
    EXPECT_WEFT_ERROR(read_step(file()), Io, broken + why);
  };
  add_steps({50});
  const json whole = events;
  const auto send = static_cast<std::size_t>(
      std::ranges::find(events, "send bucket", [](const json& e) { return e["name"]; }) -
      events.begin());
  for (const std::string key : {"ts", "dur", "cat", "name", "pid"}) {
    events = whole;
    events[send].erase(key);
    refuses("a '" + key + "' is missing in it");
    events[send][key] = json::array();
    refuses("something in it is not of the type that belongs there");
  }
  for (const std::string key : {"bucket", "bytes"}) {
    events = whole;
    events[send]["args"].erase(key);
    refuses("a '" + key + "' is missing in it");
    events[send]["args"][key] = "many";
    refuses("something in it is not of the type that belongs there");
  }
  events = "none";
  refuses("something in it is not of the type");
  events = whole;
  events[send]["ts"] = -1;
  EXPECT_WEFT_ERROR(read_step(file()), Io, "a span begins at -1 us and lasts 500 us");
  EXPECT_WEFT_ERROR(read_step(file()), Io, " in " + folder.path("trace.json"));
  const std::string text = json{{"traceEvents", whole}}.dump();
  for (const std::size_t bytes : {text.size() - 1, text.size() / 2, std::size_t{1}}) {
    testing::write_file(folder.path("cut.json"), text.substr(0, bytes));
    EXPECT_WEFT_ERROR(read_step(folder.path("cut.json")), Io,
                      "cut.json is no trace that --trace wrote: no JSON at byte ");
  }
  testing::write_file(folder.path("large.json"), R"({"traceEvents": [1e999]})");
  EXPECT_WEFT_ERROR(read_step(folder.path("large.json")), Io, "a number in it is too large");
  // Not one of DDP's buckets.
  events = whole;
  for (json& event : events) {
    if (event["cat"] == "comm") event["args"]["module"] = "bucket seven";
  }
  EXPECT_WEFT_ERROR(read_step(file()), InvalidArgument, "has no whole step");
}

TEST_F(BucketTimeline, ThePictureHasABarForEachBucketOfEachRank) {
  add_steps({50});
  const StepTimes times = read_step(file());
  StepTimes without = times;
  for (RankTimes& rank : without.ranks) rank.buckets[1].bytes = rank.buckets[0].bytes = 1;
  for (RankTimes& rank : without.ranks) rank.buckets.pop_back();
  const io::Image all = bucket_picture(times), fewer = bucket_picture(without);
  EXPECT_EQ(all.width, fewer.width);
  EXPECT_NE(all.pixels, fewer.pixels);
}

}  // namespace
}  // namespace weft::picture
