// Replays of a trace made by hand, whose times under each setting are computed by hand, too; what a
// real step records; and what is refused.
#include "weft/tools/simulate/replay/ddp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tools/simulate/replay/traces.h"

namespace weft::simulator {
namespace {

using nlohmann::json;

constexpr double kBytes = 1e6;  // of each gradient

// The step of a rank: when the gradients of parameters 2, 1 and 0 become ready, and when buckets
// are sent and reduced.
struct Rank {
  std::vector<double> ready;
  std::vector<std::pair<double, double>> buckets;  // sent, reduced
  double end;
};

// Forward begins at 0 and backward at 10.
json trace_of(const std::vector<Rank>& ranks) {
  json events = json::array();
  for (int r = 0; r < std::ssize(ranks); ++r) {
    const Rank& rank = ranks[static_cast<std::size_t>(r)];
    events.push_back(span("forward", "Sequential", r, 0, 10));
    for (int i = 0; i < 3; ++i) {
      const double at = rank.ready[static_cast<std::size_t>(i)];
      events.push_back(
          span("ddp", "gradient", r, at, at,
               {{"module", "p" + std::to_string(2 - i)}, {"bytes", kBytes}, {"parameter", 2 - i}}));
    }
    for (int b = 0; b < std::ssize(rank.buckets); ++b) {
      const auto& [sent, reduced] = rank.buckets[static_cast<std::size_t>(b)];
      const double bytes = 3 * kBytes / static_cast<double>(rank.buckets.size());
      events.push_back(
          span("ddp", "send bucket", r, sent, sent, {{"bucket", b}, {"bytes", bytes}}));
      events.push_back(span("comm", "all_reduce", r, sent, reduced,
                            {{"module", "bucket " + std::to_string(b)}, {"bytes", bytes}}));
    }
    const double waited = rank.buckets.back().second;
    events.push_back(span("ddp", "wait for buckets", r, waited - 1, waited));
    events.push_back(span("phase", "backward", r, 10, waited));
    events.push_back(span("optim", "step", r, waited, rank.end));
  }
  return {{"traceEvents", events}};
}

// One bucket, for which rank 0 waits for rank 1. Its all-reduce takes 12 ms: 4 ms for each
// gradient.
json one_bucket() {
  return trace_of({{{14, 20, 24}, {{24, 38}}, 42}, {{14, 20, 26}, {{26, 38}}, 41}});
}

// The same step with a bucket for each gradient. The cores are shared: beside backward an
// all-reduce takes 8 ms instead of 4, and backward 4 ms more.
json three_buckets() {
  const std::vector<std::pair<double, double>> buckets = {{14, 22}, {24, 32}, {34, 38}};
  return trace_of({{{14, 24, 34}, buckets, 42}, {{14, 24, 34}, buckets, 41}});
}

// The same with bf16_compress: an all-reduce moves half of its bucket's bytes.
json in_bf16(json trace) {
  for (json& event : trace["traceEvents"]) {
    json& args = event["args"];
    if (event["cat"] == "comm") args["bytes"] = args["bytes"].get<double>() / 2;
  }
  return trace;
}

using Replay = ReplayTest<DdpTrace>;

TEST_F(Replay, TheRecordedSettingGivesTheRecordedStep) {
  for (const json& trace : {one_bucket(), three_buckets()}) {
    EXPECT_NEAR(read(trace).seconds(), 0.042, 1e-9);
    EXPECT_NEAR(ms_of(trace, "recorded"), 42, 1e-6);
  }
  const DdpTrace trace = read(one_bucket());
  ASSERT_EQ(trace.gradients.size(), 3U);
  EXPECT_EQ(trace.gradients[0].name, "p2");
  // 2 (n - 1) / n bytes over a link in 12 ms.
  EXPECT_NEAR(trace.link.bytes_per_second, 3e6 / 12e-3, 1);
  EXPECT_EQ(trace.link.latency, 0);
}

TEST_F(Replay, OtherSettingsAreComputed) {
  const std::vector<std::pair<const char*, double>> expected = {
      // 26 ms until the gradients are ready, 12 for the all-reduces, 4 for the optimiser. What
      // early buckets save after backward, they take from backward.
      {"cap=inf", 42},
      {"cap=0.5", 42},
      {"order=given,cap=0.5", 42},
      {"order=reversed", 42},
      {"cap=default", 42},
      // 10 ms more for each gradient. One bucket: 26 + 12 + 30 + 4. Three buckets: the first is
      // sent at 14 and takes 4 + 4 + 10, until 32; the second ends at 50, and the last takes 4 +
      // 10, until 64.
      {"cap=inf,link=0-1:100MB/s", 72},
      {"cap=0.5,link=0-1:100MB/s", 68},
      // Buckets of two, and one: of p2, then of p1 and p0, with whose all-reduces backward is done
      // at 30. The first lasts until 32, the second 8 + 20.
      {"order=reversed,cap=1.5,link=0-1:100MB/s", 64},
      // Rank 1 is ready at 46; or at 28, 40 and 52, and its optimiser takes 6.
      {"cap=inf,slow=1:20ms", 62},
      {"cap=inf,slow=1:0.02s", 62},
      // Half of the bytes: 26 + 6 + 4.
      {"cap=inf,bf16", 36},
      // 2 (4 - 1) / 4 of the bytes instead of 2 (2 - 1) / 2: 18 ms.
      {"cap=inf,ranks=4", 48},
      {"cap=inf,latency=1ms", 44},
      // All but the last run beside backward: 26 + 1 + 4.
      {"cap=0.5,bandwidth=1GB/s", 31},
      {"cap=inf,bandwidth=1GB/s", 33},
  };
  for (const auto& [setting, ms] : expected) {
    EXPECT_NEAR(ms_of(one_bucket(), setting), ms, 1e-6) << setting;
    EXPECT_NEAR(ms_of(three_buckets(), setting), ms, 1e-6) << setting;
  }
  EXPECT_NEAR(ms_of(one_bucket(), "slow=1:2x"), 52 + 12 + 6, 1e-6);
  EXPECT_NEAR(ms_of(one_bucket(), "slow=0:20ms"), 44 + 12 + 4, 1e-6);
}

// A run with --bucket-order. If several orders give buckets of these bytes, the right one is that
// in which they were sent soonest.
TEST_F(Replay, ATraceMayHaveBucketsInTheOrderOfTheParameters) {
  const auto trace = [](const std::vector<double>& ready,
                        const std::vector<std::pair<double, double>>& buckets,
                        const std::vector<double>& bytes) {
    const Rank rank = {ready, buckets, 42};
    json trace = trace_of({rank, rank});
    for (json& event : trace["traceEvents"]) {
      if (event["name"] != "send bucket") continue;
      event["args"]["bytes"] = bytes[event["args"]["bucket"].get<std::size_t>()];
    }
    return trace;
  };
  const auto plan = [&](const json& trace) { return read(trace).recorded_plan(); };
  // p2 comes first: p0 and p1, then p2; and by arrival.
  const json given = trace({14, 20, 26}, {{26, 32}, {26.1, 38}}, {2e6, 1e6});
  EXPECT_EQ(plan(given), (BucketPlan{{2, 1}, {0}}));
  EXPECT_EQ(plan(trace({14, 20, 26}, {{20, 26}, {26, 38}}, {2e6, 1e6})), (BucketPlan{{0, 1}, {2}}));
  // p1 comes first: p2, then p0 and p1.
  EXPECT_EQ(plan(trace({20, 14, 26}, {{20, 26}, {26, 38}}, {1e6, 2e6})), (BucketPlan{{1}, {2, 0}}));
  EXPECT_NE(run("--replay " + write("one.json", one_bucket().dump()) + " order=given,cap=1.5@" +
                write("given.json", given.dump())),
            2)
      << log();
}

TEST_F(Replay, OnGpusAllReducesTakeNothingFromBackward) {
  json trace = one_bucket();
  trace["traceEvents"][0]["args"]["device"] = "cuda:0";
  // Buckets are sent at 14, 20 and 26, and take 4 ms each.
  EXPECT_NEAR(ms_of(trace, "cap=0.5"), 34, 1e-6);
}

TEST_F(Replay, BucketsOfUnlikeSizesTellTheLatency) {
  // 1 MB in 5 ms and 9 MB in 13 ms: 4 ms and a nanosecond for each byte.
  const Rank rank = {{14, 20, 26}, {{14, 19}, {26, 39}}, 43};
  json trace = trace_of({rank, rank});
  for (json& event : trace["traceEvents"]) {
    json& args = event["args"];
    const double of_gradients[] = {5e6, 4e6, 1e6};
    if (event["name"] == "gradient") args["bytes"] = of_gradients[args["parameter"].get<int>()];
    if (event["name"] == "send bucket") args["bytes"] = args["bucket"] == 0 ? 1e6 : 9e6;
    args["device"] = "cuda:0";
  }
  const DdpTrace gpu = read(trace);
  EXPECT_NEAR(gpu.link.latency, 2e-3, 1e-9);
  EXPECT_NEAR(gpu.link.bytes_per_second, 1e9, 1);
  // 26 ms, then 4 ms and the time of 10 MB, then 4 ms.
  EXPECT_NEAR(ms_of(trace, "cap=inf"), 26 + 14 + 4, 1e-6);
}

TEST_F(Replay, ARingSendsNothingOverALinkBetweenStrangers) {
  const Rank rank = {{14, 20, 26}, {{26, 38}}, 42};
  const json four = trace_of({rank, rank, rank, rank});
  EXPECT_NEAR(ms_of(four, "link=0-2:1MB/s"), 42, 1e-6);
  // 2 (n - 1) / n of 3 MB at 100 MB/s.
  EXPECT_NEAR(ms_of(four, "link=3-0:100MB/s"), 42 + 45, 1e-6);
  EXPECT_NEAR(ms_of(four, "link=1-2:100MB/s"), 42 + 45, 1e-6);
}

TEST_F(Replay, TheTableSaysWhatToUse) {
  const DdpTrace trace = read(one_bucket());
  std::vector<Replayed> rows = {trace.replay({})};
  for (const std::string& setting : trace.usual_settings()) {
    rows.push_back(trace.replay(trace.parse(setting)));
  }
  std::string text = to_text(trace, rows);
  EXPECT_HAS(text, "1 steps of DDP on 2 ranks, 3 gradients in 1 bucket; recorded: 42.000 ms");
  EXPECT_HAS(text, "keep the recorded buckets");
  EXPECT_LACKS(text, "measured rows");
  for (const Replayed& row : rows) EXPECT_HAS(text, row.setting.text);
  const std::size_t bf16 = text.find("bf16");
  EXPECT_HAS(text.substr(bf16, text.find('\n', bf16) - bf16), "extrapolated");

  // If cores do not move the bytes, small buckets pay.
  json gpu = one_bucket();
  gpu["traceEvents"][0]["args"]["device"] = "cuda:0";
  const DdpTrace faster = read(gpu);
  rows = {faster.replay({}), faster.replay(faster.parse("cap=0.5")),
          faster.replay(faster.parse("slow=1:1us"))};
  rows[0].measured = 0.042;         // the trace's own row does not count
  rows[1].measured = 0.034 / 1.16;  // 16 % off
  rows[2].measured = rows[2].seconds;
  rows[2].settled = false;
  text = to_text(faster, rows);
  EXPECT_EQ(text.find(" not settled"), text.rfind(" not settled"));
  EXPECT_HAS(text, " not settled\n");
  EXPECT_HAS(text, "use cap=0.5: a step of 34.000 ms, 19.0 % less");
  EXPECT_HAS(text, "1 of 2 measured rows lie within 15 %");
}

TEST_F(Replay, TheCommandComparesWithRuns) {
  const std::string command = "--replay " + write("one.json", one_bucket().dump()) + " ";
  const std::string three = write("three.json", three_buckets().dump());
  json twice = three_buckets();
  for (json& event : twice["traceEvents"]) {
    event["ts"] = 2 * event["ts"].get<double>();
    event["dur"] = 2 * event["dur"].get<double>();
  }
  const std::string far = write("far.json", twice.dump());
  EXPECT_EQ(run(command), 0) << log();
  EXPECT_HAS(log(), "order=reversed");
  EXPECT_HAS(log(), "42.000 ms    +0.0%");
  EXPECT_LACKS(log(), "measured rows");
  EXPECT_EQ(run(command + "-o " + folder.path("curves.svg")), 0) << log();
  const std::string drawn = testing::read_file(folder.path("curves.svg"));
  for (const char* text : {"bucket cap, MiB", "1 GB/s links", "GB/s of each link", "cap=inf"}) {
    EXPECT_HAS(drawn, text);
  }
  EXPECT_EQ(run(command + "cap=0.5@" + three + " cap=0.5,bf16"), 0) << log();
  EXPECT_HAS(log(), "1 of 1 measured rows lie within 15 %");
  EXPECT_EQ(run(command + "cap=0.5@" + three + " cap=0.5@" + far), 1) << log();
  EXPECT_HAS(log(), "-50.0%");
  EXPECT_HAS(log(), "1 of 2 measured rows lie within 15 %");
  refuses(command + "cap=x", "got the setting 'cap=x', expected words as cap=5");
  refuses(command + "cap=1@nothing.json", "nothing.json cannot be read");
  const Rank rank = {{14, 20, 26}, {{26, 38}}, 42};
  const std::string four = write("four.json", trace_of({rank, rank, rank, rank}).dump());
  EXPECT_EQ(run(command + "ranks=4@" + four), 0) << log();
  refuses(command + "cap=5@" + four,
          "four.json is of 4 ranks and 3 gradients of 3000000 bytes in 1 bucket, expected 2 ranks "
          "and 3 gradients of 3000000 bytes in 1 bucket");
  json larger = one_bucket();
  for (json& event : larger["traceEvents"]) {
    json& args = event["args"];
    if (args.contains("bytes")) args["bytes"] = 2 * args["bytes"].get<double>();
  }
  refuses(command + "cap=1@" + write("larger.json", larger.dump()), "gradients of 6000000 bytes");
  json thin = one_bucket();
  thin["traceEvents"].push_back(span("link", "thin link 0-1", 0, 20, 30));
  refuses("--replay " + write("thin.json", thin.dump()), "record it without WEFT_FAULT");
}

TEST_F(Replay, ATraceWithoutTimeIsRefused) {
  json still = one_bucket();
  for (json& event : still["traceEvents"]) event["ts"] = event["dur"] = 0;
  EXPECT_WEFT_ERROR(read(still), Io, "its steps take no time");
  // A line of the table is whole, however long its setting is.
  const DdpTrace trace = read(one_bucket());
  Setting wordy;
  wordy.text = std::string(500, 'x');
  const std::string text = to_text(trace, {trace.replay({}), trace.replay(wordy)});
  EXPECT_HAS(text, wordy.text + "             1    42.000 ms");
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
}

// A run must show the setting that it is said to have had.
TEST_F(Replay, TheCommandRefusesRunsOfOtherSettings) {
  const std::string file = write("one.json", one_bucket().dump());
  const std::string three = write("three.json", three_buckets().dump());
  const std::string command = "--replay " + file + " ";
  refuses(command + "recorded@" + file, "is the trace itself");
  refuses(command + "recorded@" + folder.path("./one.json"), "is the trace itself");
  EXPECT_EQ(run(command + "recorded@" + write("again.json", one_bucket().dump())), 0) << log();
  refuses(command + "recorded@" + three, "in 3 buckets, expected 2 ranks");
  refuses(command + "cap=5@" + three, "in 3 buckets, expected 2 ranks");
  json thin = one_bucket();
  thin["traceEvents"].push_back(span("link", "thin link 0-1", 0, 20, 30));
  const std::string linked = write("thin.json", thin.dump());
  refuses(command + "recorded@" + linked, "in 1 bucket over a thin link, expected 2 ranks");
  refuses(command + "link=0-1:1GB/s@" + three, "expected 2 ranks and 3 gradients of 3000000 bytes");
  EXPECT_NE(run(command + "link=0-1:1GB/s@" + linked), 2) << log();
  const std::string halves = write("bf16.json", in_bf16(one_bucket()).dump());
  refuses(
      command + "bf16@" + write("f32.json", one_bucket().dump()),
      "in 1 bucket, expected 2 ranks and 3 gradients of 3000000 bytes in 1 bucket, sent as bf16");
  refuses(command + "recorded@" + halves, "in 1 bucket, sent as bf16, expected 2 ranks");
  EXPECT_NE(run(command + "bf16@" + halves), 2) << log();
  EXPECT_HAS(log(), "measured rows");
}

// Numbers of two bytes are not halved again.
TEST_F(Replay, ATraceMayHaveBf16) {
  EXPECT_FALSE(read(one_bucket()).bf16);
  const json trace = in_bf16(one_bucket());
  EXPECT_TRUE(read(trace).bf16);
  EXPECT_NEAR(read(trace).link.bytes_per_second, 1.5e6 / 12e-3, 1);
  EXPECT_NEAR(ms_of(trace, "recorded"), 42, 1e-6);
  EXPECT_NEAR(ms_of(trace, "link=0-1:100MB/s"), 42 + 15, 1e-6);
  EXPECT_WEFT_ERROR(replay(trace, "bf16"), InvalidArgument,
                    "got the setting 'bf16', but the trace has bf16 already");
  const std::string file = write("bf16.json", trace.dump());
  EXPECT_EQ(run("--replay " + file + " -o " + folder.path("curves.svg")), 0) << log();
}

TEST_F(Replay, OtherTracesAreRefused) {
  const auto expect_refused = [&](const json& trace, const std::string& why) {
    EXPECT_WEFT_ERROR(read(trace), Io, why);
  };
  expect_refused(json::object(),
                 "is no trace that --trace wrote: a 'traceEvents' is missing in it");
  expect_refused({{"traceEvents", json::array()}}, "it has no step of DistributedDataParallel");
  expect_refused(without(one_bucket(), "gradient"),
                 "an older weft recorded it; record it again with --trace FILE");
  expect_refused(without(one_bucket(), "gradient", 1), "gradients");
  for (const char* name : {"backward", "step", "wait for buckets", "all_reduce", "Sequential"}) {
    expect_refused(without(one_bucket(), name), "no step of it is whole");
  }
  expect_refused(trace_of({{{14, 20, 26}, {{26, 38}}, 42}}), "it is of one rank");
  json twice = one_bucket();
  twice["traceEvents"].push_back(span("phase", "backward", 0, 10, 20));
  expect_refused(twice, "its steps have 2 backwards");
  // A good step before or after it is enough.
  twice = with_step(twice, one_bucket(), 2);
  EXPECT_EQ(read(twice).steps.size(), 1U);
  EXPECT_EQ(read(twice).steps[0].number, 2);
  json early = three_buckets();
  for (json& event : early["traceEvents"]) {  // on rank 1 the first bucket, before 14 ms
    const bool first = event["args"].value("bucket", -1) == 0;
    if (first && event["pid"] == 1) event["ts"] = 13.9e3;
  }
  expect_refused(early, "in step 3 a bucket was sent before all of its gradients were ready");
  early = with_step(early, three_buckets(), 4);
  EXPECT_EQ(read(early).steps.size(), 1U);
  EXPECT_EQ(read(early).steps[0].number, 4);
  json mixed = one_bucket();
  mixed["traceEvents"][1]["args"]["bytes"] = 5;  // the bucket has other bytes
  mixed["traceEvents"][9]["args"]["bytes"] = 5;
  expect_refused(mixed, "a replay knows only buckets of one dtype");
  // Within forward or backward, messages other than buckets come from ranks that share a layer.
  json tensor = one_bucket();
  tensor["traceEvents"].push_back(span("comm", "all_reduce", 1, 5, 6, {{"module", "Net.block0"}}));
  expect_refused(tensor, "in step 3 an all-reduce of Net.block0 is of no bucket");
  json beside = one_bucket();
  for (const char* module : {"Net.used parameters", "join"}) {
    beside["traceEvents"].push_back(span("comm", "all_reduce", 1, 15, 16, {{"module", module}}));
  }
  beside["traceEvents"].push_back(span("comm", "all_reduce", 1, 39, 40, {{"module", "loss"}}));
  EXPECT_EQ(read(beside).steps.size(), 1U);
  // The numbers of buckets begin with 0 and have no gaps.
  json numbers = three_buckets();
  for (json& event : numbers["traceEvents"]) {
    json& args = event["args"];
    if (args.value("bucket", -1) == 2) args["bucket"] = 2147483647;
    if (args.value("module", "") == "bucket 2") args["module"] = "bucket 2147483647";
  }
  expect_refused(numbers, "no step of it is whole");
  // A number that no step, bucket or rank can have counts as missing.
  json large = one_bucket();
  for (json& event : large["traceEvents"]) event["args"]["step"] = 1e300;
  expect_refused(large, "it has no step of DistributedDataParallel");
  json thin = one_bucket();
  thin["traceEvents"].push_back(span("link", "thin link 0-1", 0, 20, 30));
  EXPECT_TRUE(read(thin).has_thin_links);
  EXPECT_FALSE(read(one_bucket()).has_thin_links);
  // On a mesh, whatever the messages along its other axis are.
  expect_refused(in_mesh(one_bucket(), "tp"),
                 "in step 3 its ranks send messages in several groups (dp of ranks 0, 1; tp of "
                 "ranks 0, 1): a replay knows only DDP among all ranks");
  EXPECT_EQ(read(in_mesh(one_bucket(), "dp")).steps.size(), 1U) << "one group";
  json of_one_axis = in_mesh(one_bucket(), "dp");
  of_one_axis["traceEvents"].back()["args"]["name"] = "comm dp of ranks 2, 3";
  expect_refused(of_one_axis,
                 "in step 3 its ranks send messages in several groups (dp of ranks 0, 1; dp of "
                 "ranks 2, 3): a replay knows only DDP among all ranks");
}

TEST_F(Replay, OtherSettingsAreRefused) {
  for (const char* text : {"cap",
                           "cap=",
                           "cap=0",
                           "cap=-1",
                           "cap=1MiB",
                           "cap=nan",
                           "cap=infinity",
                           "cap=-inf",
                           "order=",
                           "order=x",
                           "link=0-2:1MB/s",
                           "link=0-1:0MB/s",
                           "link=0-1",
                           "slow=2:1ms",
                           "slow=1",
                           "slow=1:",
                           "slow=1:1",
                           "slow=1:x",
                           "slow=1:-1ms",
                           "slow=-1:1ms",
                           "slow=1:infms",
                           "slow=1:nanms",
                           "slow=1:nanx",
                           "ranks=1",
                           "ranks=2x",
                           "ranks=99999999999",
                           "latency=1",
                           "latency=infs",
                           "latency=nanus",
                           "bandwidth=1",
                           "bandwidth=infGB/s",
                           "bf17",
                           "x",
                           "cap=1,,bf16"}) {
    EXPECT_WEFT_ERROR(parse_setting(text, 2), InvalidArgument, "got the setting '");
  }
  // The ranks of a link are those of the setting; ranks= may come after link=.
  EXPECT_EQ(parse_setting("link=0-3:1MB/s,ranks=4", 2).thin_link->b, 3);
  for (const char* text : {"link=0-3:1MB/s,ranks=2", "ranks=3,link=0-3:1MB/s"}) {
    EXPECT_WEFT_ERROR(parse_setting(text, 4), InvalidArgument, "a link between ranks 0 and 3, ");
  }
  EXPECT_WEFT_ERROR(parse_setting("", 2), InvalidArgument, "got an empty setting");
  for (const auto& [text, name] : {std::pair("slow=0:20ms,slow=1:1.5x", "slow"),
                                   {"link=0-1:1MB/s,link=0-1:2MB/s", "link"},
                                   {"cap=5,cap=default", "cap"},
                                   {"cap=inf,cap=inf", "cap"},
                                   {"bf16,bf16", "bf16"},
                                   {"recorded,recorded", "recorded"},
                                   {"ranks=4,order=given,ranks=8", "ranks"},
                                   {"latency=1ms,latency=2ms", "latency"},
                                   {"bandwidth=1GB/s,bandwidth=2GB/s", "bandwidth"}}) {
    EXPECT_WEFT_ERROR(parse_setting(text, 2), InvalidArgument,
                      std::string("' with '") + name + "' twice");
  }
  EXPECT_WEFT_ERROR(parse_setting("ranks=2,slow=3:1ms", 4), InvalidArgument,
                    "with the slow rank 3, expected one of 0 to 1");
  EXPECT_WEFT_ERROR(parse_setting("slow=3:1ms,ranks=2", 4), InvalidArgument, "the slow rank 3");
  EXPECT_EQ(parse_setting("slow=3:1ms,ranks=8", 4).slow_rank, 3);
}

TEST_F(Replay, AStepOfDdpRecordsTheMomentOfEachGradient) {
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    comm::run_ranks(2, [](comm::ProcessGroup& group) {
      nn::Sequential net{nn::Linear(4, 8), nn::Linear(8, 2, false)};
      parallel::DistributedDataParallel ddp(
          net, std::shared_ptr<comm::ProcessGroup>(&group, [](auto*) {}));
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      for (int step = 0; step < 3; ++step) {
        thread_state().step = step;
        sgd.zero_grad();
        sum(ddp(ones({3, 4}))).backward();
        sgd.step();
      }
    });
  }
  tracer.write(folder.path("trace.json"));
  const DdpTrace trace = read_file();
  EXPECT_EQ(trace.ranks(), 2);
  EXPECT_EQ(trace.steps.size(), 3U);
  EXPECT_TRUE(trace.all_reduce_computes);
  EXPECT_EQ(trace.bucket_bytes, std::vector<double>{(8 * 4 + 8 + 2 * 8) * 4});
  std::vector<std::pair<std::string, double>> gradients;
  for (const TracedGradient& each : trace.gradients) gradients.emplace_back(each.name, each.bytes);
  std::ranges::sort(gradients);
  const std::vector<std::pair<std::string, double>> expected = {
      {"0.bias", 32}, {"0.weight", 128}, {"1.weight", 64}};
  EXPECT_EQ(gradients, expected);
  EXPECT_EQ(trace.gradients[0].name, "1.weight");
  EXPECT_GT(trace.replay(trace.parse("cap=0.00001")).count, 1);
}

}  // namespace
}  // namespace weft::simulator
